"""Time outside ops by the Python function that ran, for traces that have Python's functions as events.

On a GPU it is the time in which the GPU has nothing to do, as the next kernel was not launched yet, while the host is
in no op either. What runs then is read from one thread, that of the training loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import numpy as np

from fathom.core.traced import OutsidePart
from fathom.trace.event import Event
from fathom.trace.event_columns import EventColumns, Integers
from fathom.trace.gputime import starved_gaps
from fathom.trace.host import HostTime
from fathom.trace.intervals import Floats, Intervals
from fathom.trace.marks import is_mark
from fathom.trace.owners import FRAMEWORK, HARNESS, NO_SOURCE, is_torch, owner_of
from fathom.trace.rows import Breakdown
from fathom.trace.stacks import Place
from fathom.trace.steps import is_step, usual

LISTED = 200  # parts
TORCH = "torch"  # all of its functions together
# "<built-in method get of dict object at 0x7f>", "<built-in function sleep>"
BUILT_IN = re.compile(r"<built-in (?:function|method) (?P<name>[^ >]+)(?: of (?:type|(?P<kind>\S+)) object.*)?>")
# Fathom's functions that write marks for the profiler: no part of a plain step
RECORDING = ("fathom/measure/profiling.py(", "fathom/engine/marks.py(")


class _Where(NamedTuple):
    """What a moment of the host counts for."""

    place: Place = Place()
    callee: str = ""  # below the place's line
    in_torch: bool = False
    built_in: bool = False
    recording: bool = False

    def calling(self, name: str) -> _Where:
        owner = owner_of(name)
        if owner == NO_SOURCE:
            found = BUILT_IN.fullmatch(name)
            if found is None or self.callee or self.in_torch:
                return self._replace(built_in=False)
            short = ".".join(part for part in (found["kind"], found["name"]) if part)
            return self._replace(callee=short, built_in=True)
        if owner == FRAMEWORK and not is_torch(name) and self.callee and not self.built_in:
            return self  # Python's own library, for a function of a library or of torch
        place = self.place.inside(name)
        callee = "" if place.line == name else TORCH if is_torch(name) else name
        recording = self.recording if owner == FRAMEWORK else owner == HARNESS and name.startswith(RECORDING)
        return _Where(place, callee, is_torch(name), recording=recording)

    def running_an_op(self) -> _Where:
        """A function in C that runs an op is torch's."""
        return self._replace(callee=TORCH, in_torch=True, built_in=False) if self.built_in else self

    def part(self) -> tuple[str, str, bool]:
        return self.place.line, self.callee, self.in_torch


@dataclass(frozen=True)
class _Swept:
    """One thread in time, without gaps or overlap, and the calls that were recorded of it."""

    where: list[_Where]
    begins: Floats
    ends: Floats
    running: Integers  # from begin to end: an index into where
    called: Floats  # when
    calls: Integers  # what: an index into where
    layers: frozenset[str]  # functions of libraries in which ops ran

    @classmethod
    def of(cls, events: Iterable[Event]) -> _Swept:
        where, known = [_Where()], dict[tuple[_Where, str], _Where]()
        stack: list[tuple[float, int]] = [(float("inf"), 0)]  # until when, and where
        borders: list[tuple[float, int]] = []  # from when on something runs
        calls: list[tuple[float, int]] = []
        layers = set[str]()
        for event in events:
            while stack[-1][0] <= event.ts:
                end, _ = stack.pop()
                borders.append((end, stack[-1][1]))
            outer_end, top = stack[-1]
            if event.cat != "python_function":
                where[top] = where[top].running_an_op()
                layers.update(where[number].callee for _, number in stack)
                calls.append((event.ts, top))
                continue
            key = where[top], event.name
            if key not in known:
                known[key] = where[top].calling(event.name)
            where.append(known[key])
            stack.append((min(event.end, outer_end), len(where) - 1))
            borders.append((event.ts, len(where) - 1))
            calls.append((event.ts, len(where) - 1))
        borders += [(end, stack[depth - 1][1]) for depth, (end, _) in reversed(list(enumerate(stack))) if depth]
        times, running = _columns(borders)
        return cls(where, times[:-1], times[1:], running[:-1], *_columns(calls), frozenset(layers - {""}))


