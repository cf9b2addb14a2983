"""The GPU activities of a trace as columns, so that questions on hundreds of thousands of them take milliseconds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fathom.trace.calls import GpuActivity
from fathom.trace.intervals import Floats
from fathom.trace.taxonomy import family_of, kernel_type

Integers = NDArray[np.int64]
KINDS = ("computation", "communication", "memory")
COMPUTATION, COMMUNICATION, MEMORY = range(3)
COPY_KERNEL = re.compile(r"^(__)?amd_rocclr_(copy|fill)")  # ROCm copies by kernels


def is_communication(kernel_name: str) -> bool:
    """Whether a kernel exchanges data with other GPUs, by its name."""
    return family_of(kernel_type(kernel_name)) == "communication"


@dataclass(frozen=True)
class Columns:
    """One entry per activity, in the order of beginnings; microseconds since the first of them."""

    origin: float  # when the first began, in the trace's clock
    begin: Floats
    end: Floats
    kind: Integers  # an index into KINDS
    stream: Integers  # an index into streams
    streams: list[tuple[object, object]]  # device and stream
    launch: Floats  # when the launch call began and ended; NaN where the trace lacks it
    launch_end: Floats

    @classmethod
    def of(cls, activities: Sequence[GpuActivity]) -> Columns:
        origin = activities[0].begin if activities else 0.0
        kinds = {name: _kind(name) for name in {each.name for each in activities}}
        streams: dict[tuple[object, object], int] = {}
        return cls(
            origin=origin,
            begin=np.array([each.begin for each in activities]) - origin,
            end=np.array([each.end for each in activities]) - origin,
            kind=np.array([MEMORY if each.kind != "kernel" else kinds[each.name] for each in activities], dtype=int),
            stream=np.array([streams.setdefault(each.stream, len(streams)) for each in activities], dtype=int),
            streams=list(streams),
            launch=np.array([each.launch.ts if each.launch else np.nan for each in activities]) - origin,
            launch_end=np.array([each.launch.end if each.launch else np.nan for each in activities]) - origin,
        )

    @property
    def seconds(self) -> Floats:
        """The duration of each."""
        return (self.end - self.begin) * 1e-6


def _kind(kernel_name: str) -> int:
    if is_communication(kernel_name):
        return COMMUNICATION
    return MEMORY if COPY_KERNEL.search(kernel_name) else COMPUTATION
