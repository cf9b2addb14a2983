"""Device-true times: step boundaries marked on the device's own clock, and the least time of a piece of work."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import torch


def wait(device: torch.device) -> None:
    """Until the device has done everything it was given; a CPU always has."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def fastest(work: Callable[[], object], device: torch.device, repeats: int, budget_s: float = 0.0) -> float:
    """The least time of the work: of so many calls, and of as many more as the budget allows."""
    best, stop, done = float("inf"), time.perf_counter() + budget_s, 0
    while done < repeats or time.perf_counter() < stop:
        wait(device)
        begun = time.perf_counter()
        work()
        wait(device)
        best = min(best, time.perf_counter() - begun)
        done += 1
    return best


class StepClock:
    """Marks the boundaries between steps without making the host wait for the device.

    Steps may come in several chunks, each after a begin(): what is done between two chunks is no step's time.
    """

    def __init__(self, device: torch.device, marks: int = 0) -> None:
        """With what so many marks need made ahead: the driver makes an event when it is first recorded."""
        self.device = device
        self.mark: Callable[[], None] = self._note_time if device.type == "cpu" else self._record_event
        self._begun: set[int] = set()  # the marks that begin a chunk, by number
        self._moments: list[float] = []  # on a CPU
        self._events: list[torch.Event] = []  # on any other device
        self._ready = [] if device.type == "cpu" else [self._event() for _ in range(marks)]
        for event in self._ready:
            event.record()

    def begin(self) -> None:
        self._begun.add(len(self._moments) + len(self._events))  # one of the two is empty
        self.mark()

    def _note_time(self) -> None:
        self._moments.append(time.perf_counter())

    def _record_event(self) -> None:
        event = self._ready.pop() if self._ready else self._event()
        event.record()
        self._events.append(event)

    def _event(self) -> torch.Event:
        return torch.Event(self.device, enable_timing=True)

    def seconds(self) -> list[float]:
        """The time between each mark and the next, of all chunks."""
        if self.device.type == "cpu":
            between = [after - before for before, after in pairwise(self._moments)]
        else:
            wait(self.device)
            between = [before.elapsed_time(after) / 1000 for before, after in pairwise(self._events)]
        return [seconds for number, seconds in enumerate(between, start=1) if number not in self._begun]