def _columns(pairs: Sequence[tuple[float, int]]) -> tuple[Floats, Integers]:
    table = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1].astype(np.int64)


def outside_parts(found: Breakdown, *, robust: bool) -> list[OutsidePart]:
    """Of a typical step: the mean, or where one disturbed step of few is not to decide, by the medians over steps."""
    events = _loop_thread(found.columns)
    if not events:
        return []
    swept, idle, steps = _Swept.of(events), _idle(found), sorted(found.typical_steps)
    names: dict[tuple[str, str, bool] | None, int] = {("", "", False): 0}  # the parts; None is Fathom's recording
    part_of = [names.setdefault(None if at.recording else at.part(), len(names)) for at in swept.where]
    us, calls = _by_step(swept, np.array(part_of), idle, [found.steps[step] for step in steps], len(names))
    seconds = [usual(each) if robust else sum(each) for each in us.T.tolist()]
    parts = [
        OutsidePart(
            line=name[0],
            callee=name[1],
            in_torch=name[2] or name[1] in swept.layers,
            seconds=total / len(steps) * 1e-6,
            calls=count,
        )
        for name, total, count in zip(names, seconds, calls.mean(axis=0).tolist(), strict=True)
        if name is not None and (total > 0 or count > 0)
    ]
    parts.sort(key=lambda part: -part.seconds)
    return [*parts[:LISTED], *_together(parts[LISTED:])]


def _by_step(
    swept: _Swept, part_of: Integers, idle: Intervals, windows: Sequence[tuple[float, float]], parts: int
) -> tuple[Floats, Floats]:
    """Microseconds and calls, a row for each window and a column for each part."""
    us, calls = np.zeros((len(windows), parts)), np.zeros((len(windows), parts))
    counted = idle.touch(swept.called)
    for row, (begin, end) in enumerate(windows):
        inside = slice(np.searchsorted(swept.ends, begin), np.searchsorted(swept.begins, end))
        spent = idle.within(np.clip(swept.begins[inside], begin, end), np.clip(swept.ends[inside], begin, end))
        us[row] = np.bincount(part_of[swept.running[inside]], spent, minlength=parts)
        us[row, 0] += idle.within(np.array([begin]), np.array([end]))[0] - spent.sum()  # before and after all functions
        own = counted & (swept.called >= begin) & (swept.called < end)
        calls[row] = np.bincount(part_of[swept.calls[own]], minlength=parts)
    return np.maximum(us, 0.0), calls


def _together(parts: Sequence[OutsidePart]) -> list[OutsidePart]:
    """What is not listed, as one part without a line."""
    seconds, calls = sum(part.seconds for part in parts), sum(part.calls for part in parts)
    return [OutsidePart(line="", callee="", in_torch=False, seconds=seconds, calls=calls)] if parts else []


def _idle(found: Breakdown) -> Intervals:
    """In typical steps: on a CPU no op of any thread runs; on a GPU, see above."""
    windows, host = [found.steps[step] for step in sorted(found.typical_steps)], HostTime(found.columns)
    if found.on_gpu:
        return host.outside(Intervals.of(starved_gaps(found.gpu_activities, windows)))
    return Intervals.of(windows) - host.in_ops()


def _loop_thread(columns: EventColumns) -> list[Event]:
    """Python's functions and ops of the thread that marks the steps, or else that has most of such events."""
    functions, marks = columns.of_category("python_function"), columns.named(is_step) & ~columns.on_gpu
    ops = columns.of_category("cpu_op") & ~columns.named(is_mark)
    threads = [index for index in columns.nested(functions | ops | marks) if functions[index].any()]
    index = max(threads, key=lambda index: (bool(marks[index].any()), len(index)), default=None)
    return [] if index is None else list(compress(columns.at(index), (functions | ops)[index].tolist()))
