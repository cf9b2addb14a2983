"""What one CPU thread did, as the critical path needs it: outermost ops and calls, and those that wait for the GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fathom.trace.event import LAUNCH, Event
from fathom.trace.event_columns import EventColumns, Mask
from fathom.trace.intervals import Floats

# a call that returns only when the GPU has finished something, or may do so, whatever the vendor's prefix
WAITS = re.compile(r"Synchronize|Memcpy|Free(?!Async)")
STREAM_WAIT = "StreamWait"  # makes a stream wait for another; the host goes on


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


def host_threads(columns: EventColumns, on_host: Mask) -> list[HostThread]:
    """Of all chosen events; which of them are work is for the walk to add."""
    calls = columns.of_category(LAUNCH)
    stream_waits = calls & columns.named(lambda name: STREAM_WAIT in name)
    waits = calls & ~stream_waits & columns.named(WAITS.search)
    found = []
    for index in columns.nested(on_host):
        events, begins = columns.at(index), columns.begin[index]
        found.append(
            HostThread(
                key=(events[0].pid, events[0].tid),
                events=events,
                begins=begins,
                ends=begins + columns.duration[index],
                waits=columns.at(index[waits[index]]),
                stream_waits=columns.begin[index[stream_waits[index]]].tolist(),
            )
        )
    return found
