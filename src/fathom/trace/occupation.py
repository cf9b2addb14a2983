"""What the GPU did, step by step and over all: computation, exposed communication, exposed copies, or nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fathom.core.depth import GpuSplit, KernelKind
from fathom.trace.columns import COMMUNICATION, COMPUTATION, KINDS, MEMORY, Columns
from fathom.trace.intervals import Floats, Intervals
from fathom.trace.steps import Window


def split(columns: Columns, windows: Sequence[Window]) -> tuple[GpuSplit, list[GpuSplit]]:
    """From the first activity to the end of the last, and each of the windows."""
    begins = np.array([0.0, *(begin - columns.origin for begin, _ in windows)])
    ends = np.array([columns.end.max(), *(end - columns.origin for _, end in windows)])

    def covered(*kinds: int) -> Floats:
        chosen = np.isin(columns.kind, kinds)
        return Intervals(columns.begin[chosen], columns.end[chosen]).within(begins, ends) * 1e-6

    computation, kernels, busy = (
        covered(COMPUTATION),
        covered(COMPUTATION, COMMUNICATION),
        covered(COMPUTATION, COMMUNICATION, MEMORY),
    )
    span = (ends - begins) * 1e-6
    rows = np.stack(
        [
            span,
            computation,
            covered(COMMUNICATION),
            kernels - computation,
            covered(MEMORY),
            busy - kernels,
            span - busy,
        ],
        axis=1,
    )
    whole, *steps = [_split(*row) for row in np.maximum(rows, 0.0).tolist()]
    return whole, steps


def _split(
    span: float, computation: float, communication: float, exposed: float, memory: float, alone: float, idle: float
) -> GpuSplit:
    return GpuSplit(
        span_s=span,
        computation_s=computation,
        communication_s=communication,
        exposed_communication_s=exposed,
        memory_s=memory,
        exposed_memory_s=alone,
        idle_s=idle,
    )


def kinds(columns: Columns) -> list[KernelKind]:
    """Durations by kind, longest first; kinds without activities are left out."""
    found = [
        KernelKind(kind=name, count=int(chosen.sum()), seconds=float(columns.seconds[chosen].sum()))
        for index, name in enumerate(KINDS)
        if (chosen := columns.kind == index).any()
    ]
    return sorted(found, key=lambda kind: -kind.seconds)
