"""A profiler trace (Chrome format, ours or anybody's) broken down into op rows and kernels.

Every CPU thread is walked once, with a stack of the markers and ops that are open. The outermost op that the taxonomy
knows claims what runs inside it; a kernel belongs to the op that launched it; a backward op belongs to the layer whose
forward made it (autograd's sequence numbers tell). A kernel that no op launched, as those of a CUDA graph, is a row of
its own. Where several kernels run at once, each has its equal part of the time, so that rows add up on a GPU, too.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fathom.trace.reader import Event, collector_off
from fathom.trace.rows import Breakdown, Occurrence, Piece
from fathom.trace.taxonomy import kernel_type, leaf_type, short_name, type_of, update_type

STEP = "fathom.step"
LIFE = "fathom.life"  # around setup and all steps, where the whole program is looked at
LAYER = "fathom.layer "  # followed by the module path
MODULE = "nn.Module: "  # so a foreign trace taken with_stack names its modules
DATA = "fathom.data"
PHASES = {f"fathom.{phase}": phase for phase in ("data", "forward", "backward", "optimizer")}
GPU_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
LAUNCH_KINDS = {"cuda_runtime", "cuda_driver"}


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
    names = {event.name for thread in threads.values() for event in thread}
    walk = _Walk(steps, roles or {}, names)
    # the thread that holds the forward pass goes first, so that sequence numbers are known when backward asks
    for thread in sorted(threads.values(), key=_first_forward):
        walk.thread(thread)
    pieces = walk.linked(gpu_events)
    steps = _stretched(steps, pieces)
    walk.share(pieces, steps)
    return Breakdown(walk.occurrences, steps, pieces, walk.data_us if DATA in names else None)


class _Walk:
    """The state of walking all threads: what was found, and what links them."""

    def __init__(self, steps: list[tuple[float, float]], roles: Mapping[str, str], names: set[str]) -> None:
        self.begins = [begin for begin, _ in steps]
        self.ends = [end for _, end in steps]
        self.roles = roles
        self.phased = "fathom.forward" in names
        self.named = any(name.startswith((LAYER, MODULE)) for name in names)
        self.learns = any(name.startswith("autograd::engine::evaluate_function") for name in names)
        self.occurrences: list[Occurrence] = []
        self.data_us = [0.0] * len(steps)
        self.layer_of: dict[int, tuple[str, str]] = {}  # autograd sequence number -> layer and role
        self.launched_by: dict[int, Occurrence] = {}
        self.launched_in: dict[int, Frame] = {}  # where no typed op was open
        self.last_backward = ("", "")

    def thread(self, events: list[Event]) -> None:
        events.sort(key=lambda event: (event.ts, -event.dur))
        # a foreign trace marks backward, optimizer and data at most: what is in none of them is forward
        stack = [Frame(end=float("inf"), event=None, phase="" if self.phased else "forward")]
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
            if event.name == DATA and parent.phase != "data":
                self._data(event, 1)
            elif event.name in PHASES and event.name != DATA and parent.phase == "data":
                self._data(event, -1)  # a pass of the network that data is made with
            return
        frame.is_op = True
        parent.has_ops = True
        if frame.claimed is None:
            self._op(event, frame)
        elif frame.phase != "backward" and "Sequence number" in event.args:
            # a composite op makes several nodes of backward, one for each op inside it
            self.layer_of[event.args["Sequence number"]] = (frame.claimed.layer, frame.claimed.role)

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
            # gradients are accumulated right after the node that made them, and carry no number of their own
            if sequence is not None:
                self.last_backward = self.layer_of.get(sequence, ("", self._role(Frame(frame.end, event, "backward"))))
            frame.layer, frame.role = self.last_backward
        elif sequence is not None and frame.phase != "backward":
            self.layer_of[sequence] = (frame.layer, self._role(frame))
        # an optimizer's op is its update whatever it is made of: a fused one may first make its tensors contiguous
        kind = update_type(frame.optimizer or "Clip") if frame.phase == "optimizer" else type_of(name)
        if kind is not None:
            frame.claimed = self._claim(event, frame, kind)

    def _role(self, frame: Frame) -> str:
        """What the work is for; "" in a trace that names no modules, as network and loss look the same in it."""
        if frame.phase in {"optimizer", "data"}:
            return frame.phase
        if frame.role or frame.layer:
            return frame.role or "network"
        if not self.named:
            return ""
        if frame.phase not in {"forward", "backward"}:
            return "other"
        return "loss" if self.learns else "network"

    def _step_at(self, time: float) -> int | None:
        """The step that a time lies in, None between steps."""
        step = bisect_right(self.begins, time) - 1
        return step if step >= 0 and time <= self.ends[step] else None

    def _claim(self, event: Event, frame: Frame, kind: str) -> Occurrence | None:
        step = self._step_at(event.ts)
        if step is None:
            return None
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
            self.launched_in[correlation] = parent

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

    def linked(self, gpu_events: list[Event]) -> list[Piece]:
        """The GPU's work, each piece with the op that launched it."""
        pieces = []
        for event in gpu_events:
            number = event.args.get("correlation", -1)
            owner = self.launched_by.get(number)
            pieces.append(Piece(GPU_KINDS[event.cat], event.name, event.ts, event.ts + event.dur, number, owner))
        return pieces

    def share(self, pieces: list[Piece], steps: list[tuple[float, float]]) -> None:
        """Gives every op its part of the GPU's time, in the step in which the GPU spent it."""
        clock = _SharedClock(pieces)
        later: dict[tuple[int, int], Occurrence] = {}
        for piece in pieces:
            step = max(0, bisect_right(self.begins, piece.begin) - 1)
            while step < len(steps) and steps[step][0] <= piece.end:
                begin, end = max(piece.begin, steps[step][0]), min(piece.end, steps[step][1])
                if begin < end or begin == end == piece.begin:
                    piece.step = step if piece.step is None else piece.step
                    part = clock.at(end) - clock.at(begin)
                    call = self._in_step(piece, step, later)
                    call.device_us += part
                    call.kernels.append((piece.name, part))
                step += 1

    def _in_step(self, piece: Piece, step: int, later: dict[tuple[int, int], Occurrence]) -> Occurrence:
        """What the time of a piece goes to: its op, or the op's rest in a later step, or a row for itself."""
        owner = piece.owner
        if owner is None:
            piece.owner = owner = self._by_kernel(piece, step)
            self.occurrences.append(owner)
        if owner.step == step:
            return owner
        if (id(owner), step) not in later:
            rest = dataclasses.replace(owner, step=step, cpu_us=0.0, device_us=0.0, kernels=[], calls=0)
            later[id(owner), step] = rest
            self.occurrences.append(rest)
        return later[id(owner), step]

    def _by_kernel(self, piece: Piece, step: int) -> Occurrence:
        """Stands for a kernel that no op launched; the markers around its launch still tell the phase."""
        place = self.launched_in.get(piece.correlation)
        phase = (place.phase if place else "") or "other"
        kind = kernel_type(piece.name)
        if place and phase == "optimizer":
            kind = update_type(place.optimizer or "Clip")
        return Occurrence(
            op=short_name(piece.name),
            type=kind,
            layer="",
            role=phase if phase in {"optimizer", "data"} else "",
            phase=phase,
            step=step,
            cpu_us=0.0,
            args={},
            by_kernel=True,
        )


