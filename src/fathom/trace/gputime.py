"""GPU utilisation from a trace: time in kernels, copies and API calls, and idle time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
from numpy.typing import NDArray

from fathom.core.record import ApiCall, GpuTime
from fathom.trace.calls import GpuActivity
from fathom.trace.event import GPU_KINDS
from fathom.trace.host import HostTime
from fathom.trace.intervals import Floats, Interval
from fathom.trace.reader import gc_disabled
from fathom.trace.steps import Window

KINDS = tuple(GPU_KINDS.values())


@dataclass(frozen=True)
class _Activities:
    """GPU activities as columns, in the order of their beginnings."""

    begin: Floats
    end: Floats
    launched: Floats
    kind: NDArray[np.int64]  # an index into KINDS

    @classmethod
    def of(cls, activities: Sequence[GpuActivity]) -> _Activities:
        return cls(
            begin=np.array([each.begin for each in activities]),
            end=np.array([each.end for each in activities]),
            launched=np.array([each.launched for each in activities]),
            kind=np.array([KINDS.index(each.kind) for each in activities]),
        )

    def within(self, window: Window) -> _Activities:
        """Those that run in a window, cut at its borders."""
        begin, end = window
        last = int(np.searchsorted(self.begin, end))
        chosen = np.flatnonzero(self.end[:last] > begin)
        return _Activities(
            begin=np.maximum(self.begin[chosen], begin),
            end=np.minimum(self.end[chosen], end),
            launched=self.launched[chosen],
            kind=self.kind[chosen],
        )

    def seconds(self, kind: str) -> float:
        chosen = self.kind == KINDS.index(kind)
        return float((self.end[chosen] - self.begin[chosen]).sum()) * 1e-6


@dataclass(frozen=True)
class _Timeline:
    """Busy and idle time of the GPU inside one window, in microseconds."""

    busy: float
    tail: float  # idle after the last activity
    gaps: Floats
    starved_gaps: list[Interval]

    @property
    def starved(self) -> float:
        return sum(end - begin for begin, end in self.starved_gaps)

    @property
    def longest(self) -> float:
        return max(self.tail, float(self.gaps.max(initial=0.0)))

    @property
    def idle_times(self) -> int:
        return len(self.gaps) + (self.tail > 0)


@gc_disabled()
def gpu_time(activities: Sequence[GpuActivity], host: HostTime, windows: Sequence[Window]) -> GpuTime | None:
    """The mean over the windows (steps, or one window for a whole program); None for a trace without GPU activities.

    activities are in the order of their beginnings. Of a kernel that runs from one step into the next, each step has
    its part, as in op rows: over the same steps, the rows' device times add up to busy_s.
    """
    if not activities:
        return None
    columns = _Activities.of(activities)
    per_window = [columns.within(window) for window in windows]
    timelines = [_timeline(part, window) for part, window in zip(per_window, windows, strict=True)]
    per_window_s = 1e-6 / len(windows)  # from total microseconds to mean seconds
    within = partial(_in_windows, windows=windows)
    return GpuTime(
        span_s=sum(end - begin for begin, end in windows) * per_window_s,
        kernel_s=sum(part.seconds("kernel") for part in per_window) / len(windows),
        memcpy_s=sum(part.seconds("memcpy") for part in per_window) / len(windows),
        memset_s=sum(part.seconds("memset") for part in per_window) / len(windows),
        busy_s=sum(line.busy for line in timelines) * per_window_s,
        starved_s=sum(line.starved for line in timelines) * per_window_s,
        gaps=sum(line.idle_times for line in timelines) / len(windows),
        longest_gap_s=median(line.longest for line in timelines) * 1e-6,
        activities=int(within(columns.begin).sum()) / len(windows),
        api=_api(host.calls(within), len(windows)),
        tail_s=sum(line.tail for line in timelines) * per_window_s,
        starved_in={
            what: spent * per_window_s
            for what, spent in host.doing([gap for line in timelines for gap in line.starved_gaps]).items()
        },
    )


def starved_gaps(activities: Sequence[GpuActivity], windows: Sequence[Window]) -> list[Interval]:
    """When the GPU had nothing to do in these windows, as the next activity had not been launched."""
    columns = _Activities.of(activities)
    return [gap for window in windows for gap in _timeline(columns.within(window), window).starved_gaps]


def _in_windows(times: Floats, windows: Sequence[Window]) -> NDArray[np.bool_]:
    """Whether each time lies in one of the windows, which are in order and do not overlap."""
    borders = np.array(windows, dtype=np.float64)
    index = np.searchsorted(borders[:, 0], times, side="right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (times <= borders[np.maximum(index, 0), 1])
    return inside


def _timeline(activities: _Activities, window: Window) -> _Timeline:
    """An idle gap is starved if the next activity was launched only after the gap had begun."""
    begin, end = window
    reached = np.maximum.accumulate(np.concatenate([[begin], activities.end]))  # busy or passed until then
    before = reached[:-1]
    gap = activities.begin > before
    starved = gap & (activities.launched > before)  # not where the trace lacks the launch
    busy = np.maximum(activities.end - np.maximum(activities.begin, before), 0.0)
    return _Timeline(
        busy=float(busy.sum()),
        tail=max(0.0, end - float(reached[-1])),  # after the last activity the host synchronises and ends the step
        gaps=(activities.begin - before)[gap],
        starved_gaps=list(zip(before[starved].tolist(), activities.begin[starved].tolist(), strict=True)),
    )


def _api(calls: Mapping[str, tuple[int, float]], windows: int) -> list[ApiCall]:
    found = [
        ApiCall(name=name, calls=count / windows, cpu_s=time / windows * 1e-6) for name, (count, time) in calls.items()
    ]
    return sorted(found, key=lambda call: -call.cpu_s)
