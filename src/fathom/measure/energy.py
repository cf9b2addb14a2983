"""From samples of meters to the energy of a run's measured steps: counters first, integrated power second."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from fathom.core.energy import COUNTER, IDLE, STEPS, Energy, MeterEnergy, PowerTrace, Stretch
from fathom.machine.sampler import Samples


def energy_of(samples: Samples, moments: Sequence[tuple[str, float, float]], steps: int) -> Energy | None:
    """The energy of the stretch "steps"; moments are named stretches on the clock of time.monotonic().

    None where no meter has two readings in it.
    """
    begun = min(begin for _, begin, _ in moments)
    stretches = [Stretch(name=name, begin_s=begin - begun, end_s=end - begun) for name, begin, end in moments]
    window = next(stretch for stretch in stretches if stretch.name == STEPS)
    idle = next((stretch for stretch in stretches if stretch.name == IDLE), None)
    traces = samples.traces(begun)
    parts = [part for trace in traces if (part := _part(trace, window, idle)) is not None]
    if not parts:
        return None
    return Energy(
        window_s=window.end_s - window.begin_s,
        steps=steps,
        parts=parts,
        period_s=samples.period_s,
        sampler_cpu_s=samples.cpu_s(begun + window.begin_s, begun + window.end_s),
        stretches=stretches,
        traces=traces,
    )


def _part(trace: PowerTrace, window: Stretch, idle: Stretch | None) -> MeterEnergy | None:
    watts = _integrated(trace, window)
    counted = _counted(trace, window)
    joules = counted if counted is not None else watts
    if joules is None:
        return None
    inside = [
        power
        for at, power in zip(trace.seconds, trace.watts, strict=bool(trace.watts))
        if power is not None and window.begin_s <= at <= window.end_s
    ]
    idle_j = None if idle is None else _counted(trace, idle) or _integrated(trace, idle)
    return MeterEnergy(
        meter=trace.meter,
        scope=trace.scope,
        kind=trace.kind,
        joules=joules,
        mean_w=joules / (window.end_s - window.begin_s),
        peak_w=max(inside, default=None),
        idle_w=None if idle is None or idle_j is None else idle_j / (idle.end_s - idle.begin_s),
        integrated_j=watts if counted is not None else None,
        updates=_updates(trace, window) if trace.kind == COUNTER else 0,
    )


def _counted(trace: PowerTrace, window: Stretch) -> float | None:
    """By the counter, as a straight line between its updates: it stands still for a tenth of a second."""
    points = _changes(trace)
    ends = [_at(points, moment) for moment in (window.begin_s, window.end_s)]
    return None if ends[0] is None or ends[1] is None else ends[1] - ends[0]


def _changes(trace: PowerTrace) -> list[tuple[float, float]]:
    """When the counter was seen to change, and to what."""
    read = [(at, joules) for at, joules in zip(trace.seconds, trace.joules, strict=False) if joules is not None]
    return read[:1] + [after for before, after in pairwise(read) if after[1] != before[1]]


def _updates(trace: PowerTrace, window: Stretch) -> int:
    return sum(window.begin_s <= at <= window.end_s for at, _ in _changes(trace)[1:])


def _integrated(trace: PowerTrace, window: Stretch) -> float | None:
    """The integral of power over the window, by the trapezoidal rule."""
    read = [(at, watts) for at, watts in zip(trace.seconds, trace.watts, strict=False) if watts is not None]
    ends = [_at(read, moment) for moment in (window.begin_s, window.end_s)]
    if ends[0] is None or ends[1] is None:
        return None
    inside = [(at, watts) for at, watts in read if window.begin_s < at < window.end_s]
    points = [(window.begin_s, ends[0]), *inside, (window.end_s, ends[1])]
    return sum((later[0] - earlier[0]) * (earlier[1] + later[1]) / 2 for earlier, later in pairwise(points))


def _at(points: Sequence[tuple[float, float]], moment: float) -> float | None:
    """The value at a moment, on a line between the points around it; None before the first and after the last."""
    for earlier, later in pairwise(points):
        if earlier[0] <= moment <= later[0]:
            share = (moment - earlier[0]) / (later[0] - earlier[0]) if later[0] > earlier[0] else 0.0
            return earlier[1] + share * (later[1] - earlier[1])
    return None


def least_updates(samples: Samples | None, begin: float, end: float) -> int | None:
    """Of the counter with the fewest, between two moments of time.monotonic(); None where nothing counts."""
    counters = [trace for trace in samples.traces(begin) if trace.kind == COUNTER] if samples else []
    window = Stretch(name=STEPS, begin_s=0.0, end_s=end - begin)
    return min((_updates(trace, window) for trace in counters), default=None)


def period_of(trace: PowerTrace) -> float | None:
    """How far apart the samples really were, in the median."""
    apart = [later - earlier for earlier, later in pairwise(trace.seconds)]
    return statistics.median(apart) if apart else None
