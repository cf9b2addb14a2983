"""Timeline: when each step of one rank began and ended, and what it communicated in between, on the device's clock.

On a CPU a moment is a reading of the host's clock. On a GPU it is an event, recorded without waiting for the device and
placed on the host's clock at the end.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import torch

from fathom.core.heartbeat import STEP, Heartbeat
from fathom.core.ranks import bus_factor

Moment = float | torch.Event
Span = tuple[float, float]


@dataclass
class StepMoments:
    begin: Moment
    end: Moment | None = None
    communication: list[tuple[Moment, Moment]] = field(default_factory=list)
    exposed: list[tuple[Moment, Moment]] = field(default_factory=list)  # in which the step waited, in order
    messages: list[str | None] = field(default_factory=list)  # that each of those waited for; None: for all ranks
    reached: dict[str, Moment] = field(default_factory=dict)  # when this rank was ready to send or receive a message
    wire_bytes: float = 0.0


@dataclass(frozen=True)
class StepSpans:
    """One step with every moment on the clock of rank 0."""

    begin_s: float
    end_s: float
    communication: list[Span]
    exposed: list[Span]
    wire_bytes: int
    messages: list[str | None] = field(default_factory=list)  # between two ranks, for each exposed span
    reached: dict[str, float] = field(default_factory=dict)  # message -> when this rank was ready for it


class Timeline:
    """What a strategy notes while it communicates."""

    def __init__(self, device: torch.device, heartbeat: Heartbeat, ranks: int, slower: float = 1.0) -> None:
        """On a CPU every operation can be made to take so many times as long, as over a slower link."""
        self.device, self.heartbeat, self.ranks, self.slower = device, heartbeat, ranks, slower
        self.steps: list[StepMoments] = []
        self.first = 0  # steps that were done before a restart
        self._lock = threading.Lock()  # operations end on a thread of the backend
        self._zero: tuple[float, torch.Event] | None = None
        if device.type != "cpu":
            event = self._event()
            torch.accelerator.synchronize(device)
            self._zero = time.perf_counter(), event

    def now(self) -> Moment:
        return time.perf_counter() if self._zero is None else self._event()

    def begin_step(self) -> None:
        self.steps.append(StepMoments(self.now()))
        self.heartbeat.doing(STEP, self.first + len(self.steps))

    def end_step(self) -> None:
        self.steps[-1].end = self.now()

    def begin(self, operation: str, message_bytes: float, ranks: int | None = None) -> Moment:
        """An operation on a message of this size is launched, among all ranks or some; done() is given the moment."""
        with self._lock:
            self.heartbeat.begin(operation)
            if self.steps:
                self.steps[-1].wire_bytes += bus_factor(operation, ranks or self.ranks) * message_bytes
            return self.now()

    def done(self, begun: Moment) -> None:
        """An operation has ended. A strategy that waits for it calls this before it goes on."""
        if self.slower > 1 and isinstance(begun, float):
            time.sleep((self.slower - 1) * (time.perf_counter() - begun))
        with self._lock:
            self.heartbeat.done()
            if self.steps:
                self.steps[-1].communication.append((begun, self.now()))

    def reach(self, message: str, sent_bytes: float = 0.0) -> Moment:
        """This rank is ready to send or to receive a message, which has the same name on the other rank."""
        moment = self.now()
        self.steps[-1].reached[message] = moment
        self.steps[-1].wire_bytes += sent_bytes
        return moment

    def exposed_since(self, begun: Moment, message: str | None = None) -> None:
        """From then on until now the step waited for communication alone: of all ranks, or of one message."""
        self.steps[-1].exposed.append((begun, self.now()))
        self.steps[-1].messages.append(message)

    def spans(self, offset_s: float = 0.0) -> list[StepSpans]:
        """The finished steps so far, on a clock that is ahead of this host's by so much."""
        if self._zero is not None:
            torch.accelerator.synchronize(self.device)

        def at(moment: Moment) -> float:
            return self._seconds(moment) + offset_s

        return [
            StepSpans(
                at(step.begin),
                at(step.end),
                [(at(begin), at(end)) for begin, end in step.communication],
                [(at(begin), at(end)) for begin, end in step.exposed],
                round(step.wire_bytes),
                list(step.messages),
                {message: at(moment) for message, moment in step.reached.items()},
            )
            for step in self.steps
            if step.end is not None
        ]

    def _event(self) -> torch.Event:
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def _seconds(self, moment: Moment) -> float:
        if isinstance(moment, float):
            return moment
        assert self._zero is not None
        return self._zero[0] + self._zero[1].elapsed_time(moment) / 1000
