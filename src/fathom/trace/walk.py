"""Breaks a profiler trace (Chrome format, Fathom's or any other) down into op calls and GPU activities.

Every CPU thread is walked once with a stack of the open markers and ops. The outermost op that the taxonomy knows
claims everything inside it. A kernel belongs to the op that launched it. A backward op belongs to the layer of its
forward op, found by autograd's sequence number. A kernel that no op launched, such as those of a CUDA graph, becomes a
row of its own. The time of concurrent kernels is divided equally, so that rows add up to the step on a GPU, too.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fathom.trace.reader import Event, gc_disabled
from fathom.trace.rows import Breakdown, GpuActivity, OpCall
from fathom.trace.taxonomy import kernel_type, leaf_type, short_name, type_of, update_type

STEP = "fathom.step"
WHOLE_PROGRAM = "fathom.life"  # around setup and all steps of a whole-program trace
MARKS = "fathom."  # how the names of our own marks begin; the fast ones have the category of an op
LAYER = "fathom.layer "  # followed by the module path
MODULE = "nn.Module: "  # how torch.profiler marks modules with with_stack=True
DATA = "fathom.data"
PHASES = {f"fathom.{phase}": phase for phase in ("data", "forward", "backward", "optimizer")}
GPU_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
LAUNCH_KINDS = {"cuda_runtime", "cuda_driver"}
# op -> the ops inside it whose arguments tell what it costs: a convolution's padding may be a word, which a trace does
# not have, and reshape copies or not
INNER = {
    **dict.fromkeys(("aten::conv1d", "aten::conv2d", "aten::conv3d"), ("aten::convolution",)),
    **dict.fromkeys(("aten::reshape", "aten::flatten"), ("aten::clone",)),
}


@dataclass(slots=True)
class Frame:
    """An open marker or op, and the context that its children inherit."""

    end: float
    event: Event | None
    phase: str = ""
    layer: str = ""
    role: str = ""
    optimizer: str = ""
    claimed_by: OpCall | None = None  # the op call that everything inside belongs to
    is_op: bool = False
    has_ops: bool = False
    launches: list[int] = field(default_factory=list)  # correlation ids of launches outside any claimed op


@gc_disabled()
def breakdown(events: Iterable[Event], roles: Mapping[str, str] | None = None) -> Breakdown:
    """Walks all threads and attributes GPU time to op calls; roles maps layers to their roles, where known."""
    threads: dict[Any, list[Event]] = defaultdict(list)
    gpu_events: list[Event] = []
    for event in events:
        category = event.cat
        if category in GPU_KINDS:
            gpu_events.append(event)
        elif category in {"cpu_op", "user_annotation", "python_function"} or category in LAUNCH_KINDS:
            threads[event.pid, event.tid].append(event)
    steps = _steps(threads.values(), gpu_events)
    names = {event.name for thread in threads.values() for event in thread}
    walk = _Walk(steps, roles or {}, names)
    # the thread with the forward pass first: backward ops look up its sequence numbers
    for thread in sorted(threads.values(), key=_first_op_us):
        walk.thread(thread)
    activities = walk.gpu_activities(gpu_events)
    steps = _extended_to_last_kernel(steps, activities)
    walk.attribute_gpu_time(activities, steps)
    data_us = walk.data_us if DATA in names else None
    return Breakdown(walk.op_calls, steps, activities, data_us, walk.events, walk.events_in_ops)


class _Walk:
    """The state of walking all threads."""

    def __init__(self, steps: list[tuple[float, float]], roles: Mapping[str, str], names: set[str]) -> None:
        self.begins = [begin for begin, _ in steps]
        self.ends = [end for _, end in steps]
        self.roles = roles
        self.has_phases = "fathom.forward" in names
        self.has_modules = any(name.startswith((LAYER, MODULE)) for name in names)
        self.has_backward = any(name.startswith("autograd::engine::evaluate_function") for name in names)
        self.op_calls: list[OpCall] = []
        self.data_us = [0.0] * len(steps)
        self.events = [0] * len(steps)
        self.events_in_ops = [0] * len(steps)
        self.layer_of: dict[int, tuple[str, str]] = {}  # autograd sequence number -> layer and role
        self.launched_by: dict[int, OpCall] = {}
        self.launched_in: dict[int, Frame] = {}  # launches outside any claimed op
        self.last_backward = ("", "")

    def thread(self, events: list[Event]) -> None:
        events.sort(key=lambda event: (event.ts, -event.dur))
        # a foreign trace marks at most backward, optimizer and data: everything else is forward
        stack = [Frame(end=float("inf"), event=None, phase="" if self.has_phases else "forward")]
        for event in events:
            while stack[-1].end <= event.ts:
                self._close(stack)
            self._open(event, stack)
        while len(stack) > 1:
            self._close(stack)

    def _open(self, event: Event, stack: list[Frame]) -> None:
        parent = stack[-1]
        if event.cat in LAUNCH_KINDS:
            self._launch(event, parent)
            return
        frame = Frame(
            event.ts + event.dur, event, parent.phase, parent.layer, parent.role, parent.optimizer, parent.claimed_by
        )
        stack.append(frame)
        self._count(event, inside_op=parent.claimed_by is not None)
        if event.cat != "cpu_op" or event.name.startswith(MARKS):
            self._marker(event.name, frame)
            if event.name == DATA and parent.phase != "data":
                self._data(event, 1)
            elif event.name in PHASES and event.name != DATA and parent.phase == "data":
                self._data(event, -1)  # a pass of the network that data is made with
            return
        frame.is_op = True
        parent.has_ops = True
        if frame.claimed_by is None:
            self._op(event, frame)
            return
        if event.name in INNER.get(frame.claimed_by.op, ()):
            frame.claimed_by.inner = (event.name, event.args)
        if frame.phase != "backward" and "Sequence number" in event.args:
            # a composite op creates several autograd nodes, one for each op inside it
            self.layer_of[event.args["Sequence number"]] = (frame.claimed_by.layer, frame.claimed_by.role)

    def _count(self, event: Event, inside_op: bool) -> None:
        step = self._step_at(event.ts)
        if step is not None:
            self.events[step] += 1
            self.events_in_ops[step] += inside_op

    def _marker(self, name: str, frame: Frame) -> None:
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

    def _data(self, event: Event, sign: int) -> None:
        step = self._step_at(event.ts)
        if step is not None:
            self.data_us[step] += sign * min(event.dur, self.ends[step] - event.ts)

    def _op(self, event: Event, frame: Frame) -> None:
        name, args = event.name, event.args
        sequence = args.get("Sequence number")
        if name.startswith("autograd::engine::evaluate_function"):
            frame.phase = "backward"
            # AccumulateGrad has no sequence number; it runs right after the node that produced the gradient
            if sequence is not None:
                self.last_backward = self.layer_of.get(sequence, ("", self._role(Frame(frame.end, event, "backward"))))
            frame.layer, frame.role = self.last_backward
        elif sequence is not None and frame.phase != "backward":
            self.layer_of[sequence] = (frame.layer, self._role(frame))
        # every op in an optimizer step counts as its update; fused ones may first call aten::contiguous
        kind = update_type(frame.optimizer or "Clip") if frame.phase == "optimizer" else type_of(name)
        if kind is not None:
            frame.claimed_by = self._add_op_call(event, frame, kind)

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

    def _step_at(self, time: float) -> int | None:
        """The step at a time; None between steps."""
        step = bisect_right(self.begins, time) - 1
        return step if step >= 0 and time <= self.ends[step] else None

    def _add_op_call(self, event: Event, frame: Frame, kind: str) -> OpCall | None:
        step = self._step_at(event.ts)
        if step is None:
            return None
        found = OpCall(
            op=event.name,
            type=kind,
            layer="" if frame.phase in {"optimizer", "data"} else frame.layer,
            role=self._role(frame),
            phase=frame.phase or "other",
            step=step,
            cpu_us=event.dur,
            args=event.args,
        )
        self.op_calls.append(found)
        return found

    def _launch(self, event: Event, parent: Frame) -> None:
        correlation = event.args.get("correlation")
        if correlation is None:
            return
        if parent.claimed_by is not None:
            self.launched_by[correlation] = parent.claimed_by
        else:
            parent.launches.append(correlation)
            self.launched_in[correlation] = parent

    def _close(self, stack: list[Frame]) -> None:
        frame = stack.pop()
        stack[-1].has_ops |= frame.has_ops  # a marker between an op and its children makes the op no leaf
        if not frame.is_op or frame.claimed_by is not None:
            return
        assert frame.event is not None
        if not frame.has_ops:  # a leaf op that is not in the taxonomy
            kind = leaf_type(frame.event.name)
            claimed_by = self._add_op_call(frame.event, frame, kind) if kind else None
            if claimed_by is not None:
                self.launched_by.update(dict.fromkeys(frame.launches, claimed_by))
        elif frame.launches:
            stack[-1].launches += frame.launches

    def gpu_activities(self, gpu_events: list[Event]) -> list[GpuActivity]:
        """All GPU activities, each with the op call that launched it."""
        activities = []
        for event in gpu_events:
            correlation = event.args.get("correlation", -1)
            kind, end = GPU_KINDS[event.cat], event.ts + event.dur
            op_call = self.launched_by.get(correlation)
            activities.append(GpuActivity(kind, event.name, event.ts, end, correlation, op_call))
        return activities

    def attribute_gpu_time(self, activities: list[GpuActivity], steps: list[tuple[float, float]]) -> None:
        """Adds GPU time to the op calls, in the step in which it was spent."""
        clock = _ConcurrencyClock(activities)
        continued: dict[tuple[int, int], OpCall] = {}
        for activity in activities:
            step = max(0, bisect_right(self.begins, activity.begin) - 1)
            while step < len(steps) and steps[step][0] <= activity.end:
                begin, end = max(activity.begin, steps[step][0]), min(activity.end, steps[step][1])
                if begin < end or begin == end == activity.begin:
                    activity.step = step if activity.step is None else activity.step
                    part = clock.at(end) - clock.at(begin)
                    call = self._op_call_in_step(activity, step, continued)
                    call.device_us += part
                    call.kernels.append((activity.name, part))
                step += 1

    def _op_call_in_step(self, activity: GpuActivity, step: int, continued: dict[tuple[int, int], OpCall]) -> OpCall:
        """The op call that an activity's time is added to: its own, its continuation in a later step, or a stand-in."""
        op_call = activity.op_call
        if op_call is None:
            activity.op_call = op_call = self._stand_in(activity, step)
            self.op_calls.append(op_call)
        if op_call.step == step:
            return op_call
        if (id(op_call), step) not in continued:
            remainder = dataclasses.replace(op_call, step=step, cpu_us=0.0, device_us=0.0, kernels=[], calls=0)
            continued[id(op_call), step] = remainder
            self.op_calls.append(remainder)
        return continued[id(op_call), step]

    def _stand_in(self, activity: GpuActivity, step: int) -> OpCall:
        """An op call for a kernel that no op launched; its phase is that of the markers around the launch."""
        launch_frame = self.launched_in.get(activity.correlation)
        phase = (launch_frame.phase if launch_frame else "") or "other"
        kind = kernel_type(activity.name)
        if launch_frame and phase == "optimizer":
            kind = update_type(launch_frame.optimizer or "Clip")
        return OpCall(
            op=short_name(activity.name),
            type=kind,
            layer="",
            role=phase if phase in {"optimizer", "data"} else "",
            phase=phase,
            step=step,
            cpu_us=0.0,
            args={},
            kernel_only=True,
        )


