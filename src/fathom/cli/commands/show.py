"""fathom show NAME: one workload's paper, presets, cost and training recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fathom.cli.commands._options import Json, Name
from fathom.cli.commands._recipes import aim
from fathom.cli.terminal import print_facts, print_json, text
from fathom.workloads.catalogue import facts

SHOWN = (
    *("name", "year", "layers", "style", "task", "dataset", "parameters", "paper", "item", "data"),
    *("macs_per_item", "train_flop_per_item"),
)


def command(name: Name, as_json: Json = False) -> None:
    """Show one workload: paper, presets, cost, and the training recipe with its target."""
    found = facts(name)
    plain = {key: found[key] for key in SHOWN if key in found}
    if as_json:
        print_json({**plain, "presets": found["presets"], "recipe": found["recipe"]})
        return
    rows = [(key, str(value) if key == "year" else text(value)) for key, value in plain.items()]
    rows += [(f"preset {preset}", _listed(fields)) for preset, fields in found["presets"].items()]
    print_facts(name, rows + (_recipe("recipe", found["recipe"]) if found["recipe"] else []))


def _recipe(title: str, recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What is to be reached and how that is evaluated; then the same of the recipe's variants."""
    stop_at, evaluations = recipe["stop_at"], recipe["evaluations"]
    fewer = f"{evaluations}, or fewer: {stop_at} {recipe['unit']} in validation end the run"
    settings = f"preset {recipe['preset']}; on a GPU {recipe['precision']}, engine {recipe['engine']}"
    rows = [
        (title, aim(recipe)),
        ("  protocol", recipe["protocol"]),
        ("  evaluations", str(evaluations) if stop_at is None else fewer),
        ("  settings", f"{settings}; {_listed(recipe['options'])}"),
    ]
    for option, variant in recipe["variants"].items():
        rows += _recipe(f"recipe with {option}", variant)
    return rows


def _listed(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in fields.items())
