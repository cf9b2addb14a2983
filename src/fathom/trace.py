"""A profiler trace (Chrome format, ours or anybody's) broken down into op rows and kernels.

Every CPU thread is walked once, with a stack of the markers and ops that are open. The outermost op that the taxonomy
knows claims what runs inside it; a kernel belongs to the op that launched it; a backward op belongs to the layer whose
forward made it (autograd's sequence numbers tell).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fathom.flops import Call, bytes_moved, flop
from fathom.record import Kernel, OpRow
from fathom.taxonomy import group_of, leaf_type, type_of, update_type
from fathom.tracefile import Event, collector_off

STEP = "fathom.step"
LIFE = "fathom.life"  # around setup and all steps, where the whole program is looked at
LAYER = "fathom.layer "  # followed by the module path
PHASES = {f"fathom.{phase}": phase for phase in ("data", "forward", "backward", "optimizer")}
GPU_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
LAUNCH_KINDS = {"cuda_runtime", "cuda_driver"}


@dataclass(slots=True)
class Occurrence:
    """One op call: the outermost one that has a type."""

    op: str
    type: str
    layer: str
    role: str
    phase: str
    step: int
    cpu_us: float
    args: Mapping[str, Any]
    device_us: float = 0.0
    kernels: list[tuple[str, float]] = field(default_factory=list)


@dataclass(slots=True)
class Frame:
    """An open marker or op, with the context that what is inside it inherits."""

    end: float
    event: Event | None
    phase: str = ""
    layer: str = ""
    role: str = ""
    optimizer: str = ""
    claimed: Occurrence | None = None  # the typed op that everything inside belongs to
    is_op: bool = False
    has_ops: bool = False
    launches: list[int] = field(default_factory=list)  # correlation numbers of launches in no typed op


@dataclass
class Breakdown:
    """What a trace says. Times are in microseconds as in the file; rows() gives seconds per step."""

    occurrences: list[Occurrence]
    steps: list[tuple[float, float]]  # begin and end
    gpu: list[tuple[str, str, float, float, Occurrence | None]]  # kind, name, begin, duration, launched by

    @property
    def on_gpu(self) -> bool:
        return bool(self.gpu)

    @property
    def typical(self) -> set[int]:
        """The middle half of the steps by duration: one in which the system did something else is not typical."""
        order = sorted(range(len(self.steps)), key=lambda step: self.steps[step][1] - self.steps[step][0])
        quarter = len(order) // 4
        return set(order[quarter : len(order) - quarter])

    def rows(self) -> list[OpRow]:
        """Occurrences gathered by op, place and shapes; the mean of the typical steps, so that rows add up."""
        typical = self.typical
        gathered: dict[tuple[str, ...], list[Occurrence]] = defaultdict(list)
        for call in self.occurrences:
            if call.step in typical:
                shapes = _shapes(call.args)
                gathered[call.op, call.type, call.layer, call.role, call.phase, shapes].append(call)
        return [self._row(key, calls, len(typical)) for key, calls in gathered.items()]

    def _row(self, key: tuple[str, ...], calls: list[Occurrence], steps: int) -> OpRow:
        op, kind, layer, role, phase, shapes = key
        args = calls[0].args
        inputs = Call.traced(op.partition(" ")[0], args)
        return OpRow(
            op=op,
            type=kind,
            group=group_of(kind),
            layer=layer,
            role=role,
            phase=phase,
            shapes=shapes,
            calls=len(calls) / steps,
            cpu_s=sum(call.cpu_us for call in calls) / steps * 1e-6,
            device_s=sum(call.device_us for call in calls) / steps * 1e-6 if self.on_gpu else None,
            flop=flop(inputs) * len(calls) / steps,
            bytes=bytes_moved(inputs) * len(calls) / steps,
        )

    def kernels(self) -> list[Kernel]:
        """Every kernel and copy of the file under its op, longest first; per step, over all steps."""
        totals: dict[tuple[str, str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for kind, name, _, duration, owner in self.gpu:
            total = totals[kind, name, owner.op if owner else "", owner.type if owner else ""]
            total[0] += 1
            total[1] += duration
        count = len(self.steps)
        found = [
            Kernel(name=name, kind=kind, op=op, type=type_, calls=calls / count, device_s=time / count * 1e-6)
            for (kind, name, op, type_), (calls, time) in totals.items()
        ]
        return sorted(found, key=lambda kernel: -kernel.device_s)

    def per_step_s(self) -> dict[str, list[float]]:
        """Op type -> its time in each step."""
        series: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(self.steps))
        for call in self.occurrences:
            series[call.type][call.step] += (call.device_us if self.on_gpu else call.cpu_us) * 1e-6
        return dict(series)

    def outside_s(self) -> float:
        """Per typical step, the time in no op; on a GPU, the time in which no kernel ran."""
        typical = self.typical
        busy = self._busy_us()
        outside = [
            max(0.0, end - begin - busy[step]) for step, (begin, end) in enumerate(self.steps) if step in typical
        ]
        return sum(outside) / len(typical) * 1e-6

    def _busy_us(self) -> list[float]:
        """Of each step, the time in ops, or in kernels."""
        if self.on_gpu:
            begins = [begin for begin, _ in self.steps]
            running: list[list[tuple[float, float]]] = [[] for _ in self.steps]
            for _, _, begin, duration, _ in self.gpu:
                running[max(0, bisect_right(begins, begin) - 1)].append((begin, begin + duration))
            return [_covered(kernels, *step) for kernels, step in zip(running, self.steps, strict=True)]
        busy = [0.0] * len(self.steps)
        for call in self.occurrences:
            busy[call.step] += call.cpu_us
        return busy


@collector_off()
def breakdown(events: Iterable[Event], roles: Mapping[str, str] | None = None) -> Breakdown:
    """Walks the threads and links the kernels; roles tells what a layer is for, where that is known."""
    threads: dict[Any, list[Event]] = defaultdict(list)
    gpu_events: list[Event] = []
    for event in events:
        category = event.cat
        if category in GPU_KINDS:
            gpu_events.append(event)
        elif category in {"cpu_op", "user_annotation", "python_function"} or category in LAUNCH_KINDS:
            threads[event.pid, event.tid].append(event)
    steps = _steps(threads.values(), gpu_events)
    walk = _Walk(steps, roles or {})
    # the thread that holds the forward pass goes first, so that sequence numbers are known when backward asks
    for thread in sorted(threads.values(), key=_first_forward):
        walk.thread(thread)
    return Breakdown(walk.occurrences, steps, walk.linked(gpu_events))


class _Walk:
    """The state of walking all threads: what was found, and what links them."""

    def __init__(self, steps: list[tuple[float, float]], roles: Mapping[str, str]) -> None:
        self.begins = [begin for begin, _ in steps]
        self.ends = [end for _, end in steps]
        self.roles = roles
        self.occurrences: list[Occurrence] = []
        self.layer_of: dict[int, tuple[str, str]] = {}  # autograd sequence number -> layer and role
        self.launched_by: dict[int, Occurrence] = {}
        self.last_backward = ("", "")

    def thread(self, events: list[Event]) -> None:
        events.sort(key=lambda event: (event.ts, -event.dur))
        stack = [Frame(end=float("inf"), event=None)]
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
            event.ts + event.dur, event, parent.phase, parent.layer, parent.role, parent.optimizer, parent.claimed
        )
        stack.append(frame)
        if event.cat != "cpu_op":
            self._marker(event.name, frame)
            return
        frame.is_op = True
        parent.has_ops = True
        if frame.claimed is None:
            self._op(event, frame)

    def _marker(self, name: str, frame: Frame) -> None:
        if name in PHASES:
            frame.phase = PHASES[name]
        elif name.startswith(LAYER):
            frame.layer = name.removeprefix(LAYER)
            frame.role = self.roles.get(frame.layer, frame.role)
        elif name.startswith("nn.Module: "):  # a foreign trace taken with_stack names its modules so
            frame.layer = f"{frame.layer}.{name.removeprefix('nn.Module: ')}".lstrip(".")
        elif name.startswith("Optimizer.step#"):
            frame.phase, frame.optimizer = "optimizer", name.removeprefix("Optimizer.step#").split(".")[0]
        elif name.startswith("Optimizer.zero_grad"):
            frame.phase = "optimizer"
        elif name.startswith("enumerate(DataLoader)"):
            frame.phase = "data"

    def _op(self, event: Event, frame: Frame) -> None:
        name, args = event.name, event.args
        sequence = args.get("Sequence number")
        if name.startswith("autograd::engine::evaluate_function"):
            frame.phase = "backward"
            # gradients are accumulated right after the node that made them, and carry no number of their own
            if sequence is not None:
                self.last_backward = self.layer_of.get(sequence, ("", "loss"))
            frame.layer, frame.role = self.last_backward
        elif sequence is not None and frame.phase != "backward":
            self.layer_of[sequence] = (frame.layer, self._role(frame))
        # an optimizer's op is its update whatever it is made of: a fused one may first make its tensors contiguous
        kind = update_type(frame.optimizer or "Clip") if frame.phase == "optimizer" else type_of(name)
        if kind is not None:
            frame.claimed = self._claim(event, frame, kind)

    def _role(self, frame: Frame) -> str:
        if frame.phase in {"optimizer", "data"}:
            return frame.phase
        return frame.role or ("network" if frame.layer else "loss")

    def _claim(self, event: Event, frame: Frame, kind: str) -> Occurrence | None:
        step = bisect_right(self.begins, event.ts) - 1
        if step < 0 or event.ts > self.ends[step]:
            return None  # between steps
        found = Occurrence(
            op=event.name,
            type=kind,
            layer="" if frame.phase in {"optimizer", "data"} else frame.layer,
            role=self._role(frame),
            phase=frame.phase or "other",
            step=step,
            cpu_us=event.dur,
            args=event.args,
        )
        self.occurrences.append(found)
        return found

    def _launch(self, event: Event, parent: Frame) -> None:
        correlation = event.args.get("correlation")
        if correlation is None:
            return
        if parent.claimed is not None:
            self.launched_by[correlation] = parent.claimed
        else:
            parent.launches.append(correlation)

    def _close(self, stack: list[Frame]) -> None:
        frame = stack.pop()
        if not frame.is_op or frame.claimed is not None:
            return
        assert frame.event is not None
        if not frame.has_ops:  # a leaf that the taxonomy does not know
            kind = leaf_type(frame.event.name)
            claimed = self._claim(frame.event, frame, kind) if kind else None
            if claimed is not None:
                self.launched_by.update(dict.fromkeys(frame.launches, claimed))
        elif frame.launches:
            stack[-1].launches += frame.launches

    def linked(self, gpu_events: list[Event]) -> list[tuple[str, str, float, float, Occurrence | None]]:
        found = []
        for event in gpu_events:
            owner = self.launched_by.get(event.args.get("correlation", -1))
            if owner is not None:
                owner.device_us += event.dur
                owner.kernels.append((event.name, event.dur))
            found.append((GPU_KINDS[event.cat], event.name, event.ts, event.dur, owner))
        return found


def _steps(threads: Iterable[list[Event]], gpu: list[Event]) -> list[tuple[float, float]]:
    """Step boundaries by marker, ours or torch.profiler's; a trace without any is one step."""
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


def _first_forward(thread: list[Event]) -> float:
    return min(
        (e.ts for e in thread if e.cat == "cpu_op" and not e.name.startswith("autograd::")),
        default=float("inf"),
    )


def _shapes(args: Mapping[str, Any]) -> str:
    return " ".join(str(dims) for dims in args.get("Input Dims", []) if dims)


def _covered(intervals: Iterable[tuple[float, float]], begin: float, end: float) -> float:
    """How much of the window the intervals cover together."""
    covered, reached = 0.0, begin
    for start, stop in sorted(intervals):
        stop = min(stop, end)
        if stop > reached:
            covered += max(0.0, stop - max(start, reached))
            reached = stop
    return covered
