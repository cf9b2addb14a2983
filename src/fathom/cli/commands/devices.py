"""fathom devices: the catalogue of hardware that predictions are made for, with the source of every number."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from fathom.cli.commands._options import Json
from fathom.cli.terminal import print_json, print_table
from fathom.predict import catalogue
from fathom.predict.catalogue import PRECISIONS, Device, Interconnect, Source

NAME = typer.Argument(help="One device or interconnect, with its sources; without it: all of them.", show_default=False)
QUANTITIES = {  # field -> as shown, divisor
    **{f"{precision}_flop_per_s": (f"{precision} (TFLOP/s)", 1e12) for precision in PRECISIONS},
    "memory_bytes": ("memory (GB)", 1e9),
    "memory_bytes_per_s": ("memory bandwidth (GB/s)", 1e9),
    "tdp_w": ("TDP (W)", 1.0),
    "bytes_per_s": ("bandwidth, one direction (GB/s)", 1e9),
    "latency_s": ("latency (µs)", 1e-6),
}


def command(name: Annotated[str | None, NAME] = None, as_json: Json = False) -> None:
    """Lists the hardware catalogue: dense peaks, memory, TDP; bandwidth and latency of links; every number's source."""
    devices, links = list(catalogue.devices().values()), list(catalogue.interconnects().values())
    if name is not None:
        found = catalogue.named(name)
        devices, links = ([found], []) if isinstance(found, Device) else ([], [found])
    if as_json:
        print_json(
            {"devices": [_document(each) for each in devices], "interconnects": [_document(each) for each in links]}
        )
    elif name is not None:
        _print_one(found)
    else:
        _print_all("Devices", devices)
        _print_all("Interconnects", links)


def _document(each: Device | Interconnect) -> dict[str, Any]:
    return dataclasses.asdict(each)


def _print_all(title: str, entries: list[Device] | list[Interconnect]) -> None:
    fields = [field for field in QUANTITIES if hasattr(entries[0], field)]
    rows = [[each.name, *(_shown(each, field) for field in fields)] for each in entries]
    print_table(title, ["name", *(QUANTITIES[field][0] for field in fields)], rows)


def _print_one(each: Device | Interconnect) -> None:
    rows = [
        [QUANTITIES[field][0], _shown(each, field), source.kind, _cited(source), source.url]
        for field, source in each.sources.items()
    ]
    title = f"{each.name}: {each.note}" if each.note else each.name
    print_table(title, ["quantity", "value", "kind of source", "source", "address"], rows)


def _cited(source: Source) -> str:
    return f"{source.title}, {source.year}" if source.year else source.title


def _shown(each: Device | Interconnect, field: str) -> float | None:
    value = getattr(each, field)
    return None if value is None else value / QUANTITIES[field][1]
