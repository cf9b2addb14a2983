"""Recorded: work whose launches a GPU notes down once and then plays back as one, so that the host is not the limit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 3  # calls before the recording, in which libraries choose their algorithms and optimizers make their state


class Recorded:
    """The work must read and write the same tensors at every call, draw no random numbers and never ask the host.

    Each call does the work exactly once, recorded or not. What it gives is written over by the next call.
    On a CPU there is nothing to record.
    """

    def __init__(self, work: Callable[[], Tensor], device: torch.device) -> None:
        self._work, self._device = work, device
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Tensor | None = None

    def __call__(self) -> Tensor:
        if self._device.type != "cuda":
            return self._work()
        self._calls += 1
        if self._calls <= WARM_UP:
            return self._aside()
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):  # notes down, and runs nothing
                self._result = self._work()
        self._graph.replay()
        assert self._result is not None
        return self._result

    def _aside(self) -> Tensor:
        """On a stream of its own, as torch asks of what is to be recorded later."""
        here = torch.cuda.current_stream(self._device)
        aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            result = self._work()
        here.wait_stream(aside)
        return result
