"""What explains that a step of B takes another time than one of A: the op types of their profiles that differ most."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fathom.analysis.selection import RunGroup, op_type
from fathom.core.record import Record

OUTSIDE = "outside ops"
EXPLAINED = 5  # op types that an explanation names at most, beside those that only one side has
LEAST = 0.01  # of the largest difference: a smaller one explains nothing


@dataclass(frozen=True, kw_only=True)
class Change:
    """One op type in a profiled step of either side, and what it adds to the difference."""

    type: str
    a_s: float
    b_s: float
    difference_s: float
    share: float | None  # of the whole difference; None where the profiled steps do not differ as the timed ones do
    calls_a: float
    calls_b: float


def explanation(a: Sequence[Record], b: Sequence[Record], measured: float) -> list[Change]:
    """The op types that differ most, and those that only one side has; nothing where a side has no profile."""
    profiled = [[run for run in side if run.profile] for side in (a, b)]
    if not all(profiled):
        return []
    (ours, calls_a), (theirs, calls_b) = map(_op_types, profiled)
    whole = sum(theirs.values()) - sum(ours.values())
    changes = []
    for kind in ours | theirs:
        a_s, b_s = ours.get(kind, 0.0), theirs.get(kind, 0.0)
        share = (b_s - a_s) / whole if whole * (measured - 1) > 0 else None
        calls = {"calls_a": calls_a.get(kind, 0.0), "calls_b": calls_b.get(kind, 0.0)}
        changes.append(Change(type=kind, a_s=a_s, b_s=b_s, difference_s=b_s - a_s, share=share, **calls))
    changes.sort(key=lambda each: -abs(each.difference_s))
    least = LEAST * abs(changes[0].difference_s)
    large = [each for each in changes[:EXPLAINED] if abs(each.difference_s) > least]
    return large + [each for each in changes if each not in large and (each.calls_a == 0) != (each.calls_b == 0)]


def slowdown(runs: Sequence[Record]) -> float | None:
    """How many times as long profiled steps took as timed ones: the median over runs; None without profiles."""
    known = [factor for run in runs if run.profile and (factor := run.profile.slowdown)]
    return statistics.median(known) if known else None


def _op_types(runs: list[Record]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds and calls per step of each op type, and the seconds outside them: means over the runs."""
    group = RunGroup("", "", "", runs)
    calls: dict[str, float] = defaultdict(float)
    for profile in group.profiles:
        for row in profile.rows:
            calls[row.type] += row.calls / len(group.profiles)
    return group.seconds_by(op_type) | {OUTSIDE: group.outside_s}, calls
