"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fathom.core.errors import BadOption
from fathom.core.spec import read_value

Name = Annotated[str, typer.Argument(help="A workload.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, everything human on stderr.")]
Preset = Annotated[str, typer.Option(help="tiny (seconds), small (the full network) or paper (published sizes).")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes an accelerator where there is one.")]
Precision = Annotated[str, typer.Option(help="fp32, tf32 or bf16 (autocast).")]
Out = Annotated[Path, typer.Option(help="Folder of records.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A field of the workload, as name=value.")]


def options_of(pairs: list[str]) -> dict[str, Any]:
    """What --set says."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise BadOption(f"--set takes name=value, not {pair!r}")
        options[name] = read_value(value)
    return options
