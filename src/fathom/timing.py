"""Device-true step times: boundaries marked on the device's own clock, read only after the last step."""

from __future__ import annotations

import time

import torch


class StepClock:
    """Marks the boundaries between steps without making the host wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._moments: list[float] = []  # on a CPU
        self._events: list[torch.Event] = []  # on any other device

    def mark(self) -> None:
        if self.device.type == "cpu":
            self._moments.append(time.perf_counter())
            return
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        self._events.append(event)

    def seconds(self) -> list[float]:
        """The time between each mark and the next."""
        if self.device.type == "cpu":
            return [after - before for before, after in zip(self._moments, self._moments[1:], strict=False)]
        torch.accelerator.synchronize(self.device)
        return [a.elapsed_time(b) / 1000 for a, b in zip(self._events, self._events[1:], strict=False)]
