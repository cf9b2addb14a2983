"""The steps of a trace, by the marks that Fathom or torch.profiler left in it."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fathom.trace.event_columns import EventColumns, Mask
from fathom.trace.intervals import Floats

STEP = "fathom.step"
PROFILER_STEP = "ProfilerStep#"
NO_STEP = -1
Window = tuple[float, float]  # begin and end, in the trace's microseconds


def is_step(name: str) -> bool:
    """Whether a mark is that of a step."""
    return name == STEP or name.startswith(PROFILER_STEP)


def usual(each: Collection[float]) -> float:
    """The sum over steps, had none been disturbed: as many as have anything, each with their median."""
    present = [value for value in each if value > 0]
    return statistics.median(present) * len(present) if present else 0.0


class Steps:
    """Windows in time, in order and without overlap."""

    def __init__(self, windows: Sequence[Window], waited: bool, marked: bool = True) -> None:
        self.windows = list(windows)
        self.waited = waited  # whether the GPU was waited for in every step: then all of a step's work is inside it
        self.marked = marked
        self._begins = [begin for begin, _ in windows]
        self._latest = 0  # the step that was found last: the next time asked for is most often in the same

    @classmethod
    def of(cls, columns: EventColumns, on_host: Mask) -> Steps:
        """By marks on the host; a trace without marks is one step."""
        if own := _windows(columns, on_host & columns.named(lambda name: name == STEP)):
            return cls(own, waited=True)
        marks = on_host & columns.named(lambda name: name.startswith(PROFILER_STEP))
        marks = _outermost(columns, _of_one_thread(columns, marks))
        theirs = _with_ops(_windows(columns, marks), columns)
        work = columns.on_gpu if theirs else columns.on_gpu | (on_host & ~columns.of_category("python_function"))
        windows = _whole(theirs, columns.begin[work], columns.end[work])
        windows = _without_gaps(windows, theirs, _lasts(columns, marks), columns.end[work])
        return cls(windows, waited=False, marked=bool(theirs))

    def __len__(self) -> int:
        return len(self.windows)

    def at(self, time: float) -> int | None:
        """The step at a time; None between steps."""
        if self.windows[self._latest][0] <= time < self.windows[self._latest][1]:
            return self._latest
        step = bisect_right(self._begins, time) - 1
        if step < 0 or time > self.windows[step][1]:
            return None
        self._latest = step
        return step

    def all_at(self, times: Floats) -> NDArray[np.int64]:
        """The steps at many times; NO_STEP between steps."""
        windows = np.array(self.windows)
        steps = np.searchsorted(windows[:, 0], times, side="right") - 1
        return np.where(times <= windows[steps, 1], steps, NO_STEP)  # before all it is NO_STEP already

    def first_after(self, begin: float, end: float) -> int:
        """The first step that begins after a time, but before another; NO_STEP where none does."""
        after = bisect_right(self._begins, begin)
        return after if after < len(self.windows) and self._begins[after] < end else NO_STEP

    def overlapping(self, begin: float, end: float) -> int | None:
        """The step in which an interval begins, or else the first that it reaches into."""
        step = self.at(begin)
        after = self.first_after(begin, end) if step is None else step
        return None if after == NO_STEP else after

    def extend(self, latest: Sequence[float]) -> None:
        """Makes every step last until a time, but not beyond the beginning of the next."""
        limits = [*self._begins[1:], float("inf")]
        self.windows = [
            (begin, max(end, min(last, limit)))
            for (begin, end), last, limit in zip(self.windows, latest, limits, strict=True)
        ]


def _of_one_thread(columns: EventColumns, marks: Mask) -> Mask:
    """Those of the thread that has most: each process of a merged trace marks its own steps."""
    threads = Counter((kind.process, kind.thread) for kind in map(columns.kinds.__getitem__, columns.kind[marks]))
    if len(threads) < 2:
        return marks
    most = max(threads, key=lambda each: threads[each])
    own = np.array([(kind.process, kind.thread) == most for kind in columns.kinds], dtype=np.bool_)
    chosen: Mask = marks & columns.each(own)
    return chosen


def _outermost(columns: EventColumns, marks: Mask) -> Mask:
    """Without those inside others: a user's own mark of a step, in the profiler's, is no further step."""
    index = np.flatnonzero(marks)
    index = index[np.lexsort((-columns.end[index], columns.begin[index]))]
    reached = np.maximum.accumulate(columns.end[index])
    inside = np.zeros(len(index), dtype=np.bool_)
    inside[1:] = (columns.end[index][1:] <= reached[:-1]) & (columns.begin[index][1:] < reached[:-1])
    found = marks.copy()
    found[index[inside]] = False
    return found


def _with_ops(marks: list[Window], columns: EventColumns) -> list[Window]:
    """Without marks at the end in which no op begins: the profiler marks a step that the loop did not make."""
    begins = columns.begin[columns.of_category("cpu_op")]
    made = [mark for mark in marks if len(begins) and mark[0] <= begins.max()]
    return made or marks


def _windows(columns: EventColumns, marks: Mask) -> list[Window]:
    return sorted(set(zip(columns.begin[marks].tolist(), columns.end[marks].tolist(), strict=True)))


def _whole(marks: list[Window], begins: Floats, ends: Floats) -> list[Window]:
    """Windows without gaps that hold all GPU work: a host that runs ahead marks a step's end before its last kernel."""
    if not marks:
        return [(float(begins.min()), float(ends.max()))] if len(begins) else [(0.0, 0.0)]
    first = float(begins.min(initial=marks[0][0]))
    last = float(ends.max(initial=marks[-1][1]))
    return list(pairwise([first, *(begin for begin, _ in marks[1:]), last]))


def _lasts(columns: EventColumns, marks: Mask) -> set[float]:
    """When steps end that are not followed by the next number: a file may hold several cycles of the profiler."""
    names = [columns.kinds[kind].name for kind in columns.kind[marks]]
    numbers = [(end, name.removeprefix(PROFILER_STEP)) for end, name in zip(columns.end[marks], names, strict=True)]
    known = sorted({(float(end), int(number)) for end, number in numbers if number.isdecimal()})
    return {end for (end, number), (_, after) in pairwise(known) if after != number + 1}


def _without_gaps(windows: list[Window], marks: list[Window], lasts: set[float], ends: Floats) -> list[Window]:
    """Less what was not recorded between the last step of a cycle and the first of the next."""
    found = windows.copy()
    for at, (_, marked) in enumerate(marks):
        if marked in lasts:
            begin, end = windows[at]
            found[at] = begin, float(ends[ends <= end].max(initial=marked))
    return found
