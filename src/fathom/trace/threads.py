"""One CPU thread of a trace as columns, and what the critical path needs of it: its work, and its waits for the GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from fathom.trace.event import LAUNCH, Event
from fathom.trace.event_columns import EventColumns, Integers, Mask
from fathom.trace.intervals import Floats

# a call that returns only when the GPU has finished something, or may do so, whatever the vendor's prefix
WAITS = re.compile(r"Synchronize|Memcpy|Free(?!Async)")
STREAM_WAIT = "StreamWait"  # makes a stream wait for another; the host goes on


@dataclass(slots=True)
class HostThread:
    """One entry per event, in the order in which they nest."""

    key: tuple[object, object]  # process and thread
    index: Integers  # into the columns of all events
    begins: Floats
    ends: Floats
    work: list[int] = field(default_factory=list)  # positions of ops that are in no other op, and of calls outside ops
    waits: list[Event] = field(default_factory=list)  # calls that may have waited for the GPU, in ops or not
    stream_waits: list[float] = field(default_factory=list)  # when a stream was made to wait for another

    def first_begin(self, mask: Mask) -> float:
        """When the first of chosen events begins; never, if there is none."""
        return float(self.begins[mask[self.index]].min(initial=np.inf))


def host_threads(columns: EventColumns, on_host: Mask) -> list[HostThread]:
    """Of all chosen events; which of them are work is for the walk to add."""
    calls = columns.of_category(LAUNCH)
    stream_waits = calls & columns.named(lambda name: STREAM_WAIT in name)
    waits = calls & ~stream_waits & columns.named(WAITS.search)
    found = []
    for index in columns.nested(on_host):
        kind, begins = columns.kinds[columns.kind[index[0]]], columns.begin[index]
        found.append(
            HostThread(
                key=(kind.process, kind.thread),
                index=index,
                begins=begins,
                ends=begins + columns.duration[index],
                waits=columns.at(index[waits[index]]),
                stream_waits=columns.begin[index[stream_waits[index]]].tolist(),
            )
        )
    return found
