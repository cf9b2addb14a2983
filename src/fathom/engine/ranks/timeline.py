"""Timeline: when each step of one rank began and ended, and what it communicated in between, on the device's clock.

On a CPU a moment is a reading of the host's clock. On a GPU it is an event, recorded without waiting for the device and
placed on the host's clock between chunks of steps. Events are then used again: the driver makes one when it is first
recorded, which takes longer than recording it.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field, replace

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

    def shifted(self, offset_s: float) -> StepSpans:
        """The same on a clock that is ahead by so much."""
        return replace(
            self,
            begin_s=self.begin_s + offset_s,
            end_s=self.end_s + offset_s,
            communication=[(begin + offset_s, end + offset_s) for begin, end in self.communication],
            exposed=[(begin + offset_s, end + offset_s) for begin, end in self.exposed],
            reached={message: moment + offset_s for message, moment in self.reached.items()},
        )


class SlowLink:
    """Over which each message takes so many times as long, one after the other.

    A message that finds the link free shows how long it takes by itself. One behind it may have arrived long ago when
    the program hears of it, so its own time is that of its bytes at the best rate seen.
    """

    def __init__(self, slower: float) -> None:
        self._slower = slower
        self._bytes: dict[float, float] = {}  # moment of launch -> of the message
        self._free_s, self._least_s, self._s_per_byte = 0.0, math.inf, math.inf

    def begin(self, begun: float, message_bytes: float) -> None:
        self._bytes[begun] = message_bytes

    def left_s(self, begun: float, now: float) -> float:
        """How long a message that has arrived would still be under way."""
        size = self._bytes.pop(begun, 0.0)
        if begun >= self._free_s:
            self._least_s = min(self._least_s, now - begun)
            self._s_per_byte = min(self._s_per_byte, (now - begun) / size if size else math.inf)
        own_s = min(now - begun, max(self._least_s, size * self._s_per_byte if size else 0.0))
        self._free_s = max(begun, self._free_s) + self._slower * own_s
        return max(0.0, self._free_s - now)


class Timeline:
    """What a strategy notes while it communicates."""

    def __init__(self, device: torch.device, heartbeat: Heartbeat, ranks: int, slower: float = 1.0) -> None:
        """On a CPU every operation can be made to take so many times as long, as over a slower link."""
        self.device, self.heartbeat, self.ranks = device, heartbeat, ranks
        self.steps: list[StepMoments] = []  # since the last spans() or forget()
        self.first = 0  # steps before those, also of the processes before a restart
        self._done: list[StepSpans] = []  # on this host's clock
        self._lock = threading.Lock()  # operations end on a thread of the backend
        self._ready: list[torch.Event] = []
        self._recorded: list[torch.Event] = []
        self._per_step = 0  # events
        self.slow_link = SlowLink(slower) if slower > 1 else None
        self._zero: tuple[float, torch.Event] | None = None
        self._zero = self._origin()

    def now(self) -> Moment:
        return time.perf_counter() if self._zero is None else self._event()

    def reserve(self, steps: int) -> None:
        """Makes the events of so many steps ahead, with as many a step as there were so far; called between steps."""
        if self._zero is None:
            return
        self._settle()
        missing = [self._made() for _ in range(steps * self._per_step - len(self._ready))]
        for event in missing:
            event.record()
        self._ready += missing

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
            begun = self.now()
            if self.slow_link is not None and isinstance(begun, float):
                self.slow_link.begin(begun, message_bytes)
            return begun

    def sent(self, message_bytes: float) -> None:
        """By a thread beside the steps, which do not wait for it."""
        with self._lock:
            if self.steps:
                self.steps[-1].wire_bytes += message_bytes

    def done(self, begun: Moment) -> None:
        """An operation has ended. A strategy that waits for it calls this before it goes on."""
        if self.slow_link is not None and isinstance(begun, float):
            time.sleep(self.slow_link.left_s(begun, time.perf_counter()))
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
        """The finished steps so far, on a clock that is ahead of this host's by so much; called between steps."""
        self._settle()
        return [step.shifted(offset_s) for step in self._done] if offset_s else list(self._done)

    def forget(self) -> None:
        """Drops the steps so far: a training run has too many to keep."""
        if self._zero is not None:
            torch.accelerator.synchronize(self.device)
        self._done.clear()
        self._next_steps()

    def _settle(self) -> None:
        """Reads the steps since the last call."""
        if self._zero is not None and self.steps:
            torch.accelerator.synchronize(self.device)
        self._done += [self._on_clock(step) for step in self.steps if step.end is not None]
        if self.steps:
            self._zero = self._origin()
        self._next_steps()

    def _origin(self) -> tuple[float, torch.Event] | None:
        """A moment on both clocks; a new one now and then, as times from it have seven digits."""
        if self.device.type == "cpu":
            return None
        event = self._made() if self._zero is None else self._zero[1]
        event.record()
        torch.accelerator.synchronize(self.device)
        return time.perf_counter(), event

    def _next_steps(self) -> None:
        """Events are free again once the device has passed them and they were read."""
        self.first += len(self.steps)
        if self.steps:
            self._per_step = -(-len(self._recorded) // len(self.steps))
        self._ready += self._recorded
        self.steps, self._recorded = [], []

    def _on_clock(self, step: StepMoments) -> StepSpans:
        at = self._seconds
        assert step.end is not None
        return StepSpans(
            at(step.begin),
            at(step.end),
            [(at(begin), at(end)) for begin, end in step.communication],
            [(at(begin), at(end)) for begin, end in step.exposed],
            round(step.wire_bytes),
            list(step.messages),
            {message: at(moment) for message, moment in step.reached.items()},
        )

    def _event(self) -> torch.Event:
        event = self._ready.pop() if self._ready else self._made()
        event.record()
        self._recorded.append(event)
        return event

    def _made(self) -> torch.Event:
        return torch.Event(self.device, enable_timing=True)

    def _seconds(self, moment: Moment) -> float:
        if isinstance(moment, float):
            return moment
        assert self._zero is not None
        return self._zero[0] + self._zero[1].elapsed_time(moment) / 1000
