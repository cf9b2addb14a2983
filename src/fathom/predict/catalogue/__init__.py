"""Hardware by name: peaks, memory, power, links; every number has a source, and one without a source is absent.

devices.csv and interconnects.csv have the names, numbers.csv one number a row with its source, sources.csv the sources.
GB are 1e9 bytes. fp64 and fp32 are the peaks of the vector units; tf32, bf16 and fp16 those of the matrix units where
the device has any, dense: without sparsity.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from fathom.core.errors import LONGEST, BadOption, UnknownName, shortened

PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16")
LEAST, MOST = 1e-9, 1e12  # of a machine that is described by hand, in TFLOP/s, GB/s, GB or W


@dataclass(frozen=True)
class Source:
    """Where a number was read; `kind` is one of vendor, reseller, paper, review, code and secondary."""

    name: str
    title: str
    year: int | None  # None: not dated
    kind: str
    url: str | None  # None: printed only


@dataclass(frozen=True, kw_only=True)
class Device:
    """A processor with its memory; None where nothing is known. Peaks are FLOP, of which a multiply-add has two."""

    name: str
    kind: str  # gpu, tpu, cpu or hypothetical
    parts: int = 1  # as many devices as a framework sees share these numbers
    fp64_flop_per_s: float | None = None
    fp32_flop_per_s: float | None = None
    tf32_flop_per_s: float | None = None
    bf16_flop_per_s: float | None = None
    fp16_flop_per_s: float | None = None
    memory_bytes: float | None = None
    memory_bytes_per_s: float | None = None
    tdp_w: float | None = None
    note: str = ""
    sources: Mapping[str, Source] = field(default_factory=dict)  # by the name of the field

    def peak_flop_per_s(self, precision: str) -> float | None:
        if precision not in PRECISIONS:
            raise UnknownName.among("precision", precision, PRECISIONS)
        peak: float | None = getattr(self, f"{precision}_flop_per_s")
        return peak


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """A link as one device sees it, in one direction."""

    name: str
    bytes_per_s: float
    latency_s: float | None = None  # of a small message, one hop
    note: str = ""
    sources: Mapping[str, Source] = field(default_factory=dict)


FIELDS = {  # quantity of numbers.csv -> field, factor
    **{f"{precision}_tflops": (f"{precision}_flop_per_s", 1e12) for precision in PRECISIONS},
    "memory_gb": ("memory_bytes", 1e9),
    "bandwidth_gb_s": ("memory_bytes_per_s", 1e9),
    "tdp_w": ("tdp_w", 1.0),
}
LINK_FIELDS = {"bandwidth_gb_s": ("bytes_per_s", 1e9), "latency_us": ("latency_s", 1e-6)}


def hypothetical(
    peak_tflops: float,
    bandwidth_gb_s: float,
    *,
    memory_gb: float | None = None,
    tdp_w: float | None = None,
    name: str = "hypothetical",
) -> Device:
    """A machine that need not exist; its peak is the same in every precision."""
    for what, value in {"peak": peak_tflops, "bandwidth": bandwidth_gb_s, "memory": memory_gb, "TDP": tdp_w}.items():
        if value is not None and not (LEAST <= value <= MOST):
            raise BadOption(f"{what} must be a number from {LEAST:g} to {MOST:g}, not {value}")
    peak = peak_tflops * 1e12
    return Device(
        name=name,
        kind="hypothetical",
        fp64_flop_per_s=peak,
        fp32_flop_per_s=peak,
        tf32_flop_per_s=peak,
        bf16_flop_per_s=peak,
        fp16_flop_per_s=peak,
        memory_bytes=None if memory_gb is None else memory_gb * 1e9,
        memory_bytes_per_s=bandwidth_gb_s * 1e9,
        tdp_w=tdp_w,
    )


def device(name: str) -> Device:
    """By name or alias; case, spaces and dashes do not matter."""
    return devices()[_find("device", name, "devices")]


def interconnect(name: str) -> Interconnect:
    return interconnects()[_find("interconnect", name, "interconnects")]


def named(name: str) -> Device | Interconnect:
    """A device or an interconnect."""
    found = _find("device or interconnect", name, "devices", "interconnects")
    return devices()[found] if found in devices() else interconnects()[found]


@cache
def devices() -> dict[str, Device]:
    found: dict[str, Device] = {}
    for row in _rows("devices"):
        values, sources = _numbers(row["name"], FIELDS)
        found[row["name"]] = Device(
            name=row["name"],
            kind=row["kind"],
            parts=int(row["parts"]),
            fp64_flop_per_s=values.get("fp64_flop_per_s"),
            fp32_flop_per_s=values.get("fp32_flop_per_s"),
            tf32_flop_per_s=values.get("tf32_flop_per_s"),
            bf16_flop_per_s=values.get("bf16_flop_per_s"),
            fp16_flop_per_s=values.get("fp16_flop_per_s"),
            memory_bytes=values.get("memory_bytes"),
            memory_bytes_per_s=values.get("memory_bytes_per_s"),
            tdp_w=values.get("tdp_w"),
            note=row["note"],
            sources=sources,
        )
    return found


@cache
def interconnects() -> dict[str, Interconnect]:
    found: dict[str, Interconnect] = {}
    for row in _rows("interconnects"):
        values, sources = _numbers(row["name"], LINK_FIELDS)
        found[row["name"]] = Interconnect(
            name=row["name"],
            bytes_per_s=values["bytes_per_s"],
            latency_s=values.get("latency_s"),
            note=row["note"],
            sources=sources,
        )
    return found


@cache
def all_sources() -> dict[str, Source]:
    return {
        row["id"]: Source(
            row["id"], row["title"], int(row["year"]) if row["year"] else None, row["kind"], row["url"] or None
        )
        for row in _rows("sources")
    }


def _numbers(name: str, fields: Mapping[str, tuple[str, float]]) -> tuple[dict[str, float], dict[str, Source]]:
    rows = [row for row in _rows("numbers") if row["of"] == name]
    values = {fields[row["quantity"]][0]: float(row["value"]) * fields[row["quantity"]][1] for row in rows}
    return values, {fields[row["quantity"]][0]: all_sources()[row["source"]] for row in rows}


def _find(kind: str, name: str, *tables: str) -> str:
    """The name in the catalogue; else an error that suggests it as the catalogue spells it."""
    aliases = {alias: full for table in tables for alias, full in _aliases(table).items()}
    if _plain(name) in aliases:
        return aliases[_plain(name)]
    near = difflib.get_close_matches(_plain(name[:LONGEST]), aliases, n=1, cutoff=0.5)
    known = ", ".join(dict.fromkeys(aliases.values()))
    hint = f"did you mean {aliases[near[0]]}?" if near else f"there are: {known}"
    raise UnknownName(f"no {kind} {shortened(name)!r}; {hint}")


@cache
def _aliases(table: str) -> dict[str, str]:
    return {
        _plain(alias): row["name"]
        for row in _rows(table)
        for alias in (row["name"], *(each for each in row["aliases"].split("|") if each))
    }


def _plain(name: str) -> str:
    """As drivers and people write it: "NVIDIA A100-SXM4-80GB" and "a100 sxm4 80gb" are the same."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum() or letter == ".")
    return plain.removeprefix("nvidia").removeprefix("tesla")


@cache
def _rows(table: str) -> list[dict[str, str]]:
    text = (files("fathom") / "predict" / "catalogue" / f"{table}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
