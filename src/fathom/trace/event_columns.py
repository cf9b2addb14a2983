"""The events of a trace as columns: what concerns all of hundreds of thousands is answered without a loop over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom.trace.event import GPU_KINDS, Event
from fathom.trace.intervals import Floats

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class EventColumns:
    """One entry per event, in the order of the file."""

    events: Sequence[Event]
    begin: Floats  # in microseconds, as in the file
    duration: Floats
    names: list[str]  # each once
    _categories: list[str | None]
    _category: Integers  # an index into _categories
    _name: Integers  # an index into names
    _thread: Integers  # a number for each pair of process and thread

    @classmethod
    def of(cls, events: Sequence[Event]) -> EventColumns:
        categories, category = _numbered(event.cat for event in events)
        names, name = _numbered(event.name for event in events)
        return cls(
            events=events,
            begin=np.fromiter((event.ts for event in events), np.float64, len(events)),
            duration=np.fromiter((event.dur for event in events), np.float64, len(events)),
            _category=category,
            _categories=categories,
            _name=name,
            names=names,
            _thread=_numbered((event.pid, event.tid) for event in events)[1],
        )

    @property
    def end(self) -> Floats:
        return self.begin + self.duration

    @property
    def on_gpu(self) -> Mask:
        return self.of_category(*GPU_KINDS)

    def of_category(self, *wanted: str) -> Mask:
        chosen: Mask = np.array([category in wanted for category in self._categories], dtype=np.bool_)[self._category]
        return chosen

    def named(self, belongs: Callable[[str], object]) -> Mask:
        """Those whose name has a property."""
        chosen: Mask = np.array([bool(belongs(name)) for name in self.names], dtype=np.bool_)[self._name]
        return chosen

    def names_of(self, mask: Mask) -> set[str]:
        return {self.names[index] for index in np.flatnonzero(np.bincount(self._name[mask])).tolist()}

    def totals(self, mask: Mask) -> dict[str, tuple[int, float]]:
        """Name -> how many of the chosen events have it, and their microseconds together."""
        counts = np.bincount(self._name[mask], minlength=len(self.names)).tolist()
        times = np.bincount(self._name[mask], weights=self.duration[mask], minlength=len(self.names)).tolist()
        found = zip(self.names, counts, times, strict=True)
        return {name: (count, time) for name, count, time in found if count}

    def chosen(self, mask: Mask) -> list[Event]:
        return self.at(np.flatnonzero(mask))

    def at(self, indices: Integers) -> list[Event]:
        return [self.events[index] for index in indices.tolist()]

    def nested(self, mask: Mask) -> list[Integers]:
        """The indices of chosen events thread by thread, in the order in which they nest.

        That is by their beginnings, and of several that begin at once the longest first. Threads are in the order in
        which they appear in the file.
        """
        index = np.flatnonzero(mask)
        order = index[np.lexsort((-self.duration[index], self.begin[index], self._thread[index]))]
        borders = np.flatnonzero(np.diff(self._thread[order])) + 1
        return np.split(order, borders) if len(order) else []


def _numbered(values: Iterable[Any]) -> tuple[list[Any], Integers]:
    """The distinct values, and for each its number among them."""
    known: dict[Any, int] = {}
    number = known.setdefault
    numbers = np.array([number(value, len(known)) for value in values], dtype=np.int64)
    return list(known), numbers
