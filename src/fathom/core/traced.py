"""What a trace tells beside op times, as a record keeps it: source lines, waits, memory, a timeline, rows' kernels."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class SourceLine:
    """One line of source code and the ops that it called, per step."""

    line: str  # "file(line): function"
    seconds: float  # of these ops and of their backward: the device's time where there is one, else the CPU's
    backward_s: float  # the backward's part of it
    calls: float
    types: dict[str, float]  # op type -> seconds, longest first
    libraries: dict[str, float] = field(default_factory=dict)  # function of a library that the line called -> seconds


@dataclass(frozen=True, kw_only=True)
class Wait:
    """One kind of call in which the host waits for the device, per step."""

    call: str  # e.g. cudaStreamSynchronize
    op: str  # the op that makes it, e.g. aten::item; "" outside all ops
    line: str  # "" where the trace has no stack
    calls: float
    seconds: float  # of the host, waiting


@dataclass(frozen=True, kw_only=True)
class OutsidePart:
    """Time outside ops in one function, per step, as profiled: recording each call in it took the profiler time.

    On a GPU only that in which the GPU had nothing to do, as the host had not launched the next kernel.
    """

    line: str  # "file(line): function", the user's own where there is one; "" where no function is known or listed
    callee: str  # the function that it called, of a library or in C; "torch" for all of torch's; "" for its own lines
    in_torch: bool  # whether it is torch's own time, or that of a library's function that runs ops
    seconds: float
    calls: float  # of functions and ops that were recorded


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where in the source code the time is. Lines, other_s and unknown_s add up to the time of all ops."""

    lines: list[SourceLine]  # longest first; empty where the trace has no stacks
    other_s: float  # in lines that are not listed
    unknown_s: float  # in ops of which the trace has no stack
    waits: list[Wait]  # longest first
    exact: bool  # whether a line is that of the call; else the one in which the calling function begins
    outside: list[OutsidePart] = field(default_factory=list)  # longest first; empty without Python's functions


@dataclass(frozen=True, kw_only=True)
class Held:
    """Memory at the peak, by what allocated it."""

    kind: str  # one of KINDS of trace/memory.py
    phase: str  # of the op that allocated it; "" where none did
    layer: str
    op: str
    bytes: int
    allocations: int


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The allocated memory of one device over the step with the highest peak, and what holds it there."""

    device: str  # "cuda:0", "cpu"
    step: int  # which of the profiled steps, from 0 on
    times_s: list[float]  # since the step's beginning
    allocated: list[int]  # bytes at these times: the largest in the interval since the time before
    peak_bytes: int
    peak_s: float
    kinds: dict[str, int]  # kind -> bytes at the peak, largest first: they add up to it; empty where not known
    held: list[Held]  # the largest
    reserved_bytes: int | None = None  # by the allocator, at the peak
    is_lower_bound: bool = False  # what was allocated before the trace is not known


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One thread of the host or one stream of the device: rectangles in order, as columns."""

    name: str
    on_device: bool
    begin_us: list[float]  # since the step's beginning
    us: list[float]
    names: list[int]  # indices into Timeline.names
    counts: list[int]  # how many ops or kernels were merged into it


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One typical step: outermost ops of every thread, kernels and copies of every stream."""

    step_s: float
    resolution_us: float  # what lies closer together than this is one rectangle, named after the longest in it
    names: list[str]
    types: list[str]  # the op type of each name
    lanes: list[Lane]


@dataclass(frozen=True, kw_only=True)
class RowKernels:
    """Which kernels an op row launched, as columns; the seconds of a row's kernels add up to its device_s."""

    names: list[str]
    rows: list[int]  # indices into Profile.rows
    kernels: list[int]  # indices into names
    calls: list[float]  # per step
    seconds: list[float]  # per step; concurrent kernels share the time
