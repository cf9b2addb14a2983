"""Samples the meters while a trace is recorded, and adds what they showed to it as counter tracks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from fathom.engine.marks import Mark
from fathom.machine.meter import Target
from fathom.machine.sampler import Sampler
from fathom.trace.event import Event
from fathom.trace.power_track import CLOCK_MARK, add_power_track, aligned

PERIOD_S = 0.02  # a trace is short; meters that are renewed more slowly repeat themselves
MARKS = 5  # at each end: a single one may have been interrupted


class PowerTrack:
    """Open around a recording: `mark` at its beginning and end, and `add` once its file is written."""

    def __init__(self, device: torch.device) -> None:
        self._sampler = Sampler(Target.of(device), PERIOD_S)
        self._marked: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._sampler.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._sampler.__exit__(kind, error, where)

    def mark(self) -> None:
        """Leaves marks in the trace; the profiler must be running, and no step."""
        for _ in range(MARKS):
            before = time.monotonic()
            with Mark(CLOCK_MARK):
                self._marked.append((before, time.monotonic()))

    def add(self, path: Path, events: Sequence[Event]) -> int:
        """How many samples are in the file now; none where nothing is metered, or the marks are not in the trace."""
        samples, alignment = self._sampler.stop(), aligned(events, self._marked)
        return add_power_track(path, samples.traces(0.0), alignment) if samples and alignment else 0
