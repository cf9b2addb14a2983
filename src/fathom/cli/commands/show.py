"""fathom show NAME: one workload's paper, presets, cost and lesson."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fathom.cli.commands._facts import aim, facts
from fathom.cli.commands._options import Json, Name
from fathom.cli.terminal import print_facts, print_json, text
from fathom.core import plugins
from fathom.workloads.recipe import Lesson


def command(name: Name, as_json: Json = False) -> None:
    """One workload: its paper, presets, cost, and what it shall learn."""
    plugins.check("workloads", name)
    from fathom.engine.cost import cost
    from fathom.workloads.base import workload_class

    kind = workload_class(name)
    counted = cost(kind.configured("small"))
    plain = {
        **facts(name),
        "paper": kind.paper,
        "item": kind.item,
        "data": kind.expects,
        "macs_per_item": counted.macs_per_item,
        "train_flop_per_item": counted.train_flop_per_item,
    }
    if as_json:
        presets = {preset: dict(fields) for preset, fields in kind.presets.items()}
        print_json({**plain, "presets": presets, "lesson": kind.lesson and dataclasses.asdict(kind.lesson)})
        return
    rows = [(key, str(value) if key == "year" else text(value)) for key, value in plain.items()]
    rows += [(f"preset {preset}", _listed(fields)) for preset, fields in kind.presets.items()]
    print_facts(name, rows + (_lesson("lesson", kind.lesson) if kind.lesson else []))


def _lesson(title: str, lesson: Lesson) -> list[tuple[str, str]]:
    """What is to be learnt and how that is judged; then the same of the lessons that may stand in its place."""
    stops = lesson.stops_at_target and lesson.quality.target is not None
    rows = [
        (title, aim(lesson.quality)),
        ("  judged by", lesson.quality.protocol),
        ("  rounds", f"{lesson.rounds}, or fewer: the target ends it" if stops else str(lesson.rounds)),
        ("  learnt with", f"preset {lesson.preset} in {lesson.precision}, {_listed(lesson.options)}"),
    ]
    for switch, other in lesson.instead.items():
        rows += _lesson(f"lesson with {switch}", other)
    return rows


def _listed(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in fields.items())
