"""fathom doctor: this machine as Fathom sees it, and what is missing."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from fathom.cli.commands._options import Json
from fathom.cli.terminal import print_facts, print_json, text
from fathom.core import plugins
from fathom.machine.gpus import gpus
from fathom.machine.host import devices_expected, fingerprint, import_notes, libraries
from fathom.machine.meter import Target, find_hints, find_meters


def command(as_json: Json = False) -> None:
    """Show this machine: what Fathom can use, and what is missing."""
    found = {
        **dataclasses.asdict(fingerprint()),
        "devices": devices_expected(),
        "engines": plugins.names("engines"),
        "meters": _meters(),
        "data": os.environ.get("FATHOM_DATA"),
        "advice": _advice(),
    }
    if as_json:
        print_json(found)
    else:
        rows = [row for key, value in found.items() for row in _flattened(key, value)]
        print_facts("This machine", [(label.replace("_", " "), value) for label, value in rows])


def _meters() -> list[str]:
    """What is metered for a run on any of the GPUs, or on the CPU."""
    return [f"{meter.label} of {meter.scope}" for meter in find_meters(_target())] or ["energy is not metered"]


def _target() -> Target:
    return Target(gpu_uuids=tuple(gpu.uuid for gpu in gpus() if gpu.uuid))


def _advice() -> list[str]:
    advice = find_hints(_target())
    if libraries()["ale-py"] is None:
        advice.append("deepq plays Atari: pip install 'fathom[atari]'")
    if not os.environ.get("FATHOM_DATA"):
        advice.append("data are synthetic unless --data names a folder; set FATHOM_DATA to the parent of such folders")
    cure = "unset PYTHONDONTWRITEBYTECODE, or run python -m compileall over its folder once"
    return [*advice, *(f"{note}: {cure}" for note in import_notes())]


def _flattened(key: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [row for inner, item in value.items() for row in _flattened(f"{key} {inner}", item)]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [row for index, item in enumerate(value) for row in _flattened(f"{key} {index}", item)]
    if isinstance(value, list):
        between = "\n" if key == "advice" else ", "  # sentences have commas of their own
        return [(key, between.join(map(text, value)) or "none")]
    if key.endswith("memory_bytes") and value is not None:
        return [(key.removesuffix("_bytes"), f"{value / 2**30:.1f} GiB")]
    return [(key, text(value))]
