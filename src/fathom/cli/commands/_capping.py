"""Caps of fathom energy: what would change is shown, and nothing is changed without permission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fathom.cli.terminal import human, print_json, print_text
from fathom.core.errors import BadOption
from fathom.experiments import energy
from fathom.experiments.capping import Change, plan, restore_from_journal

Caps = Mapping[str, Sequence[float]]  # power_cap_w or clock_cap_mhz -> the values to try


def restore(as_json: bool) -> None:
    """Puts back what a sweep that was killed has left."""
    lines = restore_from_journal()
    if as_json:
        print_json({"restored": lines})
        return
    for line in lines or ["nothing to restore: no sweep left a setting changed"]:
        print_text(line)


def capped_settings(
    found: Sequence[energy.Setting], caps: Caps, device: str, allowed: bool, as_json: bool
) -> list[energy.Setting] | None:
    """The settings below each cap; None for a dry run. Where it is permitted, a refusal fails before anything runs."""
    from fathom.machine.devices import resolve  # loads torch, which alone knows the card of a device

    settings, changes = [], []
    for cap, values in caps.items():
        governors = energy.mechanism(cap, resolve(device))
        planned = plan(governors, values)
        changes += planned
        if allowed and (refused := next((change for change in planned if change.refusal), None)):
            raise BadOption(str(refused))
        if allowed:
            settings += energy.capped(found, cap, governors, values)
    _show(changes, allowed, as_json)
    return settings if allowed else None


def _show(changes: Sequence[Change], allowed: bool, as_json: bool) -> None:
    if as_json and not allowed:
        print_json({"dry_run": [_document(change) for change in changes]})
        return
    say = human.print if as_json else print_text
    for change in changes:
        say(str(change))
    for caveat in dict.fromkeys(change.caveat for change in changes if change.caveat):
        say(f"· {caveat}")
    if not allowed:
        say("Dry run: nothing was changed and nothing measured. Give --allow-capping to make these changes.")
    else:
        say("Each is set before its run and restored after it; after a crash, run fathom energy --restore")


def _document(change: Change) -> dict[str, Any]:
    return {name: getattr(change, name) for name in ("scope", "name", "before", "to", "refusal", "caveat")}
