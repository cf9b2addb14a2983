"""Breaks a profiler trace (Chrome format, Fathom's or any other) down into op calls and GPU activities.

Every CPU thread is walked once with a stack of the open markers and ops. The outermost op that the taxonomy knows
claims everything inside it, which is passed over. An op that it does not know keeps its self time, and the ops inside
it count for themselves. A backward op belongs to the layer of its forward op, found by autograd's sequence number. Time
that ops of several threads share is divided equally, so that op calls and the time outside ops add up to the step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain

import numpy as np

from fathom.trace.calls import OpCall
from fathom.trace.concurrency import SharedClock
from fathom.trace.event import Event, OpArgs, all_launch_args, all_op_args, op_args
from fathom.trace.event_columns import EventColumns, Integers
from fathom.trace.frames import Frame, Frames
from fathom.trace.gpu import GpuAttribution, LaunchSite
from fathom.trace.intervals import Floats, Interval
from fathom.trace.marks import DATA, DATA_MARKS, PHASES, is_backward, is_mark, is_module
from fathom.trace.positions import LAUNCHING, MARK, OPS, UNTYPED, Launch, Parts, Positions
from fathom.trace.reader import gc_disabled
from fathom.trace.rows import Breakdown
from fathom.trace.steps import Steps
from fathom.trace.taxonomy import leaf_type, type_of
from fathom.trace.threads import HostThread, host_threads
from fathom.trace.waits import is_wait

WHOLE_PROGRAM = "fathom.life"  # around setup and all steps of a whole-program trace
# op -> the ops inside it whose arguments tell what it costs: a convolution's padding may be a word, which a trace does
# not have, and reshape copies or not
INNER = {
    **dict.fromkeys(("aten::conv1d", "aten::conv2d", "aten::conv3d"), ("aten::convolution",)),
    **dict.fromkeys(("aten::reshape", "aten::flatten"), ("aten::clone",)),
    **{f"aten::max_pool{rank}d": (f"aten::max_pool{rank}d_with_indices",) for rank in (2, 3)},  # in training
    "aten::to": ("aten::_to_copy",),
    # under torch.vmap the outer op has the shapes of one item, and the inner one those of all
    **dict.fromkeys(("aten::mm", "aten::addmm"), ("aten::baddbmm", "aten::bmm")),
    **dict.fromkeys(("aten::mv", "aten::dot"), ("aten::bmm", "aten::mm")),
}


@gc_disabled()
def breakdown(events: Iterable[Event] | EventColumns, roles: Mapping[str, str] | None = None) -> Breakdown:
    """Walks all threads and attributes GPU time to op calls; roles maps layers to their roles, where known."""
    columns = events if isinstance(events, EventColumns) else EventColumns.of(list(events))
    # Python's functions say nothing on ops, but for the modules among them
    on_host = ~columns.on_gpu & (~columns.of_category("python_function") | columns.named(is_module))
    threads = host_threads(columns, on_host)
    gpu_events = columns.chosen(columns.on_gpu)
    correlations = [args.correlation for args in all_launch_args(gpu_events)]
    steps = Steps.of(columns, on_host)
    begins = np.sort(columns.begin[on_host & columns.named(is_backward)]).tolist()
    walk = _Walk(columns, steps, Frames(columns.names_of(on_host), roles or {}, begins), set(correlations))
    # the thread with the forward pass first: backward ops look up its sequence numbers
    forward = columns.of_category("cpu_op") & ~columns.named(lambda name: name.startswith("autograd::"))
    for thread in sorted(threads, key=lambda thread: thread.first_begin(forward)):
        walk.thread(thread)
    # with a GPU the time of kernels has to add up, not that of threads
    clock = None if gpu_events else SharedClock.of([_outermost_ops(columns, thread) for thread in threads])
    op_calls = walk.finish(clock)
    gpu = GpuAttribution(op_calls, walk.launches, steps)
    activities = gpu.attribute(gpu_events, correlations)
    return Breakdown(
        op_calls=op_calls,
        steps=steps.windows,
        gpu_activities=activities,
        data_us=walk.data_us if walk.frames.has_data else None,
        events=walk.events,
        events_in_ops=walk.events_in_ops,
        host=walk.host,
        all_steps=not steps.waited,
        waits=walk.waits,
        columns=columns,
        marked=steps.marked,
        ops_outside=0 if steps.waited else walk.ops_outside,
        ambiguous=len(walk.ambiguous.intersection(correlations)),
    )


def _holders(columns: EventColumns) -> dict[int, frozenset[int]]:
    """INNER, in the numbers of the trace's kinds of events."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, kind in enumerate(columns.kinds):
        numbers[kind.name].append(number)
    found = {name: frozenset(each for one in inner for each in numbers.get(one, ())) for name, inner in INNER.items()}
    return {number: inner for name, inner in found.items() if inner for number in numbers.get(name, ())}


