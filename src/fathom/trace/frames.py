"""What is open at a moment of a thread, markers and ops without a type, and the context of what is inside.

The context is the layer, its role and the phase. Autograd's sequence numbers take a layer from a forward op to the
backward op that belongs to it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

import msgspec

from fathom.trace.event import Event, sequence_args
from fathom.trace.marks import DATA_MARKS, EVALUATE, FORWARD, LAYER, MODULE, PHASES, is_backward
from fathom.trace.sequences import ForwardOps
from fathom.trace.taxonomy import update_type

NO_OP = -1


class Context(NamedTuple):
    """Of op calls."""

    layer: str
    role: str
    phase: str
    update: str | None  # the type of everything in an optimizer's step


class Frame(msgspec.Struct, gc=False):
    """An open marker, or an open op that is not in the taxonomy."""

    end: float
    phase: str = ""
    layer: str = ""
    role: str = ""
    optimizer: str = ""
    closure: bool = False  # of an optimizer's step that calls a function of the user's with a backward pass in it
    op: int = NO_OP  # the number of the innermost open op: of this one, or of one around it
    context: int = 0


class Frames:
    """Makes frames, and numbers their contexts."""

    def __init__(self, names: Set[str], roles: Mapping[str, str], backward_begins: Sequence[float] = ()) -> None:
        """Names are those of all events on the host; then when ops of the backward pass begin, in order."""
        self.roles = roles
        self.has_phases = FORWARD in names
        self.has_data = any(name.startswith(DATA_MARKS) for name in names)
        self.has_modules = any(name.startswith((LAYER, MODULE)) for name in names)
        self.has_backward = any(name.startswith(EVALUATE) for name in names)
        self._backward = {name for name in names if is_backward(name)}
        self._backward_begins = backward_begins
        self.contexts: list[Context] = []
        self._numbers: dict[tuple[str, str, str, str], int] = {}
        self._forward = ForwardOps[tuple[str, str]]()  # layer and role
        self._last_backward = ("", "")

    def outermost(self) -> Frame:
        # a foreign trace marks at most backward, optimizer and data: everything else is forward
        return self._numbered(Frame(end=float("inf"), phase="" if self.has_phases else "forward"))

    def marked(self, parent: Frame, name: str, begin: float, end: float) -> Frame:
        """The frame of a marker."""
        frame = _inside(parent, end)
        if parent.closure and name.startswith((LAYER, MODULE)):
            _leave_update(frame)
        if name in PHASES:
            frame.phase = PHASES[name]
        elif name.startswith(LAYER):
            frame.layer = name.removeprefix(LAYER)
            frame.phase = frame.phase or "forward"  # in a thread of the module's own, where no phase is marked
            frame.role = self.roles.get(frame.layer, frame.role or "network")
        elif name.startswith(MODULE):
            frame.layer = _within(frame, name.removeprefix(MODULE))
        elif name.startswith("Optimizer.step#"):
            frame.phase, frame.optimizer = "optimizer", name.removeprefix("Optimizer.step#").split(".")[0]
            frame.closure = bisect_left(self._backward_begins, begin) < bisect_left(self._backward_begins, end)
        elif name.startswith("Optimizer.zero_grad"):
            frame.phase, frame.closure = "optimizer", False
            frame.optimizer = name.removeprefix("Optimizer.zero_grad#").split(".")[0]
        elif name.startswith(DATA_MARKS):
            frame.phase = "data"
        return self._numbered(frame)

    def around(self, frame: Frame, event: Event) -> Frame:
        """The frame of an op in a closure, which is not part of the update of the optimizer that calls it.

        An update is made without gradients; ops that have some ask for autograd's sequence number.
        """
        if event.name not in self._backward and sequence_args(event).sequence is None:
            return frame
        own = _inside(frame, frame.end)
        _leave_update(own)
        return self._numbered(own)

    def opened(self, parent: Frame, event: Event, end: float, op: int) -> Frame:
        """The frame of an op without a type."""
        frame = _inside(parent, end)
        frame.op = op
        if event.name in self._backward:
            self._turned_back(frame, event)
        if self.has_modules:
            self.passed(frame, event)
        return frame

    def _turned_back(self, frame: Frame, event: Event) -> None:
        """Autograd's nodes are the backward pass, each in the layer of its forward op."""
        evaluates = event.name.startswith(EVALUATE)
        if evaluates or frame.phase == "forward":
            frame.phase = "backward"
        if evaluates and self.has_modules:
            # AccumulateGrad has no sequence number; it runs right after the node that produced the gradient
            if sequence_args(event).sequence is not None:
                unknown = "", self._role(Frame(frame.end, "backward"))
                self._last_backward = self._forward.of(event) or unknown
            frame.layer, frame.role = self._last_backward
        self._numbered(frame)

    def passed(self, frame: Frame, event: Event) -> None:
        """Remembers whose a forward op is that is directly in a frame, in a trace that has modules.

        A forward op may run in the backward pass: a checkpoint makes it again.
        """
        self._forward.remember(event, (frame.layer, self._role(frame)), again=frame.phase == "backward")

    def follows(self, frame: Frame) -> bool:
        """Whether ops inside typed ones of a frame have sequence numbers that count."""
        return self.has_modules and self.has_backward

    def inside(self, frame: Frame, event: Event) -> None:
        """The same of an op inside a typed one: a composite op creates an autograd node for each op in it."""
        if self.follows(frame):
            context = self.contexts[frame.context]
            self._forward.remember(event, (context.layer, context.role), again=frame.phase == "backward")

    def _numbered(self, frame: Frame) -> Frame:
        key = frame.phase, frame.layer, frame.role, frame.optimizer
        number = self._numbers.get(key)
        if number is None:
            layer = "" if frame.phase in {"optimizer", "data"} else frame.layer
            update = update_type(frame.optimizer or "Clip") if frame.phase == "optimizer" else None
            self.contexts.append(Context(layer, self._role(frame), frame.phase or "other", update))
            number = self._numbers[key] = len(self.contexts) - 1
        frame.context = number
        return frame

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


def _within(frame: Frame, module: str) -> str:
    """The layer of a module that is called in a frame.

    A checkpoint computes modules again inside the backward pass of one of their own layers: they are where they were.
    """
    path = frame.layer.split(".") if frame.layer else []
    if frame.phase == "backward" and module in path:
        path = path[: path.index(module)]
    return ".".join([*path, module])


def _inside(parent: Frame, end: float) -> Frame:
    """A frame with its parent's context."""
    shared = parent.phase, parent.layer, parent.role, parent.optimizer, parent.closure
    return Frame(end, *shared, parent.op, parent.context)


def _leave_update(frame: Frame) -> None:
    frame.phase, frame.optimizer, frame.closure = "forward", "", False
