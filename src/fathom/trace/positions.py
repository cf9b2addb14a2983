"""The events of one CPU thread in the order in which they nest, as lists, and what of them is inside typed ops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fathom.trace.event import LAUNCH, all_launch_args
from fathom.trace.event_columns import EventColumns, Integers, Mask
from fathom.trace.marks import is_mark
from fathom.trace.steps import Steps
from fathom.trace.taxonomy import type_of
from fathom.trace.threads import HostThread
from fathom.trace.waits import is_wait

# what an event is: a call of the GPU's runtime; one of them that launched something, or waited; an op that has a type,
# or none; a mark
CALL, LAUNCHING, TYPED, UNTYPED, MARK = range(5)
OPS = (TYPED, UNTYPED)


Claim = tuple[int, int, int]  # the first event inside a typed op, the first after it, and the op


# of a call that launched something or waited: its event, its correlation, the op around it (or NO_OP), whether that op
# has a type, and phase and optimizer where it has none
Launch = tuple[int, int, int, bool, str, str]


@dataclass(slots=True)
class Positions:
    """One entry per event; these are read one by one."""

    thread: HostThread
    index: list[int]  # into all events
    begins: list[float]
    ends: list[float]
    after: list[int]  # the first that begins at its end or later
    steps: list[int]
    kinds: list[int]  # into the kinds of all events
    parts: list[int]  # CALL, LAUNCHING, TYPED, UNTYPED or MARK
    correlations: dict[int, int]  # of the calls that launched or waited
    outside: dict[int, tuple[int, str, str]] = field(default_factory=dict)  # of those in no typed op: see Launch
    claims: list[Claim] = field(default_factory=list)

    @property
    def claimed(self) -> Mask:
        """Whether each event is inside a typed op."""
        change = np.zeros(len(self.index) + 1, dtype=np.int64)
        change[[first for first, _, _ in self.claims]] += 1
        change[[after for _, after, _ in self.claims]] -= 1
        inside: Mask = np.cumsum(change)[:-1] > 0
        return inside

    def launches(self) -> Iterator[Launch]:
        """The calls that launched or waited, and the op around each."""
        at = np.fromiter(self.correlations, np.int64, len(self.correlations))
        number = np.searchsorted([first for first, _, _ in self.claims], at, side="right") - 1
        for (position, correlation), claim in zip(self.correlations.items(), number.tolist(), strict=True):
            if position in self.outside:
                op, phase, optimizer = self.outside[position]
                yield self.index[position], correlation, op, False, phase, optimizer
            else:
                yield self.index[position], correlation, self.claims[claim][2], True, "", ""


class Parts:
    """Makes the positions of threads."""

    def __init__(self, columns: EventColumns, steps: Steps, correlations: set[int]) -> None:
        """Correlations are those of what ran on the GPU."""
        self._columns, self._steps, self._correlations = columns, steps, correlations
        self._waits = np.array([is_wait(kind.name) for kind in columns.kinds], dtype=np.bool_)
        self._of_kinds: Integers = np.array([_part(kind.category, kind.name) for kind in columns.kinds], dtype=np.int64)

    def of(self, thread: HostThread) -> Positions:
        kinds = self._columns.kind[thread.index]
        parts = self._of_kinds[kinds]
        calls = np.flatnonzero(parts == CALL)
        found: dict[int, int] = {}
        waits = self._waits[kinds[calls]].tolist()
        for at, args, waited in zip(
            calls.tolist(), all_launch_args(self._columns.at(thread.index[calls])), waits, strict=True
        ):
            if waited or args.correlation in self._correlations:
                found[at] = args.correlation
        parts[np.fromiter(found, np.int64, len(found))] = LAUNCHING
        return Positions(
            thread=thread,
            index=thread.index.tolist(),
            begins=thread.begins.tolist(),
            ends=thread.ends.tolist(),
            after=np.searchsorted(thread.begins, thread.ends).tolist(),
            steps=self._steps.all_at(thread.begins).tolist(),
            kinds=kinds.tolist(),
            parts=parts.tolist(),
            correlations=found,
        )


def _part(category: str | None, name: str) -> int:
    if category == LAUNCH:
        return CALL
    if category != "cpu_op" or is_mark(name):
        return MARK
    return UNTYPED if type_of(name) is None else TYPED
