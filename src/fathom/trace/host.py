"""What the host does while the GPU waits for it: runs ops, prepares data, waits for the GPU, or none of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fathom.trace.event import LAUNCH
from fathom.trace.event_columns import EventColumns, Mask
from fathom.trace.intervals import Floats, Interval, Intervals
from fathom.trace.marks import DATA_MARKS, is_mark
from fathom.trace.waits import is_wait

WAITING, DATA, OPS, OUTSIDE = "waiting for the GPU", "preparing data", "in ops", "outside ops"


class HostTime:
    """The time of all threads of a trace."""

    def __init__(self, columns: EventColumns) -> None:
        self._columns = columns

    def calls(self, within: Callable[[Floats], Mask]) -> dict[str, tuple[int, float]]:
        """Calls of the GPU's runtime by name, of those that begin at certain times: how many, and microseconds."""
        return self._columns.totals(self._columns.of_category(LAUNCH) & within(self._columns.begin))

    def doing(self, gaps: Sequence[Interval]) -> dict[str, float]:
        """How much of these gaps the host spends in what; where threads do several things, in the first of these."""
        if not gaps:
            return {}
        idle, known, before = Intervals.of(gaps), Intervals.of([]), 0.0
        found = {}
        for what, events in self._events_by_kind().items():
            known = known | self._when(events)
            covered = idle.covered_by(known)
            found[what] = covered - before
            before = covered
        return found | {OUTSIDE: idle.length - before}

    def outside(self, gaps: Intervals) -> Intervals:
        """The rest of these gaps: what doing() gives for it, in time."""
        for events in self._events_by_kind().values():
            gaps = gaps - self._when(events)
        return gaps

    def in_ops(self) -> Intervals:
        """When any thread is in an op."""
        return self._when(self._ops)

    @property
    def _ops(self) -> Mask:
        return self._columns.of_category("cpu_op") & ~self._columns.named(is_mark)

    def _when(self, events: Mask) -> Intervals:
        return Intervals(self._columns.begin[events], self._columns.end[events])

    def _events_by_kind(self) -> dict[str, Mask]:
        columns = self._columns
        calls = columns.of_category(LAUNCH)
        return {
            WAITING: calls & columns.named(is_wait),
            DATA: columns.named(lambda name: name.startswith(DATA_MARKS)),
            OPS: self._ops | calls,
        }
