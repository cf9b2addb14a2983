"""What the host does while the GPU waits for it: runs ops, prepares data, waits for the GPU, or none of these."""

from __future__ import annotations

from collections.abc import Sequence

from fathom.trace.event import LAUNCH, Event
from fathom.trace.intervals import Interval, Intervals
from fathom.trace.waits import is_wait
from fathom.trace.walk import MARKS

WAITING, DATA, OPS, OUTSIDE = "waiting for the GPU", "preparing data", "in ops", "outside ops"
DATA_MARKS = ("fathom.data", "enumerate(DataLoader)")


class HostTime:
    """The time of all threads of a trace."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.calls = [event for event in events if event.cat == LAUNCH]
        self._events = events

    def doing(self, gaps: Sequence[Interval]) -> dict[str, float]:
        """How much of these gaps the host spends in what; where threads do several things, in the first of these."""
        if not gaps:
            return {}
        idle, known, before = Intervals.of(gaps), Intervals.of([]), 0.0
        found = {}
        for what, events in self._events_by_kind().items():
            known = known | Intervals.of_events(events)
            covered = idle.covered_by(known)
            found[what] = covered - before
            before = covered
        return found | {OUTSIDE: idle.length - before}

    def _events_by_kind(self) -> dict[str, list[Event]]:
        names = {event.name for event in self._events}
        marks = {name for name in names if name.startswith(MARKS)}
        of_data = {name for name in names if name.startswith(DATA_MARKS)}
        ops = [event for event in self._events if event.cat == "cpu_op" and event.name not in marks]
        return {
            WAITING: [event for event in self.calls if is_wait(event.name)],
            DATA: [event for event in self._events if event.name in of_data] if of_data else [],
            OPS: [*ops, *self.calls],
        }
