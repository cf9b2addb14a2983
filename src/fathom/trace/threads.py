"""What one CPU thread did, as the critical path needs it: outermost ops and calls, and those that wait for the GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

from fathom.trace.event import Event
from fathom.trace.event_columns import EventColumns, Integers
from fathom.trace.intervals import Floats

# a call that returns only when the GPU has finished something, or may do so, whatever the vendor's prefix
WAITS = re.compile(r"Synchronize|Memcpy|Free(?!Async)")
STREAM_WAIT = "StreamWait"  # makes a stream wait for another; the host goes on


@cache
def may_wait(call: str) -> bool:
    return WAITS.search(call) is not None


@dataclass(slots=True)
class HostThread:
    """Events in the order of their beginnings."""

    key: tuple[object, object]  # process and thread
    events: list[Event]  # all of them
    begins: Floats
    ends: Floats
    work: list[Event] = field(default_factory=list)  # ops that are in no other op, and calls outside ops
    waits: list[Event] = field(default_factory=list)  # calls that may have waited for the GPU, in ops or not
    stream_waits: list[float] = field(default_factory=list)  # when a stream was made to wait for another

    @classmethod
    def of(cls, columns: EventColumns, index: Integers) -> HostThread:
        """Of one thread's events, by their indices in order; what the walk adds is still missing."""
        events = [columns.events[each] for each in index.tolist()]
        begins = columns.begin[index]
        return cls((events[0].pid, events[0].tid), events, begins, begins + columns.duration[index])

    def add_call(self, event: Event, outermost: bool) -> None:
        """A call to the GPU's runtime."""
        if outermost:
            self.work.append(event)
        if STREAM_WAIT in event.name:
            self.stream_waits.append(event.ts)
        elif may_wait(event.name):
            self.waits.append(event)
