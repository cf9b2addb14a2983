"""A clock for things that run at once: while n of them run, each has one n-th of the time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from fathom.trace.intervals import Floats, Interval


class SharedClock:
    """Advances by 1/n of the time while n things run, and by all of it while none or one does."""

    def __init__(self, begins: Floats, ends: Floats) -> None:
        times = np.concatenate([begins, ends])
        order = np.argsort(times, kind="stable")
        running = np.cumsum(np.repeat([1, -1], len(begins))[order])
        times = times[order]
        self._times: Floats = times
        self._readings: Floats = np.concatenate([[0.0], np.cumsum(np.diff(times) / np.maximum(1, running[:-1]))])
        self._time_list: list[float] = times.tolist()
        self._reading_list: list[float] = self._readings.tolist()
        self._running: list[int] = running.tolist()

    @classmethod
    def of(cls, threads: Sequence[Sequence[Interval]]) -> SharedClock | None:
        """Of the intervals in which each of several threads works; None where no two ever do at once."""
        intervals = np.array([each for thread in threads for each in thread], dtype=np.float64).reshape(-1, 2)
        intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
        if len(intervals) < 2 or np.all(intervals[1:, 0] >= np.maximum.accumulate(intervals[:-1, 1])):
            return None
        return cls(intervals[:, 0], intervals[:, 1])

    def between(self, begin: float, end: float) -> float:
        """The time of one of the things that run from begin to end."""
        return self._at(end) - self._at(begin)

    def all_between(self, begins: Floats, ends: Floats) -> Floats:
        """The same for many, none of which begins before the first or ends after the last."""
        found: Floats = np.interp(ends, self._times, self._readings) - np.interp(begins, self._times, self._readings)
        return found

    def _at(self, time: float) -> float:
        index = bisect_right(self._time_list, time) - 1
        if index < 0:
            return time - self._time_list[0]
        running = max(1, self._running[index])
        return self._reading_list[index] + (time - self._time_list[index]) / running
