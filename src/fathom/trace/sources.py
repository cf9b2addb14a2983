"""Op time and host waits by source line, for traces that have stacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fathom.core.record import Profile
from fathom.core.traced import SourceLine, Sources, Wait
from fathom.trace.calls import GpuActivity, OpCall
from fathom.trace.event import Event
from fathom.trace.outside import outside_parts
from fathom.trace.reader import gc_disabled
from fathom.trace.rows import Breakdown
from fathom.trace.stacks import Place, has_call_stacks, has_frames, places
from fathom.trace.steps import Steps, usual

LISTED = 100  # lines
LISTED_PARTS = 8  # op types and library functions of a line
LISTED_WAITS = 50
Row = tuple[str, str, str]  # op, layer and phase


class _Calls(NamedTuple):
    """Op calls of one kind at one place; one op, layer and phase is a row, or several of different shapes."""

    op: str
    layer: str
    phase: str
    type: str
    place: Place  # without a line where the trace has no stack

    @property
    def row(self) -> Row:
        return self.op, self.layer, self.phase


@dataclass
class _Spent:
    calls: int = 0
    seconds: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # by step

    @property
    def usual_s(self) -> float:
        return usual(self.seconds.values())


@dataclass
class _Total:
    seconds: float = 0.0
    backward_s: float = 0.0
    calls: int = 0
    types: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # op type -> seconds
    libraries: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@gc_disabled()
def sources(found: Breakdown, rows_of: Profile | None = None) -> Sources | None:
    """Time by source line, the mean of the typical steps as in op rows; None without stacks and without waits.

    The rows of a longer pass are divided among the lines as in this one: each by the medians over the steps, as one
    disturbed step of three would else decide.
    """
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
    spent, steps = _spent(found, known), len(found.typical_steps)
    seconds = {calls: sum(each.seconds.values()) for calls, each in spent.items()}
    missing_s = 0.0
    if rows_of is not None:
        row_s = _by_row(((row.op, row.layer, row.phase), rows_of.seconds(row) * steps) for row in rows_of.rows)
        seconds, missing_s = _divided(row_s, spent)
    totals = _totals(spent, seconds)
    unknown = totals.pop("", _Total())
    lines = sorted(totals, key=lambda line: -totals[line].seconds)
    return Sources(
        lines=[_line(line, totals[line], steps) for line in lines[:LISTED]],
        other_s=sum(totals[line].seconds for line in lines[LISTED:]) / steps,
        unknown_s=(unknown.seconds + missing_s) / steps,
        waits=_summed(waits, known, steps),
        exact=exact and bool(lines),
        outside=outside_parts(found, robust=rows_of is not None),
    )


def _spent(found: Breakdown, known: Mapping[int, Place]) -> dict[_Calls, _Spent]:
    """In the typical steps."""
    spent: dict[_Calls, _Spent] = defaultdict(_Spent)
    typical = found.typical_steps
    for call, event, part in _parts(found):
        if call.step in typical:
            place = known.get(id(event), Place())
            each = spent[_Calls(call.op, call.layer, call.phase, call.type, place)]
            each.calls += 1 if call.kernel_only else call.calls
            each.seconds[call.step] += (call.device_us if found.on_gpu else call.cpu_us) * part * 1e-6
    return spent


def _divided(row_s: Mapping[Row, float], spent: Mapping[_Calls, _Spent]) -> tuple[dict[_Calls, float], float]:
    """The time of rows among the calls that they are of, and that of rows of none of them."""
    usual_s = _by_row((calls.row, each.usual_s) for calls, each in spent.items())
    parts = {row: row_s.get(row, 0.0) / whole for row, whole in usual_s.items() if whole}
    divided = {calls: each.usual_s * parts.get(calls.row, 0.0) for calls, each in spent.items()}
    return divided, sum(seconds for row, seconds in row_s.items() if row not in parts)


def _by_row(parts: Iterable[tuple[Row, float]]) -> dict[Row, float]:
    found: dict[Row, float] = defaultdict(float)
    for row, seconds in parts:
        found[row] += seconds
    return found


def _totals(spent: Mapping[_Calls, _Spent], seconds: Mapping[_Calls, float]) -> dict[str, _Total]:
    """By line; those of calls without a stack under ""."""
    totals: dict[str, _Total] = defaultdict(_Total)
    for calls, each in spent.items():
        total, own_s = totals[calls.place.line], seconds[calls]
        total.seconds += own_s
        total.backward_s += own_s if calls.phase == "backward" else 0.0
        total.calls += each.calls
        total.types[calls.type] += own_s
        if calls.place.library:
            total.libraries[calls.place.library] += own_s
    return totals


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
