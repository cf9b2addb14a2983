"""One event of a profiler trace, and typed views of its arguments; what is malformed in them is as good as absent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import msgspec

NO_CORRELATION = -1
EMPTY = msgspec.Raw(b"")

# category -> the categories of the same meaning, as profilers of other years and vendors name them; one of a name, as
# category/name, before one of all names
KINDS = {
    "cpu_op": "cpu_op Operator",
    "user_annotation": "user_annotation",
    "python_function": "python_function",
    "cuda_runtime": "cuda_runtime cuda_driver Runtime hip_runtime xpu_runtime xpu_driver mtia_runtime "
    "privateuse1_runtime privateuse1_driver",
    "kernel": "kernel Kernel hpu_op mtia_ccp_events",
    "gpu_memcpy": "gpu_memcpy Memcpy mtia_ccp_events/dma_request",
    "gpu_memset": "gpu_memset Memset",
    "wait": "mtia_ccp_events/event_wait mtia_ccp_events/event_record",  # of a stream for another: no work
}
CATEGORY: dict[str | None, str] = {name: kind for kind, names in KINDS.items() for name in names.split()}
GPU_KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
LAUNCH = "cuda_runtime"
# MTIA runs a whole compiled network as one, under the name that its user gave it; one that was launched before the
# trace began is pe_exe. Such names say nothing of what is computed.
PROGRAMS, UNNAMED_PROGRAM, PROGRAM = "mtia_ccp_events", "pe_exe", "MTIA program"


class Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a duration; times are in microseconds, as in the file. args is decoded where it is needed."""

    cat: str | None = None
    name: str = ""
    pid: int | str | float | None = 0
    tid: int | str | float | None = 0
    ts: float = float("nan")  # NaN: missing in the file
    dur: float = float("nan")
    args: msgspec.Raw = EMPTY

    @property
    def end(self) -> float:
        return self.ts + self.dur


class Instant(Event, gc=False, tag_field="ph", tag="i"):
    """An event without a duration, such as an allocation of memory."""


class LaunchArgs(msgspec.Struct, gc=False):
    """Of a call to the GPU's runtime, and of the kernels that it launched."""

    correlation: int = NO_CORRELATION


class SequenceArgs(msgspec.Struct, gc=False):
    """Autograd's number for a forward op and the backward node that belongs to it."""

    sequence: int | None = msgspec.field(default=None, name="Sequence number")
    forward_thread: int | None = msgspec.field(default=None, name="Fwd thread id")  # torch's own number; 0 is none


class OpArgs(msgspec.Struct, gc=False, frozen=True):
    """The inputs of an op as JSON, undecoded: calls with equal inputs are told by equal bytes."""

    named_dims: msgspec.Raw = msgspec.field(default=EMPTY, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=EMPTY, name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=EMPTY, name="Concrete Inputs")
    strides: msgspec.Raw = msgspec.field(default=EMPTY, name="Input Strides")
    old_dims: msgspec.Raw = msgspec.field(default=EMPTY, name="Input dims")  # as torch 1.8 spells it

    @property
    def dims(self) -> msgspec.Raw:
        return self.named_dims if bytes(self.named_dims) else self.old_dims

    @classmethod
    def of(cls, args: dict[str, Any]) -> OpArgs:
        """From a trace event's arguments that are already decoded."""
        return msgspec.json.decode(msgspec.json.encode(args), type=cls)

    @property
    def key(self) -> bytes:
        """Equal for equal inputs: no JSON has a zero byte."""
        return b"\0".join((self.dims, self.types, self.concrete, self.strides))


NO_ARGS = OpArgs()
View = TypeVar("View")


class HasArguments(Protocol):
    """An event, or what was made of it."""

    @property
    def args(self) -> msgspec.Raw: ...


def view(kind: type[View]) -> Callable[[HasArguments], View]:
    """A function from an event to a view of its arguments; all defaults where they are missing or malformed."""
    decode = msgspec.json.Decoder(kind, strict=False).decode  # not strict: some write numbers as strings

    def of(event: HasArguments) -> View:
        try:
            return decode(event.args)
        except msgspec.MsgspecError:
            return kind()

    return of


def views(kind: type[View]) -> Callable[[Iterable[HasArguments]], Iterator[View]]:
    """The same of many events, one after the other."""
    decode = msgspec.json.Decoder(kind, strict=False).decode

    def of(events: Iterable[HasArguments]) -> Iterator[View]:
        for event in events:
            try:
                yield decode(event.args)
            except msgspec.MsgspecError:
                yield kind()

    return of


launch_args = view(LaunchArgs)
sequence_args = view(SequenceArgs)
op_args = view(OpArgs)
all_launch_args = views(LaunchArgs)
all_op_args = views(OpArgs)
