"""Recorded: work whose launches a GPU notes down once and then plays back as one, so that the host is not the limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

WARM_UP = 3  # calls before the recording, in which libraries choose their algorithms and optimizers make their state


class Track(NamedTuple):
    """Where recordings are made: a stream that is not the default one, and memory.

    Recordings may share a track where no two are played at once.
    """

    stream: torch.cuda.Stream
    pool: Any  # torch's handle of a pool of memory

    @classmethod
    def on(cls, device: torch.device) -> Track | None:
        """None on a CPU, where there is nothing to record."""
        if device.type != "cuda":
            return None
        return cls(torch.cuda.Stream(device), torch.cuda.graph_pool_handle())  # type: ignore[no-untyped-call]


class Recorded:
    """The work must read and write the same tensors at every call and never ask the host.

    If it draws random numbers, then from torch's own generator, which torch moves on at every replay. Each call does
    the work exactly once, recorded or not. What it gives is written over by the next call.
    """

    def __init__(
        self,
        work: Callable[[], Tensor],
        device: torch.device,
        warm_up: int = WARM_UP,
        track: Track | None = None,
    ) -> None:
        self._work, self._device, self._warm_up = work, device, warm_up
        self._track = track or Track.on(device)
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Tensor | None = None

    def __call__(self) -> Tensor:
        if self._track is None:
            return self._work()
        self._calls += 1
        if self._calls <= self._warm_up:
            return self._aside(self._track.stream)
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, self._track.pool, self._track.stream):  # notes down, and runs nothing
                self._result = self._work()
        self._graph.replay()
        assert self._result is not None
        return self._result

    def _aside(self, stream: torch.cuda.Stream) -> Tensor:
        """On the stream of the recording, as torch asks of what is to be recorded later."""
        here = torch.cuda.current_stream(self._device)
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            result = self._work()
        here.wait_stream(stream)
        return result
