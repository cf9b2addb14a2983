"""From samples of meters to the energy of a run's measured steps: counters first, integrated power second.

A window ends where the steps end, and there power falls: so readings beyond its ends are not mixed in. The counter
is continued from its last update inside to the window's end, and power is held, as far as the next reading would have
come; beyond that the window is not covered, which the record says, and where too much is missing there is no number.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fathom.core.energy import (
    BOARD,
    COUNTER,
    ESTIMATE,
    IDLE,
    LARGEST_UNCOVERED,
    POINTS,
    POWER,
    STEPS,
    Energy,
    MeterEnergy,
    PowerTrace,
    Stretch,
)
from fathom.machine.sampler import Samples

REACH = 3  # times the usual distance of readings: so far they speak for what lies beside them
SLOPE = 5  # updates of a counter that tell its slope at an end of the window
LARGEST_FILLED = 0.1  # of the window; where readings are missing for more, there is no number

Points = Sequence[tuple[float, float]]  # seconds and joules, or watts


def energy_of(
    samples: Samples, moments: Sequence[tuple[str, float, float]], steps: int, most_points: int | None = POINTS
) -> Energy | None:
    """The energy of the stretches "steps"; moments are named stretches on the clock of time.monotonic().

    There may be several of them: what was done between two of them is no step's. Traces are thinned to most_points.
    None where no meter covers them; missing() says why.
    """
    begun, stretches = _stretches(moments, samples)
    windows = [stretch for stretch in stretches if stretch.name == STEPS]
    traces = samples.traces(begun)
    parts, problems = _judged(traces, stretches)
    if not parts:
        return None
    return Energy(
        window_s=_length(windows),
        steps=steps,
        parts=parts,
        period_s=samples.period_s,
        sampler_cpu_s=samples.cpu_s(begun + windows[0].begin_s, begun + windows[-1].end_s),
        stretches=stretches,
        traces=traces if most_points is None else [trace.thinned(most_points) for trace in traces],
        problems=[*samples.problems, *problems],
    )


def missing(samples: Samples, moments: Sequence[tuple[str, float, float]]) -> list[str]:
    """Why energy_of() gives nothing, or less than all meters that there are."""
    begun, stretches = _stretches(moments, samples)
    return [*samples.problems, *_judged(samples.traces(begun), stretches)[1]]


def least_updates(samples: Samples | None, begin: float, end: float) -> int | None:
    """Of the meter with the fewest updates between two moments of time.monotonic(); None where nothing is metered.

    An estimate is made anew as often as it is asked for, and a board's sensor does not count beside others.
    """
    traces = [trace for trace in samples.traces(begin) if trace.kind != ESTIMATE] if samples else []
    devices = [trace for trace in traces if trace.scope != BOARD] or traces
    window = [Stretch(name=STEPS, begin_s=0.0, end_s=end - begin)]
    return min((len(_within(_renewed(trace), window)) for trace in devices), default=None)


def _stretches(moments: Sequence[tuple[str, float, float]], samples: Samples) -> tuple[float, list[Stretch]]:
    """When the first one or the first sample began, and all of them on a clock that begins there."""
    begun = min([*(begin for _, begin, _ in moments), *(sample.at for sample in samples.samples[:1])])
    return begun, [Stretch(name=name, begin_s=begin - begun, end_s=end - begun) for name, begin, end in moments]


def _judged(traces: Sequence[PowerTrace], stretches: Sequence[Stretch]) -> tuple[list[MeterEnergy], list[str]]:
    """What each meter counted, and why some did not."""
    windows = [stretch for stretch in stretches if stretch.name == STEPS]
    idle = [stretch for stretch in stretches if stretch.name == IDLE]
    parts, problems = [], []
    for trace in traces:
        part = _part(trace, windows, idle)
        if isinstance(part, MeterEnergy):
            parts.append(part)
        elif trace.scope != BOARD or all(each.scope == BOARD for each in traces):
            # a board's is beside the others, and may be slower than the run
            problems.append(part)
    return parts, problems


@dataclass(frozen=True)
class _Sum:
    """What was counted or integrated over windows, and how much of them had no readings."""

    joules: float
    uncovered_s: float


def _part(trace: PowerTrace, windows: Sequence[Stretch], idle: Sequence[Stretch]) -> MeterEnergy | str:
    """The energy of one meter; in words, why there is none."""
    name, length = f"{trace.scope} ({trace.meter})", _length(windows)
    updates, watts = _updates(trace), _points(trace.seconds, trace.watts)
    counted = _over(windows, updates, _counted)
    integrated = _over(windows, watts, _integrated)
    found = counted or integrated
    if found is None:
        return f"no readings of {name} while the steps ran"
    if found.uncovered_s > LARGEST_FILLED * length:
        return (
            f"{length - found.uncovered_s:.3g} of {length:.3g} s covered by readings of {name}: its energy is not known"
        )
    compared = integrated if counted and integrated and integrated.uncovered_s <= LARGEST_UNCOVERED * length else None
    inside = [power for _, power in _within(watts, windows)]
    return MeterEnergy(
        meter=trace.meter,
        scope=trace.scope,
        kind=POWER if trace.kind == COUNTER and counted is None else trace.kind,
        joules=found.joules,
        mean_w=found.joules / length,
        peak_w=max(inside, default=None),
        idle_w=_mean_w(idle, updates, watts),
        integrated_j=compared.joules if compared else None,
        updates=len(_within(_renewed(trace), windows)),
        uncovered_s=found.uncovered_s,
    )


def _mean_w(stretches: Sequence[Stretch], updates: Points, watts: Points) -> float | None:
    found = _over(stretches, updates, _counted) or _over(stretches, watts, _integrated)
    if found is None or found.uncovered_s > LARGEST_FILLED * _length(stretches):
        return None
    return found.joules / _length(stretches)


def _over(windows: Sequence[Stretch], points: Points, count: Callable[[Points, Stretch], _Sum | None]) -> _Sum | None:
    """Over all windows; one that nothing is known of is not covered. None where that is all of them."""
    found = [(window, count(points, window)) for window in windows]
    known = [each for _, each in found if each is not None]
    if not known:
        return None
    missing = _length([window for window, each in found if each is None])
    return _Sum(sum(each.joules for each in known), missing + sum(each.uncovered_s for each in known))


def _counted(updates: Points, window: Stretch) -> _Sum | None:
    """By the counter: its rise from the first to the last update inside, and what lies between these and the ends."""
    inside = _within(updates[1:], [window])  # the first reading is no update: the counter may have stood for long
    if any(after[1] < before[1] for before, after in pairwise(updates)):
        return None  # it was set back, and its rise is not known
    reach = REACH * _usual_distance(updates)
    if len(inside) < 2:
        begin, end = (_between(updates, moment, reach) for moment in (window.begin_s, window.end_s))
        return None if begin is None or end is None else _Sum(end - begin, 0.0)
    before = [update for update in updates if update[0] < window.begin_s]
    after = [update for update in updates if update[0] > window.end_s]
    begin, head_s = _at_end(inside, before[-1:], window.begin_s, reach)
    end, tail_s = _at_end(inside[::-1], after[:1], window.end_s, reach)
    return _Sum(end - begin, head_s + tail_s)


def _at_end(inwards: Points, beyond: Points, moment: float, reach: float) -> tuple[float, float]:
    """The counter at an end of the window, and how much of the window before or after that is not covered.

    It is continued with the slope of the nearest updates inside, and never beyond the next one outside. Where the
    nearest one inside is far away and there is one outside, sampling paused and the counter went on: a line joins them,
    and what of the window it crosses is not covered, as power may have changed there.
    """
    (at, joules), (far_at, far_joules) = inwards[0], inwards[min(SLOPE, len(inwards) - 1)]
    away = abs(moment - at)
    if beyond and away > reach:
        value = _between(sorted([*beyond, inwards[0]]), moment)
        assert value is not None
        return value, away
    value = joules + (far_joules - joules) / (far_at - at) * (moment - at)
    if beyond:
        low, high = sorted((joules, beyond[0][1]))
        value = min(max(value, low), high)
    return value, away if away > reach else 0.0


def _integrated(watts: Points, window: Stretch) -> _Sum | None:
    """The integral of power by the trapezoidal rule; at the ends it is what the nearest reading inside shows."""
    reach = REACH * _usual_distance(watts)
    inside = _within(watts, [window])
    if not inside:
        ends = [_between(watts, moment, reach) for moment in (window.begin_s, window.end_s)]
        if ends[0] is None or ends[1] is None:
            return None
        return _Sum((ends[0] + ends[1]) / 2 * (window.end_s - window.begin_s), 0.0)
    points = [(window.begin_s, inside[0][1]), *inside, (window.end_s, inside[-1][1])]
    pieces = [(later[0] - earlier[0], (earlier[1] + later[1]) / 2) for earlier, later in pairwise(points)]
    return _Sum(sum(long * power for long, power in pieces), sum(long for long, _ in pieces if long > reach))


def _updates(trace: PowerTrace) -> Points:
    """The counter's first reading, and when it was seen to change, and to what."""
    read = _points(trace.seconds, trace.joules)
    return [*read[:1], *(after for before, after in pairwise(read) if after[1] != before[1])]