class _Walk:
    """The state of walking all threads."""

    def __init__(self, columns: EventColumns, steps: Steps, frames: Frames, correlations: set[int]) -> None:
        self.columns = columns
        self.steps = steps
        self.frames = frames
        self.parts = Parts(columns, steps, correlations)
        self.ops: list[tuple[int, int, int, int]] = []  # in no typed one: event, step, context, and the op around it
        self.op_ends: dict[int, float] = {}  # of those that outlast the frame around them, by rounding
        self.host: list[HostThread] = []
        self.ops_outside = 0
        self._launches: list[Launch] = []
        self.launches: dict[int, LaunchSite] = {}  # correlation id -> where a kernel was launched
        self.ambiguous: set[int] = set()  # correlation ids that several processes have
        self.waits: list[tuple[Event, OpCall | None]] = []
        self.data_us = [0.0] * len(steps)
        self.events = [0] * len(steps)
        self.events_in_ops = [0] * len(steps)
        self._holders = _holders(columns)
        self._inner: dict[int, tuple[str, OpArgs]] = {}  # by op
        self._distinct: dict[object, OpArgs] = {}  # equal arguments are kept once: a trace repeats its steps

    def thread(self, thread: HostThread) -> None:
        positions = self.parts.of(thread)
        self.host.append(thread)
        stack = [self.frames.outermost()]
        begins, parts, at = positions.begins, positions.parts, 0
        while at < len(begins):
            while stack[-1].end <= begins[at]:
                stack.pop()
            part = parts[at]
            if part in OPS:
                at = self._op(positions, at, stack)
                continue
            if part == MARK:
                self._mark(positions, at, stack)
            else:
                self._runtime_call(positions, at, stack[-1])
            at += 1
        self._launches += positions.launches()
        if self.steps.waited:
            self._count(positions)

    def _runtime_call(self, positions: Positions, at: int, frame: Frame) -> None:
        if frame.op < 0:
            positions.thread.work.append(at)
        if positions.parts[at] == LAUNCHING:
            positions.outside[at] = frame.op, frame.phase, frame.optimizer

    def _mark(self, positions: Positions, at: int, stack: list[Frame]) -> None:
        parent, step, event = stack[-1], positions.steps[at], self.columns.events[positions.index[at]]
        stack.append(self.frames.marked(parent, event.name, event.ts, min(positions.ends[at], parent.end)))
        if step < 0:
            return
        if parent.op >= 0 and self.steps.waited:
            self.events_in_ops[step] += 1
        inside = min(event.dur, self.steps.windows[step][1] - event.ts)
        if event.name.startswith(DATA_MARKS) and parent.phase != "data":
            self.data_us[step] += inside
        elif event.name in PHASES and event.name != DATA and parent.phase == "data":
            self.data_us[step] -= inside  # a pass of the network that data is made with

    def _op(self, positions: Positions, at: int, stack: list[Frame]) -> int:
        """Adds an op and gives the next position: after what a typed op claims, or inside another, a frame."""
        parent, index = stack[-1], positions.index[at]
        if parent.closure:
            parent = self.frames.around(parent, self.columns.events[index])
        begin, end, step = positions.begins[at], positions.ends[at], positions.steps[at]
        if parent.op < 0:
            positions.thread.work.append(at)
        elif step >= 0 and self.steps.waited:
            self.events_in_ops[step] += 1
        is_cut = end > parent.end
        if is_cut:
            end = self.op_ends[len(self.ops)] = parent.end
        if step < 0:
            step = self.steps.first_after(begin, end)
        # every op in an optimizer step counts as its update; fused ones may first call aten::contiguous
        if parent.phase != "optimizer" and (positions.parts[at] == UNTYPED or self._dispatched_again(positions, at)):
            frame = self.frames.opened(parent, self.columns.events[index], end, len(self.ops))
            stack.append(frame)
            self.ops.append((index, step, frame.context, parent.op))
            return at + 1
        if self.frames.has_modules:
            self.frames.passed(parent, self.columns.events[index])
        self.ops.append((index, step, parent.context, parent.op))
        after = bisect_left(positions.begins, end) if is_cut else positions.after[at]
        if step < 0 or after <= at + 1:
            return at + 1
        positions.claims.append((at + 1, after, len(self.ops) - 1))
        if self.frames.has_modules or positions.kinds[at] in self._holders:
            self._inside(positions, at, after, parent)
        return after

    @staticmethod
    def _dispatched_again(positions: Positions, at: int) -> bool:
        """Whether the op calls itself: autocast first casts the operands, whose copies are no part of a product."""
        after = positions.after[at]
        return after > at + 2 and positions.kinds[at] in positions.kinds[at + 1 : after]

    def _inside(self, positions: Positions, at: int, after: int, parent: Frame) -> None:
        """What ops inside one that claims them tell; their time is the outer one's."""
        inner, follows = self._holders.get(positions.kinds[at], frozenset()), self.frames.follows(parent)
        for position in range(at + 1, after):
            if not follows and positions.kinds[position] not in inner:
                continue
            event = self.columns.events[positions.index[position]]
            if event.cat != "cpu_op":
                continue
            if positions.kinds[position] in inner:
                self._inner[len(self.ops) - 1] = (event.name, self._arguments(event))
            if follows:
                self.frames.inside(parent, event)

    def _count(self, positions: Positions) -> None:
        """The ops and marks of every step, and those inside typed ops; others inside ops are counted already."""
        steps = np.array(positions.steps)
        counted = (steps >= 0) & (np.array(positions.parts) > LAUNCHING)
        for totals, chosen in ((self.events, counted), (self.events_in_ops, counted & positions.claimed)):
            for step, count in enumerate(np.bincount(steps[chosen]).tolist()):
                totals[step] += count

    def finish(self, clock: SharedClock | None) -> list[OpCall]:
        """The op calls of all steps, and whose the runtime calls are."""
        calls = self._calls(clock)
        self.ops_outside = sum(call is None and around < 0 for call, (*_, around) in zip(calls, self.ops, strict=True))
        for number, inner in self._inner.items():
            if (call := calls[number]) is not None:
                call.inner = inner
        self._launched(calls)
        found = [call for call in calls if call is not None]
        leaves = [call for call in found if not call.is_wrapper]  # one around others has the inputs of these
        for call, args in zip(leaves, all_op_args(call.event for call in leaves if call.event), strict=True):
            call.args = self._distinct.setdefault(args.key, args)
        return found

    def _calls(self, clock: SharedClock | None) -> list[OpCall | None]:
        """One for each op; None outside all steps."""
        table = np.fromiter(chain.from_iterable(self.ops), np.int64, 4 * len(self.ops))
        index, step, context, outer = table.reshape(-1, 4).T
        begin = self.columns.begin[index]
        end = begin + self.columns.duration[index]
        end[list(self.op_ends)] = list(self.op_ends.values())
        own = self._time(begin, end, step, clock)
        inside = np.flatnonzero(outer >= 0)
        around = outer[inside]
        np.subtract.at(own, around, self._time(begin[inside], end[inside], step[around], clock))
        wrappers = np.bincount(around, minlength=len(own)) > 0
        kinds = self.columns.kind[index].tolist()
        types = {kind: self._type(self.columns.kinds[kind].name) for kind in set(kinds)}
        rows = zip(
            kinds,
            map(self.frames.contexts.__getitem__, context.tolist()),
            step.tolist(),
            np.maximum(own, 0.0).tolist(),
            wrappers.tolist(),
            self.columns.at(index),
            strict=True,
        )
        names = [kind.name for kind in self.columns.kinds]
        return [
            OpCall(names[kind], at.update or types[kind], at.layer, at.role, at.phase, step, us, wrap, event)
            if step >= 0
            else None
            for kind, at, step, us, wrap, event in rows
        ]

    def _type(self, name: str) -> str:
        return type_of(name) or leaf_type(name)

    def _time(self, begin: Floats, end: Floats, step: Integers, clock: SharedClock | None) -> Floats:
        """How much of a step's time each interval has; what ops of several threads share is divided."""
        windows = np.array(self.steps.windows)[step]
        begin, end = np.maximum(begin, windows[:, 0]), np.minimum(end, windows[:, 1])
        time = end - begin if clock is None else clock.between(begin, end)
        return np.where((begin < end) & (step >= 0), time, 0.0)

    def _arguments(self, event: Event) -> OpArgs:
        args = op_args(event)
        return self._distinct.setdefault(args.key, args)

    def _launched(self, calls: list[OpCall | None]) -> None:
        """Whose the calls are that launched or waited; of an id that several processes have, nobody's."""
        for index, correlation, op, typed, phase, optimizer in self._launches:
            event, call = self.columns.events[index], calls[op] if op >= 0 else None
            if is_wait(event.name):
                self.waits.append((event, call))
            if correlation >= 0:
                known = self.launches.get(correlation)
                if known is not None and known.event is not None and known.event.pid != event.pid:
                    self.ambiguous.add(correlation)
                self.launches[correlation] = LaunchSite(event, call, typed, phase, optimizer)
        for correlation in self.ambiguous:
            del self.launches[correlation]


def _outermost_ops(columns: EventColumns, thread: HostThread) -> list[Interval]:
    """The intervals in which a thread is in an op."""
    found: list[Interval] = []
    reached = float("-inf")
    ops = (columns.of_category("cpu_op") & ~columns.named(is_mark))[thread.index]
    for begin, end in zip(thread.begins[ops].tolist(), thread.ends[ops].tolist(), strict=True):
        if begin >= reached:
            reached = end
            found.append((begin, end))
    return found
