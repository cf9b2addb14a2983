"""What a trace says of host and GPU together: time in kernels, in copies, in API calls, and in waiting."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from fathom.core.record import ApiCall, GpuTime
from fathom.trace.reader import Event, collector_off
from fathom.trace.walk import GPU_KINDS, LAUNCH_KINDS

Window = tuple[float, float]  # begin and end, in the trace's microseconds


@dataclass
class _Busy:
    """The GPU's timeline inside one window, added up."""

    busy: float = 0.0
    starved: float = 0.0
    gaps: int = 0
    longest: float = 0.0

    def idle(self, begin: float, end: float, starved: bool) -> None:
        if end <= begin:
            return
        self.gaps += 1
        self.longest = max(self.longest, end - begin)
        self.starved += end - begin if starved else 0.0


@collector_off()
def gpu_time(events: Sequence[Event], windows: Sequence[Window]) -> GpuTime | None:
    """The mean over the windows (steps, or one for a whole life); None for a trace without a GPU."""
    pieces = sorted((event for event in events if event.cat in GPU_KINDS), key=lambda event: event.ts)
    if not pieces:
        return None
    calls = [event for event in events if event.cat in LAUNCH_KINDS]
    launched = {event.args["correlation"]: event.ts for event in calls if "correlation" in event.args}
    parts = _parted(pieces, windows)
    inside = [event for part in parts for event in part]
    api = _api([event for part in _parted(calls, windows) for event in part], len(windows))
    timelines = [_timeline(part, window, launched) for part, window in zip(parts, windows, strict=True)]
    share = 1e-6 / len(windows)

    def total(kind: str) -> float:
        return share * sum(event.dur for event in inside if GPU_KINDS[event.cat] == kind)

    return GpuTime(
        span_s=sum(end - begin for begin, end in windows) * share,
        kernel_s=total("kernel"),
        memcpy_s=total("memcpy"),
        memset_s=total("memset"),
        busy_s=sum(line.busy for line in timelines) * share,
        starved_s=sum(line.starved for line in timelines) * share,
        gaps=sum(line.gaps for line in timelines) / len(windows),
        longest_gap_s=median(line.longest for line in timelines) * 1e-6,
        launches=len(inside) / len(windows),
        api=api,
    )


def _parted(events: Iterable[Event], windows: Sequence[Window]) -> list[list[Event]]:
    """The events that begin in each window; windows are in order and do not overlap."""
    begins = [begin for begin, _ in windows]
    parts: list[list[Event]] = [[] for _ in windows]
    for event in events:
        index = bisect_right(begins, event.ts) - 1
        if index >= 0 and event.ts <= windows[index][1]:
            parts[index].append(event)
    return parts


def _timeline(pieces: Iterable[Event], window: Window, launched: dict[int, float]) -> _Busy:
    """Walks the pieces in order. The GPU starves where it ran dry before the host had issued the next piece."""
    found, (reached, end) = _Busy(), window
    for event in pieces:
        begin, stop = event.ts, min(event.ts + event.dur, end)
        if stop <= reached:
            continue
        issued = launched.get(event.args.get("correlation", -1), float("-inf"))
        found.idle(reached, begin, starved=issued > reached)
        found.busy += stop - max(begin, reached)
        reached = stop
    found.idle(reached, end, starved=False)  # after the last piece the host was told, and closed the step
    return found


def _api(calls: Iterable[Event], windows: int) -> list[ApiCall]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in calls:
        totals[event.name][0] += 1
        totals[event.name][1] += event.dur
    found = [
        ApiCall(name=name, calls=count / windows, cpu_s=time / windows * 1e-6) for name, (count, time) in totals.items()
    ]
    return sorted(found, key=lambda call: -call.cpu_s)
