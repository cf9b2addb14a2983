"""fathom show NAME: one workload's paper, presets and cost."""

from __future__ import annotations

from fathom import registry
from fathom.commands._facts import facts
from fathom.commands._options import Json, Name
from fathom.terminal import print_facts, print_json, text


def command(name: Name, as_json: Json = False) -> None:
    """One workload: its paper, presets and cost."""
    registry.check("workloads", name)
    from fathom.cost import cost

    kind = registry.workload(name)
    counted = cost(kind.configured("small"))
    known = {
        **facts(name),
        "paper": kind.paper,
        "item": kind.item,
        "data": kind.expects,
        "presets": {preset: dict(fields) for preset, fields in kind.presets.items()},
        "macs_per_item": counted.macs_per_item,
        "train_flop_per_item": counted.train_flop_per_item,
    }
    if as_json:
        print_json(known)
        return
    plain = [(key, str(value) if key == "year" else text(value)) for key, value in known.items() if key != "presets"]
    presets = [
        (f"preset {preset}", ", ".join(f"{key}={value}" for key, value in fields.items()))
        for preset, fields in kind.presets.items()
    ]
    print_facts(name, plain + presets)
