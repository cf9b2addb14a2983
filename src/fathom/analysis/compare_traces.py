"""Two runs that were traced, compared by op type and by kernel: time per step, difference, and how sure it is.

A side is one trace, or those of all ranks. Of one trace with enough steps a difference has an interval over steps,
which holds within these two processes; of several ranks it has the range over ranks instead.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from fathom.analysis.correlated import CONFIDENCE, SHORT, inflation
from fathom.analysis.ranks import Spread
from fathom.core.record import Profile, Record

OUTSIDE = "outside ops"
STEP = "step"


@dataclass(frozen=True, kw_only=True)
class TraceChange:
    """One op type, kernel, or all of a step; seconds per step, of several ranks the median."""

    name: str
    a_s: float
    b_s: float
    difference_s: float  # of several ranks the median of their differences
    calls_a: float
    calls_b: float
    interval_s: tuple[float, float] | None = None  # of the difference, 95 %; None where steps are too few, or of ranks
    ranks: Spread | None = None  # of the difference over ranks; None for one trace, or where ranks do not pair up


@dataclass(frozen=True, kw_only=True)
class TraceComparison:
    """All of it, largest differences first."""

    traces_a: int
    traces_b: int
    steps_a: int  # in the trace that has fewest
    steps_b: int
    step: TraceChange
    types: list[TraceChange]
    kernels: list[TraceChange]
    notes: list[str]


@dataclass(frozen=True)
class _Part:
    """Seconds and calls per step, and the seconds of each step where they are known."""

    seconds: float = 0.0
    calls: float = 0.0
    series: tuple[float, ...] = ()


Parts = dict[str, _Part]
NOTHING = _Part()


def compare_traces(a: Sequence[Record], b: Sequence[Record]) -> TraceComparison:
    """Of records with a profile each."""
    ours, theirs = ([record.profile for record in side if record.profile] for side in (a, b))
    ranks = _ranks(ours)
    paired = ranks == _ranks(theirs)

    def changes(parts: Callable[[Profile], Parts]) -> list[TraceChange]:
        before, after = [parts(profile) for profile in ours], [parts(profile) for profile in theirs]
        names = dict.fromkeys(name for each in (*before, *after) for name in each)
        found = [
            _change(
                name,
                [each.get(name, NOTHING) for each in before],
                [each.get(name, NOTHING) for each in after],
                ranks if paired else [],
            )
            for name in names
        ]
        return sorted(found, key=lambda each: -abs(each.difference_s))

    return TraceComparison(
        traces_a=len(ours),
        traces_b=len(theirs),
        steps_a=min(len(profile.step_s) for profile in ours),
        steps_b=min(len(profile.step_s) for profile in theirs),
        step=changes(_step)[0],
        types=changes(_types),
        kernels=changes(_kernels),
        notes=_notes(a, b, paired),
    )


def _ranks(profiles: Sequence[Profile]) -> list[int]:
    """What pairs traces of both sides up: ranks, or their positions; a single trace pairs up whatever its rank."""
    ranks = [profile.depth.rank for profile in profiles if profile.depth and profile.depth.rank is not None]
    return ranks if len(ranks) == len(profiles) > 1 else list(range(len(profiles)))


def _step(profile: Profile) -> Parts:
    whole = sum(map(profile.seconds, profile.rows)) + profile.outside_s
    return {STEP: _Part(whole, 1.0, tuple(profile.step_s))}


def _types(profile: Profile) -> Parts:
    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, float] = defaultdict(float)
    for row in profile.rows:
        seconds[row.type] += profile.seconds(row)
        calls[row.type] += row.calls
    found = {name: _Part(time, calls[name], tuple(profile.per_step_s.get(name, ()))) for name, time in seconds.items()}
    return found | {OUTSIDE: _Part(profile.outside_s)}


def _kernels(profile: Profile) -> Parts:
    found: Parts = {}
    for kernel in profile.kernels:
        before = found.get(kernel.name, NOTHING)
        found[kernel.name] = _Part(before.seconds + kernel.device_s, before.calls + kernel.calls)
    return found


def _change(name: str, a: Sequence[_Part], b: Sequence[_Part], ranks: Sequence[int]) -> TraceChange:
    a_s, b_s = (statistics.median(each.seconds for each in side) for side in (a, b))
    differences = {rank: after.seconds - before.seconds for rank, before, after in zip(ranks, a, b, strict=bool(ranks))}
    alone = len(a) == len(b) == 1
    return TraceChange(
        name=name,
        a_s=a_s,
        b_s=b_s,
        difference_s=statistics.median(differences.values()) if differences else b_s - a_s,
        calls_a=statistics.median(each.calls for each in a),
        calls_b=statistics.median(each.calls for each in b),
        interval_s=_interval(a[0].series, b[0].series, b_s - a_s) if alone else None,
        ranks=Spread.of(differences) if len(differences) > 1 else None,
    )


def _interval(a: Sequence[float], b: Sequence[float], difference: float) -> tuple[float, float] | None:
    """By Welch's t, with as many steps as the correlated ones are worth."""
    if min(len(a), len(b)) < SHORT:
        return None
    squares, freedom = [], []
    for values in (np.asarray(a), np.asarray(b)):
        worth = max(2.0, len(values) / inflation(values - np.median(values)))
        squares.append(float(values.var(ddof=1)) / worth)
        freedom.append(worth - 1)
    variance = sum(squares)
    if variance == 0:
        return difference, difference
    degrees = variance**2 / sum(square**2 / each for square, each in zip(squares, freedom, strict=True))
    reach = float(special.stdtrit(degrees, (1 + CONFIDENCE) / 2)) * variance**0.5
    return difference - reach, difference + reach


def _notes(a: Sequence[Record], b: Sequence[Record], paired: bool) -> list[str]:
    found = []
    if not paired:
        found.append(f"{len(a)} traces in A and {len(b)} in B, of different ranks: medians over ranks are compared")
    elif len(a) > 1:
        found.append("times are medians over ranks, differences the median of the ranks' own")
    for name, side in (("A", a), ("B", b)):
        if any(record.profile and len(record.profile.step_s) < SHORT for record in side) and len(side) == 1:
            found.append(f"fewer than {SHORT} steps in {name}: no interval")
    gpus = [sorted({str(gpu.name) for record in side for gpu in record.machine.gpus}) for side in (a, b)]
    if gpus[0] != gpus[1]:
        found.append(f"different GPUs: {', '.join(gpus[0]) or 'none'} in A, {', '.join(gpus[1]) or 'none'} in B")
    phases = [sorted({record.spec.phase for record in side}) for side in (a, b)]
    if phases[0] != phases[1]:
        found.append(f"different phases: {', '.join(phases[0])} in A, {', '.join(phases[1])} in B")
    return found
