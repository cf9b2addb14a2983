"""A clock for things that run at once: while n of them run, each has one n-th of the time."""

from __future__ import annotations

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
        self._running = np.maximum(1, running)
        self._readings: Floats = np.concatenate([[0.0], np.cumsum(np.diff(times) / self._running[:-1])])

    @classmethod
    def of(cls, threads: Sequence[Sequence[Interval]]) -> SharedClock | None:
        """Of the intervals in which each of several threads works; None where no two ever do at once."""
        intervals = np.array([each for thread in threads for each in thread], dtype=np.float64).reshape(-1, 2)
        intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
        if len(intervals) < 2 or np.all(intervals[1:, 0] >= np.maximum.accumulate(intervals[:-1, 1])):
            return None
        return cls(intervals[:, 0], intervals[:, 1])

    def between(self, begins: Floats, ends: Floats) -> Floats:
        """The time of each of several things that run from begin to end."""
        return self._at(ends) - self._at(begins)

    def _at(self, times: Floats) -> Floats:
        index = np.maximum(np.searchsorted(self._times, times, side="right") - 1, 0)  # before the first, none runs
        readings: Floats = self._readings[index] + (times - self._times[index]) / self._running[index]
        return readings
