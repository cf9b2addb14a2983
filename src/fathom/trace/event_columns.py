"""The events of a trace as columns: what concerns all of hundreds of thousands is answered without a loop over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fathom.trace.event import GPU_KINDS, KINDS, Event
from fathom.trace.intervals import Floats

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
_CODES: dict[str | None, int] = {kind: code for code, kind in enumerate(KINDS)}
_OTHER = len(_CODES)  # not from a file: the reader leaves no other category


@dataclass(frozen=True)
class EventColumns:
    """One entry per event, in the order of the file."""

    events: Sequence[Event]
    begin: Floats  # in microseconds, as in the file
    duration: Floats
    names: list[str]  # each once
    _category: Integers
    _name: Integers  # an index into names
    _thread: Integers  # a number for each pair of process and thread

    @classmethod
    def of(cls, events: Sequence[Event]) -> EventColumns:
        names: dict[str, int] = {}
        threads: dict[tuple[object, object], int] = {}
        return cls(
            events=events,
            begin=np.array([event.ts for event in events], dtype=np.float64),
            duration=np.array([event.dur for event in events], dtype=np.float64),
            _category=np.array([_CODES.get(event.cat, _OTHER) for event in events], dtype=np.int64),
            _name=np.array([names.setdefault(event.name, len(names)) for event in events], dtype=np.int64),
            _thread=np.array(
                [threads.setdefault((event.pid, event.tid), len(threads)) for event in events], dtype=np.int64
            ),
            names=list(names),
        )

    @property
    def end(self) -> Floats:
        return self.begin + self.duration

    @property
    def on_gpu(self) -> Mask:
        return np.isin(self._category, [_CODES[kind] for kind in GPU_KINDS])

    def of_category(self, category: str) -> Mask:
        return self._category == _CODES[category]

    def named(self, belongs: Callable[[str], object]) -> Mask:
        """Those whose name has a property."""
        chosen: Mask = np.array([bool(belongs(name)) for name in self.names], dtype=np.bool_)[self._name]
        return chosen

    def chosen(self, mask: Mask) -> list[Event]:
        return [self.events[index] for index in np.flatnonzero(mask).tolist()]

    def nested(self, mask: Mask) -> list[Integers]:
        """The indices of chosen events thread by thread, in the order in which they nest.

        That is by their beginnings, and of several that begin at once the longest first. Threads are in the order in
        which they appear in the file.
        """
        index = np.flatnonzero(mask)
        order = index[np.lexsort((-self.duration[index], self.begin[index], self._thread[index]))]
        borders = np.flatnonzero(np.diff(self._thread[order])) + 1
        return np.split(order, borders) if len(order) else []