class _SharedClock:
    """A clock that every running piece sees go on at the speed of one over how many run: differences are its parts."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        changes = [(piece.begin, -1) for piece in pieces] + [(piece.end, 1) for piece in pieces]
        self.times: list[float] = []
        self.read: list[float] = []  # at these times
        self.running: list[int] = []  # from these times on
        read, before, running = 0.0, 0.0, 0
        for time, change in sorted(changes):  # beginnings first
            read += (time - before) / running if running else 0.0
            before, running = time, running - change
            self.times.append(time)
            self.read.append(read)
            self.running.append(running)

    def at(self, time: float) -> float:
        """The reading at a time, which is not before the first piece."""
        index = bisect_right(self.times, time) - 1
        running = self.running[index]
        return self.read[index] + ((time - self.times[index]) / running if running else 0.0)


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


def _stretched(steps: list[tuple[float, float]], pieces: Iterable[Piece]) -> list[tuple[float, float]]:
    """A step is not over before the kernels launched in it have run, unless the next has begun by then."""
    latest = [end for _, end in steps]
    for piece in pieces:
        if piece.owner is not None:
            latest[piece.owner.step] = max(latest[piece.owner.step], piece.end)
    limits = [*(begin for begin, _ in steps[1:]), float("inf")]
    return [
        (begin, max(end, min(last, limit))) for (begin, end), last, limit in zip(steps, latest, limits, strict=True)
    ]


def _first_forward(thread: list[Event]) -> float:
    return min(
        (e.ts for e in thread if e.cat == "cpu_op" and not e.name.startswith("autograd::")),
        default=float("inf"),
    )
