"""What one CPU thread did, as the critical path needs it: outermost ops and calls, and those that wait for the GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

from fathom.trace.event import Event

# parts of the names of calls that may return only when the GPU has finished something, whatever the vendor's prefix
WAITING = ("Synchronize", "Memcpy", "Free")
NOT_WAITING = ("FreeAsync", "Query")
STREAM_WAIT = "StreamWait"  # makes a stream wait for another; the host goes on


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
        name = event.name
        if STREAM_WAIT in name:
            self.stream_waits.append(event.ts)
        elif any(part in name for part in WAITING) and not any(part in name for part in NOT_WAITING):
            self.waits.append(event)
