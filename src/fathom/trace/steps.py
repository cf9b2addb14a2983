"""The steps of a trace, by the marks that Fathom or torch.profiler left in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from fathom.trace.event import Event

STEP = "fathom.step"
PROFILER_STEP = "ProfilerStep#"
Window = tuple[float, float]  # begin and end, in the trace's microseconds


class Steps:
    """Windows in time, in order and without overlap."""

    def __init__(self, windows: Sequence[Window], waited: bool) -> None:
        self.windows = list(windows)
        self.waited = waited  # whether the GPU was waited for in every step: then all of a step's work is inside it
        self._begins = [begin for begin, _ in windows]
        self._latest = 0  # the step that was found last: the next time asked for is most often in the same

    @classmethod
    def of(cls, threads: Collection[list[Event]], gpu: Sequence[Event], names: Iterable[str]) -> Steps:
        """By marks; a trace without marks is one step. names are those of the threads' events."""
        called = {name for name in names if name == STEP or name.startswith(PROFILER_STEP)}
        found = (event for thread in threads for event in thread if event.name in called) if called else ()
        marks = [(event.name, event.ts, event.end) for event in found]
        if own := sorted({(begin, end) for name, begin, end in marks if name == STEP}):
            return cls(own, waited=True)
        theirs = sorted({(begin, end) for _, begin, end in marks})
        return cls(_whole(theirs, threads, gpu), waited=False)

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

    def overlapping(self, begin: float, end: float) -> int | None:
        """The step in which an interval begins, or else the first that it reaches into."""
        step = self.at(begin)
        if step is not None:
            return step
        after = bisect_right(self._begins, begin)
        return after if after < len(self.windows) and self._begins[after] < end else None

    def extend(self, latest: Sequence[float]) -> None:
        """Makes every step last until a time, but not beyond the beginning of the next."""
        limits = [*self._begins[1:], float("inf")]
        self.windows = [
            (begin, max(end, min(last, limit)))
            for (begin, end), last, limit in zip(self.windows, latest, limits, strict=True)
        ]


def _whole(marks: list[Window], threads: Collection[list[Event]], gpu: Sequence[Event]) -> list[Window]:
    """Windows without gaps that hold all GPU work: a host that runs ahead marks a step's end before its last kernel."""
    begins = [begin for begin, _ in marks]
    work = [(event.ts, event.end) for event in gpu]
    if not marks:
        work += [(event.ts, event.end) for thread in threads for event in thread if event.cat != "python_function"]
        return [(min(begin for begin, _ in work), max(end for _, end in work))] if work else [(0.0, 0.0)]
    first = min([begins[0], *(begin for begin, _ in work)])
    last = max([marks[-1][1], *(end for _, end in work)])
    borders = [first, *begins[1:], last]
    return list(pairwise(borders))
