"""GPU utilisation from a trace: time in kernels, copies and API calls, and idle time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from fathom.core.record import ApiCall, GpuTime
from fathom.trace.event import GPU_KINDS, Event
from fathom.trace.host import HostTime
from fathom.trace.reader import gc_disabled
from fathom.trace.rows import GpuActivity
from fathom.trace.steps import Window


@dataclass
class _Timeline:
    """Busy and idle time of the GPU inside one window, in microseconds."""

    busy: float = 0.0
    starved: float = 0.0
    tail: float = 0.0  # idle after the last activity
    gaps: int = 0
    longest: float = 0.0
    starved_gaps: list[Window] = field(default_factory=list)

    def idle(self, begin: float, end: float, starved: bool) -> None:
        if end <= begin:
            return
        self.gaps += 1
        self.longest = max(self.longest, end - begin)
        if starved:
            self.starved += end - begin
            self.starved_gaps.append((begin, end))


@gc_disabled()
def gpu_time(activities: Sequence[GpuActivity], host: HostTime, windows: Sequence[Window]) -> GpuTime | None:
    """The mean over the windows (steps, or one window for a whole program); None for a trace without GPU activities.

    activities are in the order of their beginnings. Of a kernel that runs from one step into the next, each step has
    its part, as in op rows: over the same steps, the rows' device times add up to busy_s.
    """
    if not activities:
        return None
    per_window = _overlapping(activities, windows)
    timelines = [_timeline(part, window) for part, window in zip(per_window, windows, strict=True)]
    per_window_s = 1e-6 / len(windows)  # from total microseconds to mean seconds
    total = dict.fromkeys(GPU_KINDS.values(), 0.0)
    for part, window in zip(per_window, windows, strict=True):
        for activity in part:
            total[activity.kind] += min(activity.end, window[1]) - max(activity.begin, window[0])
    within = _Within(windows)
    return GpuTime(
        span_s=sum(end - begin for begin, end in windows) * per_window_s,
        kernel_s=total["kernel"] * per_window_s,
        memcpy_s=total["memcpy"] * per_window_s,
        memset_s=total["memset"] * per_window_s,
        busy_s=sum(line.busy for line in timelines) * per_window_s,
        starved_s=sum(line.starved for line in timelines) * per_window_s,
        gaps=sum(line.gaps for line in timelines) / len(windows),
        longest_gap_s=median(line.longest for line in timelines) * 1e-6,
        activities=sum(within(activity.begin) for activity in activities) / len(windows),
        api=_api((event for event in host.calls if within(event.ts)), len(windows)),
        tail_s=sum(line.tail for line in timelines) * per_window_s,
        starved_in={
            what: spent * per_window_s
            for what, spent in host.doing([gap for line in timelines for gap in line.starved_gaps]).items()
        },
    )


class _Within:
    """Whether a time lies in one of several windows, which are in order and do not overlap."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._begins = [begin for begin, _ in windows]
        self._ends = [end for _, end in windows]

    def __call__(self, time: float) -> bool:
        index = bisect_right(self._begins, time) - 1
        return index >= 0 and time <= self._ends[index]


def _overlapping(activities: Iterable[GpuActivity], windows: Sequence[Window]) -> list[list[GpuActivity]]:
    """The activities that run in each window, in the order of their beginnings; one may run in several."""
    begins = [begin for begin, _ in windows]
    per_window: list[list[GpuActivity]] = [[] for _ in windows]
    for activity in activities:
        index = max(0, bisect_right(begins, activity.begin) - 1)
        while index < len(windows) and windows[index][0] < activity.end:
            if activity.begin < windows[index][1]:
                per_window[index].append(activity)
            index += 1
    return per_window


def _timeline(activities: Iterable[GpuActivity], window: Window) -> _Timeline:
    """An idle gap is starved if the next activity was launched only after the gap had begun."""
    timeline, (reached, end) = _Timeline(), window
    for activity in activities:
        begin, stop = activity.begin, min(activity.end, end)
        if stop <= reached:
            continue
        timeline.idle(reached, begin, starved=activity.launched > reached)  # not where the trace lacks the launch
        timeline.busy += stop - max(begin, reached)
        reached = stop
    timeline.idle(reached, end, starved=False)  # after the last activity the host synchronises and ends the step
    timeline.tail = max(0.0, end - reached)
    return timeline


def _api(calls: Iterable[Event], windows: int) -> list[ApiCall]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in calls:
        totals[event.name][0] += 1
        totals[event.name][1] += event.dur
    found = [
        ApiCall(name=name, calls=count / windows, cpu_s=time / windows * 1e-6) for name, (count, time) in totals.items()
    ]
    return sorted(found, key=lambda call: -call.cpu_s)
