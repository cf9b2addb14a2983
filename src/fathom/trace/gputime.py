"""GPU utilisation from a trace: time in kernels, copies and API calls, and idle time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from fathom.core.record import ApiCall, GpuTime
from fathom.trace.reader import Event, gc_disabled
from fathom.trace.walk import GPU_KINDS, LAUNCH_KINDS

Window = tuple[float, float]  # begin and end, in the trace's microseconds


@dataclass
class _Timeline:
    """Busy and idle time of the GPU inside one window, in microseconds."""

    busy: float = 0.0
    starved: float = 0.0
    tail: float = 0.0  # idle after the last activity
    gaps: int = 0
    longest: float = 0.0

    def idle(self, begin: float, end: float, starved: bool) -> None:
        if end <= begin:
            return
        self.gaps += 1
        self.longest = max(self.longest, end - begin)
        self.starved += end - begin if starved else 0.0


@gc_disabled()
def gpu_time(events: Sequence[Event], windows: Sequence[Window]) -> GpuTime | None:
    """The mean over the windows (steps, or one window for a whole program); None for a trace without GPU events.

    Of a kernel that runs from one step into the next, each step has its part, as in op rows: over the same steps, the
    rows' device times add up to busy_s.
    """
    activities = sorted((event for event in events if event.cat in GPU_KINDS), key=lambda event: event.ts)
    if not activities:
        return None
    calls = [event for event in events if event.cat in LAUNCH_KINDS]
    launched = {event.args["correlation"]: event.ts for event in calls if "correlation" in event.args}
    per_window = _overlapping(activities, windows)
    api = _api([event for window_events in _by_window(calls, windows) for event in window_events], len(windows))
    timelines = [_timeline(part, window, launched) for part, window in zip(per_window, windows, strict=True)]
    per_window_s = 1e-6 / len(windows)  # from total microseconds to mean seconds

    def total(kind: str) -> float:
        return per_window_s * sum(
            _inside(event, window)
            for part, window in zip(per_window, windows, strict=True)
            for event in part
            if GPU_KINDS[event.cat] == kind
        )

    return GpuTime(
        span_s=sum(end - begin for begin, end in windows) * per_window_s,
        kernel_s=total("kernel"),
        memcpy_s=total("memcpy"),
        memset_s=total("memset"),
        busy_s=sum(line.busy for line in timelines) * per_window_s,
        starved_s=sum(line.starved for line in timelines) * per_window_s,
        gaps=sum(line.gaps for line in timelines) / len(windows),
        longest_gap_s=median(line.longest for line in timelines) * 1e-6,
        activities=sum(map(len, _by_window(activities, windows))) / len(windows),
        api=api,
        tail_s=sum(line.tail for line in timelines) * per_window_s,
    )


def _by_window(events: Iterable[Event], windows: Sequence[Window]) -> list[list[Event]]:
    """The events that begin in each window; windows are in order and do not overlap."""
    begins = [begin for begin, _ in windows]
    per_window: list[list[Event]] = [[] for _ in windows]
    for event in events:
        index = bisect_right(begins, event.ts) - 1
        if index >= 0 and event.ts <= windows[index][1]:
            per_window[index].append(event)
    return per_window


def _overlapping(activities: Iterable[Event], windows: Sequence[Window]) -> list[list[Event]]:
    """The activities that run in each window, in the order of their beginnings; one may run in several."""
    begins = [begin for begin, _ in windows]
    per_window: list[list[Event]] = [[] for _ in windows]
    for event in activities:
        index = max(0, bisect_right(begins, event.ts) - 1)
        while index < len(windows) and windows[index][0] < event.ts + event.dur:
            if event.ts < windows[index][1]:
                per_window[index].append(event)
            index += 1
    return per_window


def _inside(event: Event, window: Window) -> float:
    """The part of an overlapping event that lies in the window."""
    return min(event.ts + event.dur, window[1]) - max(event.ts, window[0])


def _timeline(activities: Iterable[Event], window: Window, launched: dict[int, float]) -> _Timeline:
    """An idle gap is starved if the next activity was launched only after the gap had begun."""
    timeline, (reached, end) = _Timeline(), window
    for event in activities:
        begin, stop = event.ts, min(event.ts + event.dur, end)
        if stop <= reached:
            continue
        launched_at = launched.get(event.args.get("correlation", -1), float("-inf"))
        timeline.idle(reached, begin, starved=launched_at > reached)
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
