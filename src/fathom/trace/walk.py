"""Breaks a profiler trace (Chrome format, Fathom's or any other) down into op calls and GPU activities.

Every CPU thread is walked once with a stack of the open markers and ops. The outermost op that the taxonomy knows
claims everything inside it. An op that it does not know keeps its self time, and the ops inside it count for
themselves. A backward op belongs to the layer of its forward op, found by autograd's sequence number. Time that ops of
several threads share is divided equally, so that op calls and the time outside ops add up to the step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

import msgspec

from fathom.trace.concurrency import SharedClock
from fathom.trace.event import LAUNCH, Event, OpArgs, launch_args, op_args, sequence_args
from fathom.trace.event_columns import EventColumns
from fathom.trace.gpu import GpuAttribution, LaunchSite
from fathom.trace.intervals import Interval
from fathom.trace.reader import gc_disabled
from fathom.trace.rows import Breakdown, OpCall
from fathom.trace.steps import NO_STEP, Steps
from fathom.trace.taxonomy import leaf_type, type_of, update_type
from fathom.trace.threads import HostThread, host_threads
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


def is_module(name: str) -> bool:
    return name.startswith(MODULE)


@cache
def is_backward_node(op: str) -> bool:
    return BACKWARD_NODE.fullmatch(op) is not None


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


@gc_disabled()
def breakdown(events: Iterable[Event], roles: Mapping[str, str] | None = None) -> Breakdown:
    """Walks all threads and attributes GPU time to op calls; roles maps layers to their roles, where known."""
    columns = EventColumns.of(events if isinstance(events, list) else list(events))
    # Python's functions say nothing on ops, but for the modules among them
    on_host = ~columns.on_gpu & (~columns.of_category("python_function") | columns.named(is_module))
    threads = host_threads(columns, on_host)
    names = columns.names_of(on_host)
    gpu_events = columns.chosen(columns.on_gpu)
    steps = Steps.of(columns, on_host)
    clock: SharedClock | None = None
    if not gpu_events:  # with a GPU the time of kernels has to add up, not that of threads
        clock = SharedClock.of([_outermost_ops(thread) for thread in threads])
    walk = _Walk(steps, roles or {}, names, clock)
    # the thread with the forward pass first: backward ops look up its sequence numbers
    for thread in sorted(threads, key=_first_op_us):
        walk.thread(thread)
    walk.decode_arguments()
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
        columns=columns,
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

    def thread(self, thread: HostThread) -> None:
        # a foreign trace marks at most backward, optimizer and data: everything else is forward
        stack = [Frame(end=float("inf"), phase="" if self.has_phases else "forward")]
        claimed_until = float("-inf")
        claimed_by: OpCall | None = None
        self.host.append(thread)
        waited, marks = self.steps.waited, self.marks
        steps = self.steps.all_at(thread.begins).tolist()
        columns = zip(thread.events, thread.begins.tolist(), thread.ends.tolist(), steps, strict=True)
        for event, begin, end, step in columns:
            inside = begin < claimed_until
            if not inside:
                while stack[-1].end <= begin:
                    self._close(stack)
            parent, category = stack[-1], event.cat
            if category == LAUNCH:
                if not inside and parent.op is None:
                    thread.work.append(event)
                self._launch(event, claimed_by if inside else None, parent)
                continue
            if waited and step >= 0:
                self.events[step] += 1
                self.events_in_ops[step] += inside or parent.op is not None
            if inside:
                if claimed_by is not None and category == "cpu_op":
                    self._inner(event, claimed_by, parent)
                continue
            end = min(end, parent.end)  # one that outlasts its parent by rounding ends with it
            if category != "cpu_op" or event.name in marks:
                self._mark(event, end, step, stack)
                continue
            if parent.op is None:
                thread.work.append(event)
            claimed_by = self._op(event, begin, end, step, stack)
            claimed_until = end if claimed_by else float("-inf")
        while len(stack) > 1:
            self._close(stack)

    def _inner(self, event: Event, claimed_by: OpCall, frame: Frame) -> None:
        """An op inside one that claims it: its time is the outer one's."""
        if claimed_by.op in INNER and event.name in INNER[claimed_by.op]:
            claimed_by.inner = (event.name, self._arguments(event))
        if self.has_modules and self.has_backward and frame.phase != "backward":
            # a composite op creates several autograd nodes, one for each op inside it
            sequence = sequence_args(event).sequence
            if sequence is not None:
                self.layer_of[sequence] = (claimed_by.layer, claimed_by.role)

    def _mark(self, event: Event, end: float, step: int, stack: list[Frame]) -> None:
        parent, name = stack[-1], event.name
        frame = _inside(parent, end)
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

    def _op(self, event: Event, begin: float, end: float, step: int, stack: list[Frame]) -> OpCall | None:
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
        kind = update_type(parent.optimizer or "Clip") if in_update else type_of(event.name)
        if kind is not None:
            if self.has_modules:
                self._follow_sequence(event, parent)
            return self._add_op_call(event, time, parent, kind, step)
        frame = _inside(parent, end)
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

    def _add_op_call(self, event: Event, time: float, frame: Frame, kind: str, step: int) -> OpCall | None:
        """None outside all steps."""
        if step < 0:
            return None
        key = frame.phase, frame.layer, frame.role
        context = self._contexts.get(key)
        if context is None:
            layer = "" if frame.phase in {"optimizer", "data"} else frame.layer
            context = self._contexts[key] = layer, self._role(frame), frame.phase or "other"
        found = OpCall(event.name, kind, *context, step, time, event=event)
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

    def _launch(self, event: Event, claimed_by: OpCall | None, frame: Frame) -> None:
        call = claimed_by or (frame.op.call if frame.op is not None else None)
        if is_wait(event.name):
            self.waits.append((event, call))
        correlation = launch_args(event).correlation
        if correlation < 0:
            return
        if call is not None:
            self.launches[correlation] = LaunchSite(event, call, claimed_by is not None)
        else:
            self.launches[correlation] = LaunchSite(event, None, False, frame.phase, frame.optimizer)

    def _close(self, stack: list[Frame]) -> None:
        frame = stack.pop()
        frame.op = None  # it may be the frame itself: a cycle would never be freed
        stack[-1].has_ops |= frame.has_ops  # a marker between an op and its children makes the op no leaf
        if frame.call is not None:
            frame.call.cpu_us = max(0.0, frame.own_us)
            frame.call.is_wrapper = frame.has_ops


def _inside(parent: Frame, end: float) -> Frame:
    """A frame with its parent's context."""
    return Frame(end, parent.phase, parent.layer, parent.role, parent.optimizer, parent.op)


def _outermost_ops(thread: HostThread) -> list[Interval]:
    """The intervals in which a thread is in an op."""
    found: list[Interval] = []
    reached = float("-inf")
    for event, begin, end in zip(thread.events, thread.begins.tolist(), thread.ends.tolist(), strict=True):
        if event.cat == "cpu_op" and begin >= reached and not event.name.startswith(MARKS):
            reached = end
            found.append((begin, end))
    return found


def _first_op_us(thread: HostThread) -> float:
    return next(
        (event.ts for event in thread.events if event.cat == "cpu_op" and not event.name.startswith("autograd::")),
        float("inf"),
    )