class _ConcurrencyClock:
    """A clock that runs at speed 1/n while n activities run: the time it advances is each activity's equal share."""

    def __init__(self, activities: Iterable[GpuActivity]) -> None:
        changes = [(activity.begin, -1) for activity in activities] + [(activity.end, 1) for activity in activities]
        self.times: list[float] = []
        self.readings: list[float] = []  # of the clock at these times
        self.running: list[int] = []  # number of activities from these times on
        reading, before, running = 0.0, 0.0, 0
        for time, change in sorted(changes):  # at equal times, begins before ends
            reading += (time - before) / running if running else 0.0
            before, running = time, running - change
            self.times.append(time)
            self.readings.append(reading)
            self.running.append(running)

    def at(self, time: float) -> float:
        """The reading at a time, which must not be before the first activity."""
        index = bisect_right(self.times, time) - 1
        running = self.running[index]
        return self.readings[index] + ((time - self.times[index]) / running if running else 0.0)


def _steps(threads: Iterable[list[Event]], gpu: list[Event]) -> list[tuple[float, float]]:
    """Step boundaries from Fathom's or torch.profiler's markers; a trace without markers is one step."""
    marks = [
        (event.ts, event.ts + event.dur)
        for thread in threads
        for event in thread
        if event.name == STEP or event.name.startswith("ProfilerStep#")
    ]
    if marks:
        return sorted(set(marks))
    times = [(event.ts, event.ts + event.dur) for thread in [*threads, gpu] for event in thread]
    if not times:
        return [(0.0, 0.0)]
    return [(min(begin for begin, _ in times), max(end for _, end in times))]


def _extended_to_last_kernel(
    steps: list[tuple[float, float]], activities: Iterable[GpuActivity]
) -> list[tuple[float, float]]:
    """Steps extended to the end of the last kernel launched in them, but not beyond the start of the next step."""
    latest = [end for _, end in steps]
    for activity in activities:
        if activity.op_call is not None:
            latest[activity.op_call.step] = max(latest[activity.op_call.step], activity.end)
    limits = [*(begin for begin, _ in steps[1:]), float("inf")]
    return [
        (begin, max(end, min(last, limit))) for (begin, end), last, limit in zip(steps, latest, limits, strict=True)
    ]


def _first_op_us(thread: list[Event]) -> float:
    return min(
        (e.ts for e in thread if e.cat == "cpu_op" and not e.name.startswith("autograd::")),
        default=float("inf"),
    )
