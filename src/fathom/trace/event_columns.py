"""The events of a trace as columns: what concerns all of hundreds of thousands is answered without a loop over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fathom.trace.event import GPU_KINDS, Event
from fathom.trace.intervals import Floats

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Kind(NamedTuple):
    """What very many events have in common."""

    category: str | None
    name: str
    process: object
    thread: object


@dataclass(frozen=True)
class EventColumns:
    """One entry per event, in the order of the file."""

    events: Sequence[Event]
    begin: Floats  # in microseconds, as in the file
    duration: Floats
    kinds: list[Kind]  # each once, in the order of the first event of it
    kind: Integers  # an index into kinds

    @classmethod
    def of(cls, events: Sequence[Event]) -> EventColumns:
        kinds: dict[tuple[str | None, str, object, object], int] = {}
        number = kinds.setdefault
        return cls(
            events=events,
            begin=np.fromiter((event.ts for event in events), np.float64, len(events)),
            duration=np.fromiter((event.dur for event in events), np.float64, len(events)),
            kind=np.array(
                [number((event.cat, event.name, event.pid, event.tid), len(kinds)) for event in events], dtype=np.int64
            ),
            kinds=[Kind(*each) for each in kinds],
        )

    def renamed(self, kinds: list[Kind]) -> EventColumns:
        """With another category or name for some kinds, which their events get too."""
        differ = np.array([new != old for new, old in zip(kinds, self.kinds, strict=True)], dtype=np.bool_)
        changed = np.flatnonzero(self.each(differ))
        for event, kind in zip(self.at(changed), self.kind[changed].tolist(), strict=True):
            event.cat, event.name = kinds[kind].category, kinds[kind].name
        return replace(self, kinds=kinds)

    @property
    def end(self) -> Floats:
        return self.begin + self.duration

    @property
    def on_gpu(self) -> Mask:
        return self.of_category(*GPU_KINDS)

    def of_category(self, *wanted: str) -> Mask:
        return self._of_kinds(kind.category in wanted for kind in self.kinds)

    def named(self, belongs: Callable[[str], object]) -> Mask:
        """Those whose name has a property."""
        return self._of_kinds(bool(belongs(kind.name)) for kind in self.kinds)

    def _of_kinds(self, chosen: Iterable[bool]) -> Mask:
        return self.each(np.fromiter(chosen, np.bool_, len(self.kinds)))

    def each(self, of_kinds: NDArray[Any]) -> NDArray[Any]:
        """From one value a kind to one an event."""
        values: NDArray[Any] = of_kinds[self.kind]
        return values

    def only(self, mask: Mask) -> EventColumns:
        """The chosen events."""
        if mask.all():
            return self
        return EventColumns(self.chosen(mask), self.begin[mask], self.duration[mask], self.kinds, self.kind[mask])

    def names_of(self, mask: Mask) -> set[str]:
        return {self.kinds[index].name for index in np.flatnonzero(np.bincount(self.kind[mask])).tolist()}

    def totals(self, mask: Mask) -> dict[str, tuple[int, float]]:
        """Name -> how many of the chosen events have it, and their microseconds together."""
        counts = np.bincount(self.kind[mask], minlength=len(self.kinds)).tolist()
        times = np.bincount(self.kind[mask], weights=self.duration[mask], minlength=len(self.kinds)).tolist()
        found: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        for kind, count, time in zip(self.kinds, counts, times, strict=True):
            if count:
                found[kind.name] = found[kind.name][0] + count, found[kind.name][1] + time
        return found

    def chosen(self, mask: Mask) -> list[Event]:
        return self.at(np.flatnonzero(mask))

    def at(self, indices: Integers) -> list[Event]:
        return list(map(self.events.__getitem__, indices.tolist()))

    def names_at(self, indices: Integers) -> list[str]:
        return [self.kinds[kind].name for kind in self.kind[indices].tolist()]

    def nested(self, mask: Mask) -> list[Integers]:
        """The indices of chosen events thread by thread, in the order in which they nest.

        That is by their beginnings, and of several that begin at once the longest first. Threads are in the order in
        which they appear in the file.
        """
        threads: dict[tuple[object, object], int] = {}
        numbers = [threads.setdefault((kind.process, kind.thread), len(threads)) for kind in self.kinds]
        index = np.flatnonzero(mask)
        thread = np.array(numbers, dtype=np.int64)[self.kind[index]]
        order = np.lexsort((-self.duration[index], self.begin[index], thread))
        borders = np.flatnonzero(np.diff(thread[order])) + 1
        return np.split(index[order], borders) if len(order) else []