def _renewed(trace: PowerTrace) -> Points:
    """When a meter showed something new: an update of its counter, or a reading of its power."""
    return _updates(trace)[1:] if trace.kind == COUNTER else _points(trace.seconds, trace.watts)


def _points(seconds: Sequence[float], values: Sequence[float | None]) -> Points:
    """Readings in the order of time; a column that the meter does not show is empty."""
    return (
        [(at, value) for at, value in zip(seconds, values, strict=bool(values)) if value is not None] if values else []
    )


def _within(points: Points, windows: Iterable[Stretch]) -> Points:
    return [point for window in windows for point in points if window.begin_s <= point[0] <= window.end_s]


def _between(points: Points, moment: float, furthest: float = float("inf")) -> float | None:
    """On a line between the points around it; None before the first and after the last, or where they are far apart."""
    for earlier, later in pairwise(points):
        if earlier[0] <= moment <= later[0] and later[0] - earlier[0] <= furthest:
            share = (moment - earlier[0]) / (later[0] - earlier[0]) if later[0] > earlier[0] else 0.0
            return earlier[1] + share * (later[1] - earlier[1])
    return None


def _usual_distance(points: Points) -> float:
    apart = [later[0] - earlier[0] for earlier, later in pairwise(points)]
    return statistics.median(apart) if apart else 0.0


def _length(stretches: Sequence[Stretch]) -> float:
    return sum(stretch.end_s - stretch.begin_s for stretch in stretches)
