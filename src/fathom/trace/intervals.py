"""Sets of intervals in time: their union, and how much of one set another covers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
Floats = NDArray[np.float64]


class Intervals:
    """Intervals in order, merged where they touch."""

    def __init__(self, begins: Floats, ends: Floats) -> None:
        order = np.argsort(begins, kind="stable")
        begins, reached = begins[order], np.maximum.accumulate(ends[order])
        apart = begins[1:] > reached[:-1]  # whether one begins after all before it have ended
        self.begins: Floats = begins[np.append(True, apart)[: len(begins)]]
        self.ends: Floats = reached[np.append(apart, True)[: len(begins)]]

    @classmethod
    def of(cls, intervals: Sequence[Interval]) -> Intervals:
        given: Floats = np.array(intervals, dtype=np.float64).reshape(-1, 2)
        return cls(given[:, 0], given[:, 1])

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals(np.append(self.begins, other.begins), np.append(self.ends, other.ends))

    def __sub__(self, other: Intervals) -> Intervals:
        borders = np.unique(np.concatenate([self.begins, self.ends, other.begins, other.ends]))
        begins, ends = borders[:-1], borders[1:]
        left = self.touch((begins + ends) / 2) & ~other.touch((begins + ends) / 2)
        return Intervals(begins[left], ends[left])

    def __iter__(self) -> Iterator[Interval]:
        return zip(self.begins.tolist(), self.ends.tolist(), strict=True)

    @property
    def length(self) -> float:
        return float((self.ends - self.begins).sum())

    def covered_by(self, other: Intervals) -> float:
        """How much of these intervals lies in others."""
        return float(other.within(self.begins, self.ends).sum())

    def touch(self, times: Floats) -> NDArray[np.bool_]:
        """Whether each time is in one of these intervals, or at its border."""
        inside: NDArray[np.bool_] = np.searchsorted(self.begins, times, side="right") > np.searchsorted(
            self.ends, times
        )
        return inside

    def within(self, begins: Floats, ends: Floats) -> Floats:
        """How much of each of several windows these intervals cover."""
        if not len(self.begins):
            return np.zeros(len(begins))
        times = np.column_stack([self.begins, self.ends]).ravel()
        spent = np.concatenate([[0.0], np.cumsum(self.ends - self.begins)])
        reading = np.column_stack([spent[:-1], spent[1:]]).ravel()  # time covered so far, at each border
        inside: Floats = np.interp(ends, times, reading) - np.interp(begins, times, reading)
        return inside
