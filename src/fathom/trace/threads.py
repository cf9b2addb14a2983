"""What one CPU thread did, as the critical path needs it: outermost ops and calls, and those that wait for the GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from fathom.trace.event import Event

# a call that returns only when the GPU has finished something, or may do so, whatever the vendor's prefix
WAITS = re.compile(r"Synchronize|Memcpy|Free(?!Async)")
STREAM_WAIT = "StreamWait"  # makes a stream wait for another; the host goes on


def in_order(events: Sequence[Event]) -> list[Event]:
    """By their beginnings, and of several that begin at once the longest first: the order in which they nest."""
    begins, durations = np.array([event.ts for event in events]), np.array([event.dur for event in events])
    return [events[index] for index in np.lexsort((-durations, begins)).tolist()]


@cache
def may_wait(call: str) -> bool:
    return WAITS.search(call) is not None


@dataclass(slots=True)
class HostThread:
    """Events in the order of their beginnings."""

    key: tuple[object, object] = (0, 0)  # process and thread
    work: list[Event] = field(default_factory=list)  # ops that are in no other op, and calls outside ops
    waits: list[Event] = field(default_factory=list)  # calls that may have waited for the GPU, in ops or not
    stream_waits: list[float] = field(default_factory=list)  # when a stream was made to wait for another

    def add_call(self, event: Event, outermost: bool) -> None:
        """A call to the GPU's runtime."""
        if outermost:
            self.work.append(event)
        if STREAM_WAIT in event.name:
            self.stream_waits.append(event.ts)
        elif may_wait(event.name):
            self.waits.append(event)
