"""The critical path of a trace: walks back from its last event, asking of each what it was waiting for.

A kernel waited for the last of: its launch on the host; the activity before it on its stream; and, where a stream was
told to wait for another since then, whatever ended last on other streams. The host waited for the GPU in a call that
synchronises, if an activity ended during the call. A thread that did nothing waited for the thread that worked last.
Every moment of the trace has exactly one part, so that the parts of a step add up to it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fathom.core.depth import CriticalPath, PathPart
from fathom.trace.calls import GpuActivity
from fathom.trace.columns import KINDS, Columns
from fathom.trace.event import Event
from fathom.trace.event_columns import EventColumns
from fathom.trace.rows import Breakdown
from fathom.trace.steps import Window
from fathom.trace.taxonomy import kernel_type
from fathom.trace.threads import HostThread

ROUNDING_US = 1.0  # older traces have whole microseconds: an activity may seem to begin before the one before it ended
OUTSIDE = "outside ops"
LAUNCH_LATENCY = "launch latency"  # between the end of the launch call and the beginning of the kernel
FIRST = "first kernel of its stream"  # the same of the first, which may have waited for work before the trace
BETWEEN_KERNELS = "between kernels"
UNKNOWN = "launch not in the trace"
Key = tuple[str, str]  # kind and name
Place = tuple[int | None, int | None]  # on an activity, or on a thread; or neither, at the beginning
START: Key = ("host", OUTSIDE)


def critical_path(found: Breakdown, columns: Columns) -> CriticalPath | None:
    """None where the trace has no steps or nothing in them that takes time."""
    if not found.steps or not (found.gpu_activities or any(thread.work for thread in found.host)):
        return None
    walk = _Walk(found, columns)
    walk.run()
    if not walk.begins:
        return None  # whatever is in it has no length
    return _parts(walk.begins, walk.keys, walk.last, found.steps, found.typical_steps)


@dataclass(frozen=True, slots=True)
class _Spans:
    """The work of one thread as intervals, in order and without overlap."""

    begins: list[float]
    ends: list[float]
    names: list[str]
    waits: list[Event]
    wait_begins: list[float]
    waited: list[bool]  # whether any of the waits begins in the span

    @classmethod
    def of(cls, thread: HostThread, columns: EventColumns) -> _Spans:
        work = np.array(thread.work, dtype=np.int64)
        begins, ends = thread.begins[work], thread.ends[work]
        reached = np.maximum.accumulate(ends)
        begins[1:] = np.maximum(begins[1:], reached[:-1])  # outermost ones overlap by rounding only
        kept = ends > begins
        wait_begins = np.array([wait.ts for wait in thread.waits])
        borders = np.searchsorted(wait_begins, np.append(begins[kept], np.inf))
        return cls(
            begins=begins[kept].tolist(),
            ends=ends[kept].tolist(),
            names=columns.names_at(thread.index[work[kept]]),
            waits=thread.waits,
            wait_begins=wait_begins.tolist(),
            waited=(np.diff(borders) > 0).tolist(),
        )


class _Ended:
    """Activities by when they ended."""

    def __init__(self, order: Sequence[int], ends: Sequence[float]) -> None:
        self._order = order
        self._ends = [ends[index] for index in order]

    def last_by(self, time: float, visited: bytearray, since: float = float("-inf")) -> int | None:
        """The last that ended by a time, but after another, and that is not on the path yet."""
        at = bisect_right(self._ends, time) - 1
        while at >= 0 and self._ends[at] > since:
            if not visited[self._order[at]]:
                return self._order[at]
            at -= 1
        return None


class _Walk:
    """The path so far: where each part begins, latest first, and whose it is."""

    def __init__(self, found: Breakdown, columns: Columns) -> None:
        self.activities = found.gpu_activities
        self.ends = [each.end for each in self.activities]
        self.kinds = [KINDS[kind] for kind in columns.kind.tolist()]
        self.threads = [_Spans.of(thread, found.columns) for thread in found.host]
        self.stream_waits = sorted(time for thread in found.host for time in thread.stream_waits)
        self.first = min(self._all_begins() + [begin for begin, _ in found.steps])
        self.last = max(self._all_ends() + [end for _, end in found.steps])
        self.begins: list[float] = []
        self.keys: list[Key] = []
        self.time = self.last  # the path is known from here on
        self.visited = bytearray(len(self.activities))
        self._index_activities(columns)
        self._index_host(found.host)

    def _all_begins(self) -> list[float]:
        return [each.begin for each in self.activities[:1]] + [
            thread.begins[0] for thread in self.threads if thread.begins
        ]

    def _all_ends(self) -> list[float]:
        return self.ends + [thread.ends[-1] for thread in self.threads if thread.ends]

    def _index_activities(self, columns: Columns) -> None:
        by_end = np.argsort(columns.end, kind="stable")
        self.stream = columns.stream.tolist()
        self.ended = _Ended(by_end.tolist(), self.ends)
        self.ended_on: list[_Ended] = []  # of each stream
        before = np.full(len(self.ends), -1)
        for stream in range(len(columns.streams)):
            own = np.flatnonzero(columns.stream == stream)
            before[own[1:]] = own[:-1]
            self.ended_on.append(_Ended(by_end[columns.stream[by_end] == stream].tolist(), self.ends))
        self.before: list[int] = before.tolist()  # what was launched before it on its stream; -1: nothing
        self.of_call = {id(each.launch): index for index, each in enumerate(self.activities) if each.kind == "memcpy"}

    def _index_host(self, host: Sequence[HostThread]) -> None:
        ends = np.array([end for thread in self.threads for end in thread.ends])
        numbers = np.repeat(np.arange(len(self.threads)), [len(thread.ends) for thread in self.threads])
        order = np.lexsort((numbers, ends))
        self.host_ends: list[float] = ends[order].tolist()
        self.host_threads: list[int] = numbers[order].tolist()
        self.thread_of = {thread.key: number for number, thread in enumerate(host)}

    def run(self) -> None:
        activity = self.ended.last_by(self.last, self.visited)
        thread, ended = self._worked_last(self.last)
        if activity is not None and (thread is None or self.activities[activity].end >= ended):
            self._emit(self.activities[activity].end, START)
            thread = None
        else:
            activity = None
        while self.time > self.first:
            if activity is not None:
                activity, thread = self._through_activity(activity)
            elif thread is not None:
                activity, thread = self._through_host(thread)
            else:
                self._emit(self.first, START)

    def _emit(self, begin: float, key: Key) -> None:
        """The path from begin on, to where it is known, has this key."""
        begin = max(begin, self.first)
        if begin < self.time:
            self.begins.append(begin)
            self.keys.append(key)
            self.time = begin

    def _through_activity(self, index: int) -> Place:
        """Over an activity to what it waited for."""
        each = self.activities[index]
        self.visited[index] = True
        self._emit(each.begin, (self.kinds[index], self._type(each)))
        launch = each.launch if each.launch is not None and each.launch.ts <= each.begin else None
        launched = launch.ts if launch is not None else float("-inf")
        cause = self.ended_on[self.stream[index]].last_by(each.begin + ROUNDING_US, self.visited, launched)
        if self._may_wait_for_streams(index):
            since = launched if cause is None else max(launched, self.activities[cause].end)
            other = self.ended.last_by(each.begin, self.visited, since)
            cause = cause if other is None else other
        if cause is not None:
            self._emit(self.activities[cause].end, ("wait", BETWEEN_KERNELS if launch else UNKNOWN))
            return cause, None
        if launch is None:
            return None, None
        self._emit(launch.end, ("wait", LAUNCH_LATENCY if self.before[index] >= 0 else FIRST))
        return None, self.thread_of.get((launch.pid, launch.tid))

    def _may_wait_for_streams(self, index: int) -> bool:
        """Whether a stream was told to wait for another between this launch and the one before it on its stream."""
        each, before = self.activities[index], self.before[index]
        if each.launch is None:
            return True  # the trace does not tell
        previous = self.activities[before].launch if before >= 0 else None
        if previous is each.launch:
            return True  # one CUDA graph: its branches wait for each other
        at = bisect_left(self.stream_waits, previous.ts if previous is not None else float("-inf"))
        return at < len(self.stream_waits) and self.stream_waits[at] < each.launch.ts

    def _type(self, activity: GpuActivity) -> str:
        return activity.op_call.type if activity.op_call is not None else kernel_type(activity.name)

    def _through_host(self, number: int) -> Place:
        """Back along a thread to where it waited for the GPU, or for the work of another thread."""
        thread = self.threads[number]
        at = bisect_left(thread.begins, self.time) - 1
        while self.time > self.first:
            end = thread.ends[at] if at >= 0 else float("-inf")
            if end < self.time:
                other, ended = self._worked_last(self.time)
                self._emit(ended, START)
                if other != number:
                    return None, other
            awaited = self._awaited_in(thread, at) if thread.waited[at] else None
            if awaited is not None:
                self._emit(self.activities[awaited].end, ("host", thread.names[at]))
                return awaited, None
            self._emit(thread.begins[at], ("host", thread.names[at]))
            at -= 1
        return None, None

    def _worked_last(self, time: float) -> tuple[int | None, float]:
        """The thread whose work ended last by a time, and when that was; none before all work."""
        at = bisect_right(self.host_ends, time) - 1
        return (self.host_threads[at], self.host_ends[at]) if at >= 0 else (None, self.first)

    def _awaited_in(self, thread: _Spans, at: int) -> int | None:
        """The activity that a thread waited for last in one of its spans, before where the path is known."""
        wait = bisect_left(thread.wait_begins, self.time) - 1
        while wait >= 0 and thread.wait_begins[wait] >= thread.begins[at]:
            awaited = self._awaited(thread.waits[wait])
            if awaited is not None:
                return awaited
            wait -= 1
        return None

    def _awaited(self, call: Event) -> int | None:
        """The activity whose end a call waited for; None where it did not wait."""
        until = min(call.end, self.time)
        if "Memcpy" in call.name:  # waits for its own copy, if for anything
            copy = self.of_call.get(id(call))
            waited = copy is not None and not self.visited[copy] and self.activities[copy].end <= until
            return copy if waited else None
        return self.ended.last_by(until, self.visited, call.ts)


def _parts(
    begins: Sequence[float], keys: Sequence[Key], last: float, steps: Sequence[Window], typical: Collection[int]
) -> CriticalPath:
    """Cuts the path at the borders of steps and adds it up."""
    names = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    starts = np.array(begins[::-1])
    owners = np.array([names[key] for key in keys[::-1]])
    windows = np.array(steps)
    borders = np.sort(np.concatenate([starts, [last], np.clip(windows.ravel(), starts[0], last)]))
    left, length = borders[:-1], np.diff(borders)
    owner = owners[np.searchsorted(starts, left, side="right") - 1]
    step = np.searchsorted(windows[:, 0], left, side="right") - 1
    inside = (step >= 0) & (left < windows[np.maximum(step, 0), 1])
    table = np.zeros((len(steps), len(names)))
    np.add.at(table, (step[inside], owner[inside]), length[inside] * 1e-6)
    means = table[sorted(typical)].mean(axis=0)
    parts = [PathPart(kind=kind, name=name, seconds=float(means[index])) for (kind, name), index in names.items()]
    per_step = {
        kind: table[:, [index for (each, _), index in names.items() if each == kind]].sum(axis=1).tolist()
        for kind in dict.fromkeys(kind for kind, _ in names)
    }
    return CriticalPath(parts=sorted(parts, key=lambda part: -part.seconds), per_step_s=per_step)
