"""Breaks a profiler trace (Chrome format, Fathom's or any other) down into op calls and GPU activities.

Every CPU thread is walked once with a stack of the open markers and ops. The outermost op that the taxonomy knows
claims everything inside it. An op that it does not know keeps its self time, and the ops inside it count for
themselves. A backward op belongs to the layer of its forward op, found by autograd's sequence number. Time that ops of
several threads share is divided equally, so that op calls and the time outside ops add up to the step.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from fathom.trace.concurrency import SharedClock
from fathom.trace.event import GPU_KINDS, LAUNCH, NO_ARGS, Event, OpArgs, launch_args, op_args, sequence_args
from fathom.trace.gpu import GpuAttribution, LaunchSite
from fathom.trace.reader import gc_disabled
from fathom.trace.rows import Breakdown, OpCall
from fathom.trace.steps import Steps
from fathom.trace.taxonomy import leaf_type, type_of, update_type
from fathom.trace.threads import HostThread, in_order
from fathom.trace.waits import is_wait

WHOLE_PROGRAM = "fathom.life"  # around setup and all steps of a whole-program trace
# how the names of marks begin that have the category of an op: our own fast ones, and all of torch before 1.10
MARKS = ("fathom.", "ProfilerStep#", "Optimizer.step#", "Optimizer.zero_grad#", "enumerate(DataLoader)#")
LAYER = "fathom.layer "  # followed by the module path
MODULE = "nn.Module: "  # how torch.profiler marks modules with with_stack=True
DATA = "fathom.data"
EVALUATE = "autograd::engine::evaluate_function"
BACKWARD_NODE = re.compile(r"\w*Backward\d*|torch::autograd::AccumulateGrad")  # all that torch before 1.8 has
PHASES = {f"fathom.{phase}": phase for phase in ("data", "forward", "backward", "optimizer")}
# op -> the ops inside it whose arguments tell what it costs: a convolution's padding may be a word, which a trace does
# not have, and reshape copies or not
INNER = {
    **dict.fromkeys(("aten::conv1d", "aten::conv2d", "aten::conv3d"), ("aten::convolution",)),
    **dict.fromkeys(("aten::reshape", "aten::flatten"), ("aten::clone",)),
}


@cache
def is_backward_node(op: str) -> bool:
    return BACKWARD_NODE.fullmatch(op) is not None


class Frame(msgspec.Struct, gc=False):
    """An open marker, or an open op that is not in the taxonomy, and the context that its children inherit."""

    end: float
    event: Event | None
    phase: str = ""
    layer: str = ""
    role: str = ""
    optimizer: str = ""
    op: Frame | None = None  # the innermost open op: this frame itself while it is open, or one around it
    step: int | None = None  # of an op
    own_us: float = 0.0  # of an op: its time without that of the ops inside it
    call: OpCall | None = None  # of an op: itself
    has_ops: bool = False


@gc_disabled()
def breakdown(events: Iterable[Event], roles: Mapping[str, str] | None = None) -> Breakdown:
    """Walks all threads and attributes GPU time to op calls; roles maps layers to their roles, where known."""
    threads: dict[Any, list[Event]] = defaultdict(list)
    gpu_events: list[Event] = []
    for event in events:
        if event.cat in GPU_KINDS:
            gpu_events.append(event)
        elif event.cat != "python_function" or event.name.startswith(MODULE):
            threads[event.pid, event.tid].append(event)
    threads = {key: in_order(thread) for key, thread in threads.items()}
    names = {event.name for thread in threads.values() for event in thread}
    steps = Steps.of(threads.values(), gpu_events, names)
    clock: SharedClock | None = None
    if not gpu_events:  # with a GPU the time of kernels has to add up, not that of threads
        clock = SharedClock.of([_outermost_ops(thread) for thread in threads.values()])
    walk = _Walk(steps, roles or {}, names, clock)
    # the thread with the forward pass first: backward ops look up its sequence numbers
    for thread in sorted(threads.values(), key=_first_op_us):
        walk.thread(thread)
    gpu = GpuAttribution(walk.op_calls, walk.launches, steps)
    activities = gpu.attribute(gpu_events)
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
    )


class _Walk:
    """The state of walking all threads."""

    def __init__(self, steps: Steps, roles: Mapping[str, str], names: set[str], clock: SharedClock | None) -> None:
        self.steps = steps
        self.roles = roles
        self.has_phases = "fathom.forward" in names
        self.has_data = DATA in names
        self.has_modules = any(name.startswith((LAYER, MODULE)) for name in names)
        self.has_backward = any(name.startswith(EVALUATE) for name in names)
        self.marks = {name for name in names if name.startswith(MARKS)}
        self.clock = clock
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

    def thread(self, events: Sequence[Event]) -> None:
        # a foreign trace marks at most backward, optimizer and data: everything else is forward
        stack = [Frame(end=float("inf"), event=None, phase="" if self.has_phases else "forward")]
        claimed_until = float("-inf")
        claimed_by: OpCall | None = None
        host = HostThread((events[0].pid, events[0].tid))
        self.host.append(host)
        waited, marks = self.steps.waited, self.marks
        for event in events:
            inside = event.ts < claimed_until
            if not inside:
                while stack[-1].end <= event.ts:
                    self._close(stack)
            outermost = not inside and stack[-1].op is None
            if event.cat == LAUNCH:
                self._launch(event, claimed_by if inside else None, stack[-1])
                host.add_call(event, outermost)
                continue
            if waited:
                self._count(event, inside or stack[-1].op is not None)
            if inside:
                self._inner(event, claimed_by, stack[-1])
            elif event.cat != "cpu_op" or event.name in marks:
                self._mark(event, stack)
            else:
                if outermost:
                    host.work.append(event)
                claimed_by = self._op(event, stack)
                claimed_until = min(event.ts + event.dur, stack[-1].end) if claimed_by else float("-inf")
        while len(stack) > 1:
            self._close(stack)

    def _count(self, event: Event, inside_op: bool) -> None:
        step = self.steps.at(event.ts)
        if step is not None:
            self.events[step] += 1
            self.events_in_ops[step] += inside_op

    def _inner(self, event: Event, claimed_by: OpCall | None, frame: Frame) -> None:
        """An event inside a claimed op: its time is the op's."""
        if claimed_by is None or event.cat != "cpu_op":
            return
        if claimed_by.op in INNER and event.name in INNER[claimed_by.op]:
            claimed_by.inner = (event.name, self._arguments(event))
        if self.has_modules and self.has_backward and frame.phase != "backward":
            # a composite op creates several autograd nodes, one for each op inside it
            sequence = sequence_args(event).sequence
            if sequence is not None:
                self.layer_of[sequence] = (claimed_by.layer, claimed_by.role)

    def _mark(self, event: Event, stack: list[Frame]) -> None:
        parent, name = stack[-1], event.name
        frame = _inside(parent, event)
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
            self._data(event, 1)
        elif name in PHASES and name != DATA and parent.phase == "data":
            self._data(event, -1)  # a pass of the network that data is made with

    def _data(self, event: Event, sign: int) -> None:
        step = self.steps.at(event.ts)
        if step is not None:
            self.data_us[step] += sign * min(event.dur, self.steps.windows[step][1] - event.ts)

    def _op(self, event: Event, stack: list[Frame]) -> OpCall | None:
        """The call of an op that the taxonomy knows, and that claims what is inside it; else opens a frame for it."""
        parent = stack[-1]
        parent.has_ops = True
        end = min(event.ts + event.dur, parent.end)  # one that outlasts its parent by rounding ends with it
        step = self.steps.overlapping(event.ts, end)
        time = 0.0 if step is None else self._time(event.ts, end, step)
        if parent.op is not None and parent.op.step is not None:
            parent.op.own_us -= time if step == parent.op.step else self._time(event.ts, end, parent.op.step)
        # every op in an optimizer step counts as its update; fused ones may first call aten::contiguous
        in_update = parent.phase == "optimizer"
        kind = update_type(parent.optimizer or "Clip") if in_update else type_of(event.name)
        if kind is not None:
            if self.has_modules:
                self._follow_sequence(event, parent)
            return self._add_op_call(event, time, parent, kind, step, self._arguments(event))
        frame = _inside(parent, event)
        self._follow_sequence(event, frame)
        frame.op, frame.step = frame, step
        frame.call = self._add_op_call(event, time, frame, leaf_type(event.name), step)
        frame.own_us = time
        stack.append(frame)
        return None

    def _follow_sequence(self, event: Event, frame: Frame) -> None:
        """Autograd's numbers take the layer of a forward op to its backward."""
        backward = event.name.startswith(EVALUATE)
        if backward or (frame.phase == "forward" and is_backward_node(event.name)):
            frame.phase = "backward"
        if not self.has_modules and not backward:
            return
        sequence = sequence_args(event).sequence
        if backward:
            # AccumulateGrad has no sequence number; it runs right after the node that produced the gradient
            if sequence is not None:
                unknown = "", self._role(Frame(frame.end, event, "backward"))
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
        first, last = self.steps.windows[step]
        begin, end = max(begin, first), min(end, last)
        if begin >= end:
            return 0.0
        return end - begin if self.clock is None else self.clock.between(begin, end)

    def _add_op_call(
        self, event: Event, time: float, frame: Frame, kind: str, step: int | None, args: OpArgs = NO_ARGS
    ) -> OpCall | None:
        """None outside all steps."""
        if step is None:
            return None
        key = frame.phase, frame.layer, frame.role
        context = self._contexts.get(key)
        if context is None:
            layer = "" if frame.phase in {"optimizer", "data"} else frame.layer
            context = self._contexts[key] = layer, self._role(frame), frame.phase or "other"
        found = OpCall(event.name, kind, *context, step, time, args, event=event)
        self.op_calls.append(found)
        return found

    def _arguments(self, event: Event) -> OpArgs:
        args = op_args(event)
        return self._distinct.setdefault(args.key, args)

    def _launch(self, event: Event, claimed_by: OpCall | None, frame: Frame) -> None:
        op = frame.op
        if is_wait(event.name):
            self.waits.append((event, claimed_by or (op.call if op else None)))
        correlation = launch_args(event).correlation
        if correlation < 0:
            return
        if claimed_by is not None:
            self.launches[correlation] = LaunchSite(event, claimed_by, typed=True)
        elif op is not None and op.call is not None:
            self.launches[correlation] = LaunchSite(event, op.call, typed=False)
        else:
            self.launches[correlation] = LaunchSite(event, None, phase=frame.phase, optimizer=frame.optimizer)

    def _close(self, stack: list[Frame]) -> None:
        frame = stack.pop()
        frame.op = None  # it may be the frame itself: a cycle would never be freed
        stack[-1].has_ops |= frame.has_ops  # a marker between an op and its children makes the op no leaf
        if frame.call is None or frame.event is None:
            return
        frame.call.cpu_us = max(0.0, frame.own_us)
        if frame.has_ops:
            frame.call.is_wrapper = True  # its inputs are those of the ops inside it
        else:
            frame.call.args = self._arguments(frame.event)


def _inside(parent: Frame, event: Event) -> Frame:
    """A frame with its parent's context."""
    end = min(event.ts + event.dur, parent.end)
    return Frame(end, event, parent.phase, parent.layer, parent.role, parent.optimizer, parent.op)


def _outermost_ops(thread: Iterable[Event]) -> list[tuple[float, float]]:
    """The intervals in which a thread is in an op."""
    found: list[tuple[float, float]] = []
    reached = float("-inf")
    for event in thread:
        if event.cat == "cpu_op" and not event.name.startswith(MARKS) and event.ts >= reached:
            reached = event.ts + event.dur
            found.append((event.ts, reached))
    return found


def _first_op_us(thread: list[Event]) -> float:
    return next(
        (event.ts for event in thread if event.cat == "cpu_op" and not event.name.startswith("autograd::")),
        float("inf"),
    )
