"""Op time and host waits by source line, for traces that have stacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from fathom.core.traced import SourceLine, Sources, Wait
from fathom.trace.calls import GpuActivity, OpCall
from fathom.trace.event import Event
from fathom.trace.reader import gc_disabled
from fathom.trace.rows import Breakdown
from fathom.trace.stacks import Place, has_call_stacks, has_frames, places
from fathom.trace.steps import Steps

LISTED = 100  # lines
LISTED_PARTS = 8  # op types and library functions of a line
LISTED_WAITS = 50


@dataclass
class _Total:
    seconds: float = 0.0
    backward_s: float = 0.0
    calls: int = 0
    types: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # op type -> seconds
    libraries: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@gc_disabled()
def sources(found: Breakdown) -> Sources | None:
    """Time by source line, the mean of the typical steps as in op rows; None without stacks and without waits."""
    columns = found.columns
    frames = has_frames(columns)
    exact = not frames and has_call_stacks(columns)
    waits = _waits(found)
    if not (frames or exact or waits):
        return None
    known: dict[int, Place] = {}
    if frames or exact:
        wanted = {id(call.event) for call in found.op_calls if call.event is not None}
        wanted |= {id(event) for event, _ in waits} | {id(each.launch) for each in _outside(found)}
        known = places(columns, wanted, exact)
    totals, unknown_s = _totals(found, known) if known else ({}, found.op_s())
    lines = sorted(totals, key=lambda line: -totals[line].seconds)
    steps = len(found.typical_steps)
    return Sources(
        lines=[_line(line, totals[line], steps) for line in lines[:LISTED]],
        other_s=sum(totals[line].seconds for line in lines[LISTED:]) / steps,
        unknown_s=unknown_s / steps,
        waits=_summed(waits, known, steps),
        exact=exact and bool(lines),
    )


def scaled(found: Sources, op_s: float) -> Sources:
    """The same shares of another total: of a pass that was slower, as it recorded stacks."""
    total = sum(line.seconds for line in found.lines) + found.other_s + found.unknown_s
    factor = op_s / total if total else 0.0
    lines = [
        replace(
            line,
            seconds=line.seconds * factor,
            backward_s=line.backward_s * factor,
            types={kind: seconds * factor for kind, seconds in line.types.items()},
            libraries={name: seconds * factor for name, seconds in line.libraries.items()},
        )
        for line in found.lines
    ]
    return replace(found, lines=lines, other_s=found.other_s * factor, unknown_s=found.unknown_s * factor)


def _totals(found: Breakdown, known: dict[int, Place]) -> tuple[dict[str, _Total], float]:
    """Line -> seconds of all typical steps, and those without a line."""
    totals: dict[str, _Total] = defaultdict(_Total)
    unknown_s, typical = 0.0, found.typical_steps
    for call, event, part in _parts(found):
        if call.step not in typical:
            continue
        seconds = (call.device_us if found.on_gpu else call.cpu_us) * part * 1e-6
        place = known.get(id(event))
        if place is None:
            unknown_s += seconds
            continue
        total = totals[place.line]
        total.seconds += seconds
        total.backward_s += seconds if call.phase == "backward" else 0.0
        total.calls += 1 if call.kernel_only else call.calls
        total.types[call.type] += seconds
        if place.library:
            total.libraries[place.library] += seconds
    return totals, unknown_s


def _parts(found: Breakdown) -> Iterable[tuple[OpCall, Event | None, float]]:
    """Op calls with their events. Kernels that no op launched share a call and may be launched at several lines."""
    for call in found.op_calls:
        if not call.kernel_only:
            yield call, call.event, 1.0
    launched: dict[int, list[tuple[float, Event | None]]] = defaultdict(list)
    for activity in _outside(found):
        launched[id(activity.op_call)].append((activity.end - activity.begin, activity.launch))
    for call in found.op_calls:
        if call.kernel_only:
            parts = launched.get(id(call), [])
            total = sum(duration for duration, _ in parts)
            if not total:
                yield call, None, 1.0
            for duration, event in parts if total else []:
                yield call, event, duration / total


def _outside(found: Breakdown) -> Iterator[GpuActivity]:
    """The activities that no op launched."""
    return (each for each in found.gpu_activities if each.op_call is not None and each.op_call.kernel_only)


def _line(line: str, total: _Total, steps: int) -> SourceLine:
    return SourceLine(
        line=line,
        seconds=total.seconds / steps,
        backward_s=total.backward_s / steps,
        calls=total.calls / steps,
        types=_longest(total.types, steps),
        libraries=_longest(total.libraries, steps),
    )


def _longest(seconds: Mapping[str, float], steps: int) -> dict[str, float]:
    names = sorted(seconds, key=lambda name: -seconds[name])
    return {name: seconds[name] / steps for name in names[:LISTED_PARTS]}


def _waits(found: Breakdown) -> list[tuple[Event, OpCall | None]]:
    """In typical steps. Where Fathom made the trace, the last wait outside ops ends the step and is Fathom's own."""
    steps, typical = Steps(found.steps, waited=False), found.typical_steps
    kept, last_outside = [], dict[int, Event]()
    for event, call in found.waits:
        step = steps.at(event.ts)
        if step is not None and step in typical:
            kept.append((event, call))
            if call is None and event.ts >= last_outside.get(step, event).ts:
                last_outside[step] = event
    own = set() if found.all_steps else {id(event) for event in last_outside.values()}
    return [(event, call) for event, call in kept if id(event) not in own]


def _summed(waits: Iterable[tuple[Event, OpCall | None]], known: dict[int, Place], steps: int) -> list[Wait]:
    totals: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event, call in waits:
        place = known.get(id(event)) or known.get(id(call.event) if call else 0) or Place()
        total = totals[event.name, call.op if call else "", place.line]
        total[0] += 1
        total[1] += event.dur
    found = [
        Wait(call=name, op=op, line=line, calls=count / steps, seconds=time / steps * 1e-6)
        for (name, op, line), (count, time) in totals.items()
    ]
    return sorted(found, key=lambda wait: -wait.seconds)[:LISTED_WAITS]
