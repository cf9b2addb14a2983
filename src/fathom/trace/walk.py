"""Breaks a profiler trace (Chrome format, Fathom's or any other) down into op calls and GPU activities.

Every CPU thread is walked once with a stack of the open markers and ops. The outermost op that the taxonomy knows
claims everything inside it, which is passed over. An op that it does not know keeps its self time, and the ops inside
it count for themselves. A backward op belongs to the layer of its forward op, found by autograd's sequence number. Time
that ops of several threads share is divided equally, so that op calls and the time outside ops add up to the step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from fathom.trace.concurrency import SharedClock
from fathom.trace.event import LAUNCH, Event, OpArgs, launch_args, op_args, sequence_args
from fathom.trace.event_columns import EventColumns, Integers, Mask
from fathom.trace.gpu import GpuAttribution, LaunchSite
from fathom.trace.intervals import Interval
from fathom.trace.marks import DATA, EVALUATE, FORWARD, LAYER, MODULE, PHASES, is_backward_node, is_mark, is_module
from fathom.trace.reader import gc_disabled
from fathom.trace.rows import Breakdown, OpCall
from fathom.trace.steps import NO_STEP, Steps
from fathom.trace.taxonomy import leaf_type, type_of, update_type
from fathom.trace.threads import HostThread, host_threads
from fathom.trace.waits import is_wait

WHOLE_PROGRAM = "fathom.life"  # around setup and all steps of a whole-program trace
# op -> the ops inside it whose arguments tell what it costs: a convolution's padding may be a word, which a trace does
# not have, and reshape copies or not
INNER = {
    **dict.fromkeys(("aten::conv1d", "aten::conv2d", "aten::conv3d"), ("aten::convolution",)),
    **dict.fromkeys(("aten::reshape", "aten::flatten"), ("aten::clone",)),
}
CALL, LAUNCHING, OP, MARK = range(4)  # a call of the GPU's runtime; one of them that launched something, or waited


class Frame(msgspec.Struct, gc=False):
    """An open marker, or an open op that is not in the taxonomy, and the context that its children inherit."""

    end: float
    phase: str = ""
    layer: str = ""
    role: str = ""
    optimizer: str = ""
    op: Frame | None = None  # the innermost open op: this frame itself while it is open, or one around it
    step: int = NO_STEP  # of an op
    own_us: float = 0.0  # of an op: its time without that of the ops inside it
    call: OpCall | None = None  # of an op: itself
    has_ops: bool = False


class Claim(NamedTuple):
    """The events of a thread that are inside a typed op."""

    first: int
    end: int  # the first after them
    call: OpCall


@dataclass(slots=True)
class _Positions:
    """A thread's events in the order in which they nest, as lists: these are read one by one."""

    thread: HostThread
    index: list[int]  # into all events
    begins: list[float]
    ends: list[float]
    after: list[int]  # the first position that begins at its end or later
    steps: list[int]
    kinds: list[int]  # into the kinds of all events
    parts: list[int]  # CALL, LAUNCHING, OP or MARK
    correlations: dict[int, int]  # of the calls that launched or waited
    sites: dict[int, LaunchSite] = field(default_factory=dict)  # of those of them in no typed op
    claims: list[Claim] = field(default_factory=list)


@gc_disabled()
def breakdown(events: Iterable[Event] | EventColumns, roles: Mapping[str, str] | None = None) -> Breakdown:
    """Walks all threads and attributes GPU time to op calls; roles maps layers to their roles, where known."""
    columns = events if isinstance(events, EventColumns) else EventColumns.of(list(events))
    # Python's functions say nothing on ops, but for the modules among them
    on_host = ~columns.on_gpu & (~columns.of_category("python_function") | columns.named(is_module))
    threads = host_threads(columns, on_host)
    gpu_events = columns.chosen(columns.on_gpu)
    correlations = [launch_args(event).correlation for event in gpu_events]
    steps = Steps.of(columns, on_host)
    clock: SharedClock | None = None
    if not gpu_events:  # with a GPU the time of kernels has to add up, not that of threads
        clock = SharedClock.of([_outermost_ops(columns, thread) for thread in threads])
    walk = _Walk(columns, on_host, steps, roles or {}, set(correlations), clock)
    # the thread with the forward pass first: backward ops look up its sequence numbers
    forward = columns.of_category("cpu_op") & ~columns.named(lambda name: name.startswith("autograd::"))
    for thread in sorted(threads, key=lambda thread: thread.first_begin(forward)):
        walk.thread(thread)
    walk.decode_arguments()
    gpu = GpuAttribution(walk.op_calls, walk.launches, steps)
    activities = gpu.attribute(gpu_events, correlations)
    return Breakdown(
        op_calls=walk.op_calls,
        steps=steps.windows,
        gpu_activities=activities,
        data_us=walk.data_us if walk.has_data else None,
        events=walk.events,
        events_in_ops=walk.events_in_ops,
        host=walk.host,
        all_steps=not steps.waited,
        waits=walk.waits,
        columns=columns,
    )


