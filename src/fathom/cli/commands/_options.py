"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fathom.core.errors import BadOption
from fathom.core.spec import read_value

MOST_RUNS = 100_000  # of each configuration: that many processes take days
Name = Annotated[str, typer.Argument(help="A workload of `fathom list`, or your own class as package.module:Class.")]
Names = Annotated[
    list[str] | None,
    typer.Argument(help="Workloads of `fathom list`, or your own classes as package.module:Class; default: the eight."),
]
Suite = Annotated[str, typer.Option(help="Which workloads to use without NAMES: fathom (the eight) or cookbook.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; messages go to stderr.")]
Phase = Annotated[str, typer.Option(help="train or infer.")]
Preset = Annotated[str, typer.Option(help="tiny (seconds), small (the full network) or paper (published sizes).")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto is the first accelerator, else the CPU.")]
Precision = Annotated[str, typer.Option(help="fp32, tf32 or bf16 (autocast).")]
Engine = Annotated[
    str,
    typer.Option(help="How steps are executed: eager, compile, cudagraph, ...; combine them as compile+cudagraph."),
]
Out = Annotated[Path, typer.Option(help="Folder of records to write to.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="An option of the workload, as name=value; repeatable.")]


def values_in(text: str | None, option: str) -> list[str]:
    """The values between commas, each once; none where the option was not given. An empty list is a mistake."""
    values = [part.strip() for part in (text or "").split(",") if part.strip()]
    if text is not None and not values:
        raise BadOption(f"{option} takes values separated by commas, not {text!r}")
    return list(dict.fromkeys(values))


def options_of(pairs: list[str], option: str = "--set") -> dict[str, Any]:
    """The values of --set, or another such option, by name."""
    return {name: read_value(text) for name, text in (_named(pair, option) for pair in pairs)}


def _named(pair: str, option: str) -> tuple[str, str]:
    name, equals, text = pair.partition("=")
    if not (name and equals):
        raise BadOption(f"{option} takes name=value, not {pair!r}")
    return name, text


def swept_options_of(pairs: list[str], option: str) -> dict[str, list[Any]]:
    """All values of each option: a list such as 1,2,4 is a sweep over them, and so is the same name given again."""
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        name, text = _named(pair, option)
        whole = text.startswith(("[", "{", '"'))  # JSON, whose commas are its own
        values = [text] if whole else text.split(",")
        if not all(value.strip() for value in values):
            raise BadOption(f"{option} takes name=value or name=value,value,..., not {pair!r}")
        for value in map(read_value, values):
            if value not in found.setdefault(name, []):
                found[name].append(value)
    return found
