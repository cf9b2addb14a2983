"""The ops of one step with their work, as plain data: what a prediction is made from, and a record's rows compared to.

A step of a workload, or of a user's model, gives it without running (engine/step_work.py); op rows of a record give it
after a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fathom.core.record import OpRow
from fathom.trace.flops import is_multiply_add

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
PRECISIONS = {"Half": "fp16", "BFloat16": "bf16", "float": "fp32", "double": "fp64"}  # of dtypes, the narrowest first


@dataclass(frozen=True, kw_only=True)
class OpWork:
    """One kind of op call: the same op with arguments of the same shapes and types, in the same part of a step."""

    op: str  # as torch names it, without the overload: aten::addmm
    type: str  # Fathom op type, as in op rows
    part: str  # forward, backward or optimizer
    shapes: str  # of the inputs, as in op rows
    dtypes: str
    flop: float | None  # of one call; None: not known
    bytes: float | None
    spec: str = ""  # the call with all its arguments (engine/call_specs.py), by which it can be made again; "" in rows

    @property
    def is_view(self) -> bool:
        """Whether it only describes memory anew: its time is the host's alone."""
        return self.bytes == 0 and not self.flop

    @property
    def precision(self) -> str | None:
        """What it computes in: the narrowest of its floating-point operands; None without any."""
        dtypes = self.dtypes.split()
        return next((precision for dtype, precision in PRECISIONS.items() if dtype in dtypes), None)


@dataclass(frozen=True)
class GradientReady:
    """A gradient that the backward pass has finished."""

    after: int  # op calls of the step, forward included, until it is there
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """One step: the kinds of its op calls, and their order. Only what its network does; no data is fed."""

    workload: str
    phase: str  # train or infer
    precision: str
    batch: int  # items of the step
    item: str
    ops: tuple[OpWork, ...]
    sequence: tuple[int, ...]  # indices into ops, in the order of the calls
    gradients: tuple[GradientReady, ...] = ()
    parameters: int = 0
    weight_bytes: int = 0  # parameters and buffers
    peak_bytes: int = 0  # of device memory, as `fathom cost` has it
    gpu: bool = True  # whether the ops are those of a GPU; else of a CPU
    updates: int = 1  # of the weights, each with a backward pass; none in inference
    left_out: tuple[str, ...] = ()  # what the network does beside this, in words

    @property
    def calls(self) -> list[int]:
        """How often each of the ops is called."""
        counts = [0] * len(self.ops)
        for index in self.sequence:
            counts[index] += 1
        return counts

    @property
    def gradient_bytes(self) -> int:
        return sum(each.size_bytes for each in self.gradients)

    @property
    def flop(self) -> float:
        return sum(count * (op.flop or 0.0) for op, count in zip(self.ops, self.calls, strict=True))

    @property
    def bytes(self) -> float:
        return sum(count * (op.bytes or 0.0) for op, count in zip(self.ops, self.calls, strict=True))

    @property
    def own_precision(self) -> str | None:
        return own_precision(self.precision, zip(self.ops, self.calls, strict=True))


def own_precision(asked: str | None, calls: Iterable[tuple[OpWork, float]]) -> str | None:
    """Under a model's own autocast, that of most FLOP of products and convolutions; else what was asked for."""
    work: dict[str, float] = {}
    for op, count in calls:
        if op.precision is not None and op.flop and is_multiply_add(op.op):
            work[op.precision] = work.get(op.precision, 0.0) + count * op.flop
    most = max(work, key=lambda each: work[each]) if work else None
    return most if most in ("fp16", "bf16") else asked


def from_rows(rows: Iterable[OpRow]) -> list[tuple[OpWork, float, float]]:
    """The ops of a record's rows: each with its calls in a step and the seconds of one call."""
    found = []
    for row in rows:
        if row.calls:
            work = OpWork(
                op=row.op,
                type=row.type,
                part=row.phase,
                shapes=row.shapes,
                dtypes=row.dtypes,
                flop=None if row.flop is None else row.flop / row.calls,
                bytes=None if row.bytes is None else row.bytes / row.calls,
            )
            seconds = row.cpu_s if row.device_s is None else row.kernel_s or row.device_s
            found.append((work, row.calls, seconds / row.calls))
    return found
