"""A probe of the host: a whole step beside its op calls, which were timed alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A whole step of a small random network, and the sum of its op calls timed alone: what is left is the host's."""

    name: str
    phase: str
    calls: dict[str, int]  # by part of the step
    ops_s: float
    step_s: float
    cold_bytes: float | None = None  # as cold_operands.py counts them; None in files of earlier versions
    loop_s: float | None = None  # of a fixed loop, before and after: how fast the host's core was; None likewise
    kernel_calls: int | None = (
        None  # on a GPU, calls with kernels of an inference step; None in files of earlier versions
    )
    graph_s: float | None = None  # of that step in a CUDA graph; None also where it cannot be captured
    launch_loops: float | None = None  # on a GPU, what launching its calls took alone, in such loops; None likewise
