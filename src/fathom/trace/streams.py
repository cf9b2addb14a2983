"""Why each stream was idle between its activities, and how many activities were queued on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fathom.core.depth import Stream
from fathom.trace.columns import Columns
from fathom.trace.intervals import Floats, Intervals
from fathom.trace.steps import Window

KERNEL_DELAY_US = 30.0  # between two kernels that are both launched: HolisticTraceAnalysis's threshold


def streams(columns: Columns, windows: Sequence[Window]) -> list[Stream]:
    """One for each stream, in the order of their first activities."""
    return [_stream(columns, index, windows) for index in range(len(columns.streams))]


def _stream(columns: Columns, index: int, windows: Sequence[Window]) -> Stream:
    mine = columns.stream == index
    begin, end, launch = columns.begin[mine], columns.end[mine], columns.launch[mine]
    reached = np.maximum.accumulate(end)
    gaps = np.maximum(begin[1:] - reached[:-1], 0.0) * 1e-6
    host = launch[1:] > reached[:-1]  # not where the launch is unknown, NaN
    kernel = ~host & (gaps < KERNEL_DELAY_US * 1e-6)
    busy = Intervals(begin, end).within(begin[:1], reached[-1:])
    mean, most, per_step = _queue(launch, begin, columns.origin, windows)
    device, stream = columns.streams[index]
    return Stream(
        device=str(device),
        stream=str(stream),
        activities=len(begin),
        busy_s=float(busy[0]) * 1e-6,
        host_wait_s=float(gaps[host].sum()),
        kernel_wait_s=float(gaps[kernel].sum()),
        other_s=float(gaps[~host & ~kernel].sum()),
        queue_mean=mean,
        queue_max=most,
        queue_per_step=per_step,
    )


def _queue(
    launch: Floats, begin: Floats, origin: float, windows: Sequence[Window]
) -> tuple[float | None, int | None, list[float]]:
    """Activities launched but not begun: mean over time, maximum, and the mean of each window."""
    known = ~np.isnan(launch)
    if not known.any():
        return None, None, []
    # clocks of host and GPU differ by a microsecond or so: none begins before it is launched
    launched, begun = launch[known], np.maximum(begin[known], launch[known])
    times = np.concatenate([launched, begun])
    order = np.argsort(times, kind="stable")  # at equal times launches come first: no length is negative
    lengths = np.cumsum(np.repeat([1, -1], len(launched))[order])
    times = times[order]
    area = np.concatenate([[0.0], np.cumsum(np.diff(times) * lengths[:-1])])
    first = np.array([begin_ - origin for begin_, _ in windows])
    last = np.array([end - origin for _, end in windows])
    areas = np.interp(last, times, area) - np.interp(first, times, area)
    spans = np.maximum(last - first, 1e-9)
    whole = float(times[-1] - times[0])
    return float(area[-1]) / whole if whole > 0 else 0.0, int(lengths.max()), (areas / spans).tolist()
