"""The collective calls of a trace: which collective, in which process group, how many bytes, how long.

What a kernel's own arguments do not say is taken from the host's events around its launch (record_param_comms, or the
annotation nccl:all_reduce and its like), and at last from the kernel's name.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from fathom.core.depth import Collective
from fathom.trace.call import WIDTH
from fathom.trace.calls import GpuActivity
from fathom.trace.columns import COMMUNICATION, Columns
from fathom.trace.event import Event, view
from fathom.trace.event_columns import EventColumns
from fathom.trace.rows import Breakdown
from fathom.trace.steps import Steps

ANNOTATION = re.compile(r"(?:nccl|rccl|xccl|ucc|gloo|mpi|hccl):(\w+)")
HOST_OP = "record_param_comms"
UNNAMED = "communication"
# first letters of a name, without case and punctuation -> the collective; longer ones first
NAMES = {
    "allreduce": "all_reduce",
    "crossdevicereduce": "all_reduce",
    "quickreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "sendrecv": "send_recv",
    "coalesced": "coalesced",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "recv": "recv",
}
KERNEL_NAME = re.compile("|".join(name for name in NAMES if len(name) > 7))  # shorter ones say too little in a kernel
NCCL_KERNEL = re.compile(r"ncclD?e?v?Kernel_(\w+?)_")
# dtypes as communication libraries name them, beside those of op arguments
WIDTHS = {name.removeprefix("c10::").lower(): width for name, width in WIDTH.items()}
WIDTHS |= {"byte": 1, "char": 1, "half": 2, "short": 2, "int64": 8, "int32": 4}


class CommArgs(msgspec.Struct, gc=False):
    """Of a communication kernel, or of the host's event around its launch."""

    name: str = msgspec.field(default="", name="Collective name")
    group: str = msgspec.field(default="", name="Process Group Name")
    ranks: str = msgspec.field(default="", name="Process Group Ranks")
    size: int | None = msgspec.field(default=None, name="Group size")
    sent: int | None = msgspec.field(default=None, name="In msg nelems")
    received: int | None = msgspec.field(default=None, name="Out msg nelems")
    dtype: str = ""
    dims: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")


comm_args = view(CommArgs)


def collectives(found: Breakdown, columns: Columns) -> list[Collective]:
    """One for each collective and process group, that with most time first."""
    chosen = [
        each for each, kind in zip(found.gpu_activities, columns.kind.tolist(), strict=True) if kind == COMMUNICATION
    ]
    if not chosen:
        return []
    around = _HostEvents(found.columns)
    steps = Steps(found.steps, waited=False)
    calls: dict[tuple[str, str, str, int | None], list[tuple[GpuActivity, int | None]]] = defaultdict(list)
    for activity in chosen:
        args = _completed(activity, around)
        name = args.name or UNNAMED
        calls[name, args.group, args.ranks, args.size].append((activity, message_bytes(name, args)))
    found_ = [_collective(key, of_key, steps) for key, of_key in calls.items()]
    return sorted(found_, key=lambda each: -sum(each.seconds))


def _collective(
    key: tuple[str, str, str, int | None], calls: Sequence[tuple[GpuActivity, int | None]], steps: Steps
) -> Collective:
    name, group, ranks, size = key
    return Collective(
        name=name,
        group=group,
        ranks=ranks,
        size=size,
        seconds=[(each.end - each.begin) * 1e-6 for each, _ in calls],
        # by the launch: a host may be ahead of the GPU by more than a step, and by another amount on each rank
        steps=[steps.at(each.begin if each.launch is None else each.launch.ts) for each, _ in calls],
        bytes=[moved for _, moved in calls],
    )


def canonical(name: str) -> str:
    """all_reduce for AllReduce, allreduce_coalesced, _allreduce_base, ...; "" for no name."""
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((known for start, known in NAMES.items() if letters.startswith(start)), name.lower())


def _completed(activity: GpuActivity, around: _HostEvents) -> CommArgs:
    """The kernel's arguments, and what is missing in them from the host or from its name."""
    args = comm_args(activity)
    launch = activity.launch
    for event in around.of(launch) if launch is not None and not args.name else ():
        host = comm_args(event)
        match = ANNOTATION.fullmatch(event.name)
        args.name = args.name or host.name or (match[1] if match else "")
        args.group, args.ranks = args.group or host.group, args.ranks or host.ranks
        args.size = host.size if args.size is None else args.size
        if args.sent is None:
            args.sent, args.received, args.dtype = host.sent, host.received, host.dtype
        if match and args.dims is None:
            args.dims, args.types = host.dims, host.types
    args.name = canonical(args.name or _kernels_name(activity.name))
    return args


def _kernels_name(kernel: str) -> str:
    if match := NCCL_KERNEL.match(kernel):
        return match[1] if match[1] != "Generic" else ""
    found = KERNEL_NAME.search(re.sub(r"[^a-z]", "", kernel.lower()))
    return found[0] if found else ""


def message_bytes(name: str, args: CommArgs) -> int | None:
    """The size that nccl-tests gives: what all ranks end up with in an all-gather, else what one rank puts in."""
    width = WIDTHS.get(args.dtype.lower())
    if args.sent is not None and args.received is not None and width:
        return width * (max(args.sent, args.received) if name in {"all_gather", "gather", "broadcast"} else args.sent)
    elements = _elements(args.dims)
    types = args.types if isinstance(args.types, list) else []
    width = WIDTHS.get(str(types[0]).removeprefix("c10::").lower()) if types else None
    if elements is None or not width:
        return None
    if name == "all_gather":  # the annotation has one rank's part
        return elements * width * args.size if args.size else None
    return elements * width


def _elements(dims: Any) -> int | None:
    """Of the only tensor; several, or a list of them, are not counted."""
    if not isinstance(dims, list) or len(dims) != 1 or not isinstance(dims[0], list) or not dims[0]:
        return None
    return math.prod(dims[0]) if all(isinstance(size, int) for size in dims[0]) else None


class _HostEvents:
    """The host's events that announce a collective, by thread."""

    def __init__(self, columns: EventColumns) -> None:
        self._by_thread: dict[tuple[object, object], list[Event]] = defaultdict(list)
        annotations = columns.of_category("user_annotation") & columns.named(ANNOTATION.fullmatch)
        for event in columns.chosen(annotations | columns.named(lambda name: name == HOST_OP)):
            self._by_thread[event.pid, event.tid].append(event)
        for thread in self._by_thread.values():
            thread.sort(key=lambda event: event.ts)
        self._begins = {key: [event.ts for event in thread] for key, thread in self._by_thread.items()}

    def of(self, launch: Event) -> list[Event]:
        """Those around a launch, innermost first; record_param_comms holds the annotation, or stands beside it."""
        key = (launch.pid, launch.tid)
        at = bisect_right(self._begins.get(key, []), launch.ts)
        return [
            event for event in reversed(self._by_thread.get(key, [])[max(0, at - 4) : at]) if event.end >= launch.ts
        ]
