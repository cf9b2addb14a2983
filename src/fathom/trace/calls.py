"""What a trace comes to: one op call, and one activity of the GPU, as the walk finds them."""

from __future__ import annotations

import msgspec

from fathom.trace.event import EMPTY, NO_ARGS, NO_CORRELATION, Event, OpArgs


class OpCall(msgspec.Struct, gc=False):  # hundreds of thousands: made in a third of a dataclass's time
    """One op call: the outermost one that has an op type, one without with its self time, or kernels of no op."""

    op: str
    type: str
    layer: str
    role: str
    phase: str
    step: int
    cpu_us: float
    is_wrapper: bool = False  # an op without a type that calls others: its time is what it adds to theirs
    event: Event | None = None  # None for a kernel that no op launched
    args: OpArgs = NO_ARGS
    device_us: float = 0.0  # of its kernels, sharing what they overlap
    kernel_us: float = 0.0  # of its kernels, each in full
    kernels: list[tuple[str, float]] = []  # a new list for each; name and attributed time in microseconds
    calls: int = 1  # 0 for the part of an op's kernels that ran in a later step than the call
    kernel_only: bool = False  # stands for a kernel that no op launched
    inner: tuple[str, OpArgs] | None = None  # the op inside whose arguments tell the cost (INNER)


class GpuActivity(msgspec.Struct, gc=False):
    """One kernel, copy or memset on the GPU."""

    kind: str
    name: str
    begin: float
    end: float
    correlation: int = NO_CORRELATION
    op_call: OpCall | None = None  # the op that launched it; if none did and it ran in a step, its kernel_only stand-in
    step: int | None = None  # the step in which it began
    launched: float = float("nan")  # when; NaN where the trace does not have the call
    stream: tuple[object, object] = (0, 0)  # device and stream
    launch: Event | None = None  # the call that launched it; None where the trace does not have it
    args: msgspec.Raw = EMPTY  # as in the file