class _Walk:
    """The state of walking all threads."""

    def __init__(
        self,
        columns: EventColumns,
        on_host: Mask,
        steps: Steps,
        roles: Mapping[str, str],
        correlations: set[int],
        clock: SharedClock | None,
    ) -> None:
        self.columns = columns
        self.steps = steps
        self.roles = roles
        self.correlations = correlations  # of what ran on the GPU
        self.clock = clock
        names = columns.names_of(on_host)
        self.has_phases = FORWARD in names
        self.has_data = DATA in names
        self.has_modules = any(name.startswith((LAYER, MODULE)) for name in names)
        self.has_backward = any(name.startswith(EVALUATE) for name in names)
        self.parts: Integers = np.array([_part(kind.category, kind.name) for kind in columns.kinds], dtype=np.int64)
        self.op_calls: list[OpCall] = []
        self.launches: dict[int, LaunchSite] = {}  # correlation id -> where a kernel was launched
        self.waits: list[tuple[Event, OpCall | None]] = []
        self.data_us = [0.0] * len(steps)
        self.events = [0] * len(steps)
        self.events_in_ops = [0] * len(steps)
        self.layer_of: dict[int, tuple[str, str]] = {}  # autograd sequence number -> layer and role
        self.last_backward = ("", "")
        self.host: list[HostThread] = []
        self._contexts: dict[tuple[str, str, str], tuple[str, str, str]] = {}
        self._distinct: dict[object, OpArgs] = {}  # equal arguments are kept once: a trace repeats its steps

    def thread(self, thread: HostThread) -> None:
        # a foreign trace marks at most backward, optimizer and data: everything else is forward
        stack = [Frame(end=float("inf"), phase="" if self.has_phases else "forward")]
        positions = self._positions(thread)
        self.host.append(thread)
        begins, at = positions.begins, 0
        while at < len(begins):
            while stack[-1].end <= begins[at]:
                self._close(stack)
            at = self._event(positions, at, stack)
        while len(stack) > 1:
            self._close(stack)
        self._launched(positions)
        if self.steps.waited:
            self._count(positions)

    def _positions(self, thread: HostThread) -> _Positions:
        kinds = self.columns.kind[thread.index]
        parts = self.parts[kinds]
        calls = np.flatnonzero(parts == CALL)
        found: dict[int, int] = {}
        for at, event in zip(calls.tolist(), self.columns.at(thread.index[calls]), strict=True):
            correlation = launch_args(event).correlation
            if correlation in self.correlations or is_wait(event.name):
                found[at] = correlation
        parts[np.fromiter(found, np.int64, len(found))] = LAUNCHING
        return _Positions(
            thread=thread,
            index=thread.index.tolist(),
            begins=thread.begins.tolist(),
            ends=thread.ends.tolist(),
            after=np.searchsorted(thread.begins, thread.ends).tolist(),
            steps=self.steps.all_at(thread.begins).tolist(),
            kinds=kinds.tolist(),
            parts=parts.tolist(),
            correlations=found,
        )

    def _event(self, positions: _Positions, at: int, stack: list[Frame]) -> int:
        """Takes one event that is in no typed op, and gives the position of the next such."""
        parent, part, step = stack[-1], positions.parts[at], positions.steps[at]
        outside = parent.op is None
        if outside and part != MARK:
            positions.thread.work.append(at)
        if part == CALL:
            return at + 1
        event, name = self.columns.events[positions.index[at]], self.columns.kinds[positions.kinds[at]].name
        if part == LAUNCHING:
            call = parent.op.call if parent.op is not None else None
            positions.sites[at] = LaunchSite(event, call, False, parent.phase, parent.optimizer)
            return at + 1
        if self.steps.waited and step >= 0 and not outside:
            self.events_in_ops[step] += 1
        begin, end = positions.begins[at], positions.ends[at]
        is_cut = end > parent.end  # one that outlasts its parent by rounding ends with it
        end = parent.end if is_cut else end
        if part == MARK:
            self._mark(event, name, end, step, stack)
            return at + 1
        claimed_by = self._op(event, name, begin, end, step, stack)
        if claimed_by is None:
            return at + 1
        after = max(at + 1, bisect_left(positions.begins, end) if is_cut else positions.after[at])
        if after > at + 1:
            positions.claims.append(Claim(at + 1, after, claimed_by))
            self._inside(positions, at + 1, after, claimed_by, parent)
        return after

    def _inside(self, positions: _Positions, first: int, end: int, claimed_by: OpCall, parent: Frame) -> None:
        """What ops inside one that claims them tell; their time is the outer one's."""
        inner = INNER.get(claimed_by.op, ())
        # a composite op creates several autograd nodes, one for each op inside it
        in_sequence = self.has_modules and self.has_backward and parent.phase != "backward"
        if not (inner or in_sequence):
            return
        for event in map(self.columns.events.__getitem__, positions.index[first:end]):
            if event.cat != "cpu_op":
                continue
            if event.name in inner:
                claimed_by.inner = (event.name, self._arguments(event))
            sequence = sequence_args(event).sequence if in_sequence else None
            if sequence is not None:
                self.layer_of[sequence] = (claimed_by.layer, claimed_by.role)

    def _launched(self, positions: _Positions) -> None:
        """Whose the calls are that launched or waited: of typed ops around them, or as they were found."""
        at = np.fromiter(positions.correlations, np.int64, len(positions.correlations))
        claims = positions.claims
        owner = np.searchsorted([claim.first for claim in claims], at, side="right") - 1
        for position, number in zip(at.tolist(), owner.tolist(), strict=True):
            if position in positions.sites:
                site = positions.sites[position]
            else:
                site = LaunchSite(self.columns.events[positions.index[position]], claims[number].call, typed=True)
            name, correlation = self.columns.kinds[positions.kinds[position]].name, positions.correlations[position]
            if is_wait(name):
                self.waits.append((site.event, site.call))
            if correlation >= 0:
                self.launches[correlation] = site

    def _count(self, positions: _Positions) -> None:
        """The ops and marks of every step, and those of them inside typed ops: others inside ops are counted before."""
        steps, parts = np.array(positions.steps), np.array(positions.parts)
        counted = (steps >= 0) & (parts >= OP)
        depth = np.zeros(len(steps) + 1, dtype=np.int64)
        depth[[claim.first for claim in positions.claims]] += 1
        depth[[claim.end for claim in positions.claims]] -= 1
        inside = counted & (np.cumsum(depth)[:-1] > 0)
        for totals, chosen in ((self.events, counted), (self.events_in_ops, inside)):
            for step, count in enumerate(np.bincount(steps[chosen]).tolist()):
                totals[step] += count

    def _mark(self, event: Event, name: str, end: float, step: int, stack: list[Frame]) -> None:
        parent = stack[-1]
        frame = _opened(parent, end)
        stack.append(frame)
        if name in PHASES:
            frame.phase = PHASES[name]
        elif name.startswith(LAYER):
            frame.layer = name.removeprefix(LAYER)
            frame.role = self.roles.get(frame.layer, frame.role or "network")
        elif name.startswith(MODULE):
            frame.layer = f"{frame.layer}.{name.removeprefix(MODULE)}".lstrip(".")
        elif name.startswith("Optimizer.step#"):
            frame.phase, frame.optimizer = "optimizer", name.removeprefix("Optimizer.step#").split(".")[0]
        elif name.startswith("Optimizer.zero_grad"):
            frame.phase = "optimizer"
        elif name.startswith("enumerate(DataLoader)"):
            frame.phase = "data"
        if name == DATA and parent.phase != "data":
            self._data(event, step, 1)
        elif name in PHASES and name != DATA and parent.phase == "data":
            self._data(event, step, -1)  # a pass of the network that data is made with

    def _data(self, event: Event, step: int, sign: int) -> None:
        if step >= 0:
            self.data_us[step] += sign * min(event.dur, self.steps.windows[step][1] - event.ts)

    def _op(
        self, event: Event, name: str, begin: float, end: float, step: int, stack: list[Frame]
    ) -> OpCall | None:
        """The call of an op that the taxonomy knows, and that claims what is inside it; else opens a frame for it."""
        parent = stack[-1]
        parent.has_ops = True
        if step < 0:
            step = self.steps.first_after(begin, end)
        time = self._time(begin, end, step)
        outer = parent.op
        if outer is not None:
            outer.own_us -= time if step == outer.step else self._time(begin, end, outer.step)
        # every op in an optimizer step counts as its update; fused ones may first call aten::contiguous
        in_update = parent.phase == "optimizer"
        kind = update_type(parent.optimizer or "Clip") if in_update else type_of(name)
        if kind is not None:
            if self.has_modules:
                self._follow_sequence(event, name, parent)
            return self._add_op_call(event, name, time, parent, kind, step)
        frame = _opened(parent, end)
        self._follow_sequence(event, name, frame)
        frame.op, frame.step = frame, step
        frame.call = self._add_op_call(event, name, time, frame, leaf_type(name), step)
        frame.own_us = time
        stack.append(frame)
        return None

    def _follow_sequence(self, event: Event, name: str, frame: Frame) -> None:
        """Autograd's numbers take the layer of a forward op to its backward."""
        backward = name.startswith(EVALUATE)
        if backward or (frame.phase == "forward" and is_backward_node(name)):
            frame.phase = "backward"
        if not self.has_modules:  # there are no layers
            return
        sequence = sequence_args(event).sequence
        if backward:
            # AccumulateGrad has no sequence number; it runs right after the node that produced the gradient
            if sequence is not None:
                unknown = "", self._role(Frame(frame.end, "backward"))
                self.last_backward = self.layer_of.get(sequence, unknown)
            frame.layer, frame.role = self.last_backward
        elif sequence is not None and frame.phase != "backward":
            self.layer_of[sequence] = (frame.layer, self._role(frame))

    def _role(self, frame: Frame) -> str:
        """The role of the work; "" in a trace without modules, where network and loss cannot be distinguished."""
        if frame.phase in {"optimizer", "data"}:
            return frame.phase
        if frame.role or frame.layer:
            return frame.role or "network"
        if not self.has_modules:
            return ""
        if frame.phase not in {"forward", "backward"}:
            return "other"
        return "loss" if self.has_backward else "network"

    def _time(self, begin: float, end: float, step: int) -> float:
        """How much of a step's time an interval has; what ops of several threads share is divided."""
        if step < 0:
            return 0.0
        first, last = self.steps.windows[step]
        begin = max(begin, first)
        end = min(end, last)
        if begin >= end:
            return 0.0
        return end - begin if self.clock is None else self.clock.between(begin, end)

    def _add_op_call(
        self, event: Event, name: str, time: float, frame: Frame, kind: str, step: int
    ) -> OpCall | None:
        """None outside all steps."""
        if step < 0:
            return None
        key = frame.phase, frame.layer, frame.role
        context = self._contexts.get(key)
        if context is None:
            layer = "" if frame.phase in {"optimizer", "data"} else frame.layer
            context = self._contexts[key] = layer, self._role(frame), frame.phase or "other"
        found = OpCall(name, kind, *context, step, time, event=event)
        self.op_calls.append(found)
        return found

    def decode_arguments(self) -> None:
        """Of all op calls but those around others, whose inputs are those of the ops inside them."""
        for call in self.op_calls:
            if not call.is_wrapper and call.event is not None:
                call.args = self._arguments(call.event)

    def _arguments(self, event: Event) -> OpArgs:
        args = op_args(event)
        return self._distinct.setdefault(args.key, args)

    def _close(self, stack: list[Frame]) -> None:
        frame = stack.pop()
        frame.op = None  # it may be the frame itself: a cycle would never be freed
        stack[-1].has_ops |= frame.has_ops  # a marker between an op and its children makes the op no leaf
        if frame.call is not None:
            frame.call.cpu_us = max(0.0, frame.own_us)
            frame.call.is_wrapper = frame.has_ops


def _part(category: str | None, name: str) -> int:
    if category == LAUNCH:
        return CALL
    return OP if category == "cpu_op" and not is_mark(name) else MARK


def _opened(parent: Frame, end: float) -> Frame:
    """A frame with its parent's context."""
    return Frame(end, parent.phase, parent.layer, parent.role, parent.optimizer, parent.op)


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
