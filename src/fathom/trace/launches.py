"""How long launches took to reach the GPU, how many kernels were short, and how fast copies were."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from fathom.core.depth import Copies, Launches
from fathom.trace.calls import GpuActivity
from fathom.trace.columns import MEMORY, Columns
from fathom.trace.event import view
from fathom.trace.intervals import Floats

SHORT_US = 10.0  # about what it takes a host to launch a kernel


class CopyArgs(msgspec.Struct, gc=False):
    """Of a copy or memset on the GPU."""

    bytes: int | None = None


copy_args = view(CopyArgs)


def launches(columns: Columns) -> Launches | None:
    """None where the trace has no launch calls."""
    known = ~np.isnan(columns.launch)
    if not known.any():
        return None
    begin, launch, launch_end = columns.begin[known], columns.launch[known], columns.launch_end[known]
    delay = np.sort(np.maximum(begin - launch, 0.0)) * 1e-6
    seconds, call_s = columns.seconds[known], (launch_end - launch) * 1e-6
    kernels_s = columns.seconds[columns.kind != MEMORY]
    short = kernels_s < SHORT_US * 1e-6
    return Launches(
        count=int(known.sum()),
        delay_median_s=_quantile(delay, 0.5),
        delay_p95_s=_quantile(delay, 0.95),
        delay_max_s=float(delay[-1]),
        after_call_mean_s=float(np.maximum(begin - launch_end, 0.0).mean()) * 1e-6,
        shorter_than_call=int((seconds < call_s).sum()),
        shorter_than_call_s=float(seconds[seconds < call_s].sum()),
        short=int(short.sum()),
        short_s=float(kernels_s[short].sum()),
        kernels=len(kernels_s),
        kernels_s=float(kernels_s.sum()),
    )


def _quantile(ordered: Floats, share: float) -> float:
    """As np.quantile, which imports numpy.ma: on a small trace that takes longer than the trace."""
    return float(np.interp(share * (len(ordered) - 1), np.arange(len(ordered)), ordered))


def copies(activities: Sequence[GpuActivity]) -> list[Copies]:
    """By direction, longest first."""
    times: dict[str, list[float]] = defaultdict(list)
    sizes: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for activity in activities:
        if activity.kind == "kernel":
            continue
        direction, seconds = _direction(activity), (activity.end - activity.begin) * 1e-6
        times[direction].append(seconds)
        size = copy_args(activity).bytes
        if size is not None:
            sizes[direction].append((size, seconds))
    found = [
        Copies(
            direction=direction,
            count=len(seconds),
            seconds=sum(seconds),
            bytes=sum(size for size, _ in sizes[direction]) if direction in sizes else None,
            sized_s=sum(time for _, time in sizes[direction]) if direction in sizes else 0.0,
        )
        for direction, seconds in times.items()
    ]
    return sorted(found, key=lambda each: -each.seconds)


def _direction(activity: GpuActivity) -> str:
    """The word after Memcpy in "Memcpy HtoD (Pinned -> Device)"; a name without it says it all."""
    if activity.kind == "memset":
        return "memset"
    words = activity.name.split()
    return words[1] if len(words) > 1 and words[0] == "Memcpy" else activity.name
