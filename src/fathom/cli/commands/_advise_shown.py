"""A plan of `fathom advise --items` in a terminal and as JSON: the choice first, then the table, rules and limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fathom.cli.terminal import count as counted
from fathom.cli.terminal import human, print_table, print_text
from fathom.predict import rules
from fathom.predict.plan import AT_TDP, COST, ENERGY, HOUR_S, TIME, Choice, Plan
from fathom.trace.step_work import StepWork

SHOWN, SHOWN_REASONS = 12, 4  # rows of the table, and settings that cannot be; --json has all
COLUMNS = [
    "device",
    "count",
    "interconnect",
    "batch",
    "precision",
    "engine",
    "hours",
    "to hours",
    "kWh",
    "cost",
    "bound by",
]


def row(choice: Choice) -> list[Any]:
    energy = None if choice.energy_j is None else choice.energy_j / 3.6e6
    where = [choice.device, choice.count, choice.interconnect, choice.batch, choice.precision, choice.engine]
    times = [choice.seconds / HOUR_S, choice.high_s / HOUR_S]
    return [*where, *times, energy, choice.cost, choice.estimate.bound_by]


def print_plan(
    name: str, found: Plan, choice: Choice, checks: Sequence[rules.Check], step: StepWork, uncertainty: str
) -> None:
    job, took = found.job, choice.estimate
    print_text(f"{name}: {job.items:.4g} {step.item}s, {_epochs(job.epochs)}")
    print_text(f"Advised: {choice}")
    print_text(
        f"  {_hours(choice.seconds)} ({_hours(choice.low_s)} to {_hours(choice.high_s)}), "
        f"{took.items_per_s:.4g} {step.item}s a second, {took.memory_bytes / 1e9:.3g} GB on each device"
    )
    print_text(f"  bound by {took.bound_by}{_next_best(found, choice)}")
    for by, words in {TIME: "Fastest", ENERGY: "Least energy", COST: "Cheapest"}.items():
        if (best := found.best(by)) is not None:
            print_text(f"{words}: {best}: {_spent(best)}")
    shown = found.allowed[:SHOWN]
    print_table(
        f"{len(shown)} of {counted(len(found.allowed), 'setting')}, the fastest first", COLUMNS, [*map(row, shown)]
    )
    print_table(
        "Rules of thumb of the Cookbook", ["rule", "verdict", "detail"], [[c.rule, c.verdict, c.detail] for c in checks]
    )
    print_text(uncertainty)
    if any(each.energy_is == AT_TDP for each in shown):
        print_text("Energy is that of the devices at their TDP for the predicted time, without host and cooling.")
    if not job.prices:
        print_text("No cost: --price device=PRICE gives one per device and hour; none is assumed.")
    print_text(f"Source of the rules: {rules.SOURCE}")
    for each in found.impossible[:SHOWN_REASONS]:
        human.print(f"not possible: {each}", highlight=False, soft_wrap=True)
    if (more := len(found.impossible) - SHOWN_REASONS) > 0:
        human.print(f"{more} more are not possible; --json has the reasons", highlight=False)


def _epochs(count: float) -> str:
    return "1 epoch" if count == 1 else f"{count:g} epochs"


def _next_best(found: Plan, choice: Choice) -> str:
    better = found.next_best(choice)
    if better is None:
        return "; no single change that was compared is faster"
    axis, other = better
    joined = f" on {other.interconnect}" if axis == "count" and other.interconnect else ""
    return f"; next best change: {axis} {other.axes[axis]}{joined} ({_hours(other.seconds)})"


def _spent(choice: Choice) -> str:
    parts = [_hours(choice.seconds)]
    parts += [f"{choice.energy_j / 3.6e6:.4g} kWh ({choice.energy_is})"] if choice.energy_j is not None else []
    parts += [f"cost {choice.cost:.4g}"] if choice.cost is not None else []
    return ", ".join(parts)


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR_S:.3g} h"


def document(name: str, found: Plan, choice: Choice, checks: Sequence[rules.Check], uncertainty: str) -> dict[str, Any]:
    better = found.next_best(choice)
    return {
        "workload": name,
        "job": dataclasses.asdict(found.job),
        "advised": plain(choice),
        "bound_by": choice.estimate.bound_by,
        "next_best": None if better is None else {"axis": better[0], **plain(better[1])},
        "best": {by: None if (best := found.best(by)) is None else plain(best) for by in (TIME, ENERGY, COST)},
        "checks": [dataclasses.asdict(each) for each in checks],
        "choices": [plain(each) for each in found.choices],
        "impossible": [dataclasses.asdict(each) for each in found.impossible],
        "uncertainty": uncertainty,
    }


def plain(choice: Choice) -> dict[str, Any]:
    shown = {
        name: getattr(choice, name) for name in ("device", "count", "interconnect", "batch", "precision", "engine")
    }
    shown |= {"seconds": choice.seconds, "low_s": choice.low_s, "high_s": choice.high_s, "cost": choice.cost}
    shown |= {"energy_j": choice.energy_j, "energy_is": choice.energy_is, "step_s": choice.estimate.step_s}
    shown |= {"exposed_s": choice.estimate.exposed_s, "memory_bytes": choice.estimate.memory_bytes}
    return shown | {"bound_by": choice.estimate.bound_by, "coverage": choice.estimate.coverage}
