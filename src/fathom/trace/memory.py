"""Memory over a step, from the allocations in a trace made with profile_memory=True: its peak, and what holds it.

What an allocation is for is decided by the phase of the op that made it, and by how long it lived:
temporary            freed before the op that allocated it ended, as workspaces; of the optimizer, before the step did
activations          allocated in the forward pass and kept after its op: inputs of the backward, outputs
gradients            allocated in the backward pass and kept after its end: those of the weights
activation gradients allocated in the backward pass and freed before its end
optimizer state      allocated in the optimizer's step and kept after the step
data, other          allocated while data is prepared; outside all ops
before the trace     still allocated, but by nothing in the trace: weights, and state of earlier steps
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from fathom.core.traced import Held, Memory
from fathom.trace.calls import OpCall
from fathom.trace.event import Event, view
from fathom.trace.intervals import Interval
from fathom.trace.reader import gc_disabled
from fathom.trace.rows import Breakdown

TEMPORARY, ACTIVATIONS, GRADIENTS = "temporary", "activations", "gradients"
ACTIVATION_GRADIENTS, OPTIMIZER = "activation gradients", "optimizer state"
DATA, OTHER, BEFORE = "data", "other", "before the trace"
KINDS = (ACTIVATIONS, GRADIENTS, ACTIVATION_GRADIENTS, OPTIMIZER, TEMPORARY, DATA, OTHER, BEFORE)
POINTS = 400  # of the curve
LISTED = 40  # holders
CPU = 0  # c10's number for the host
DEVICES = {CPU: "cpu", 1: "cuda", 6: "hip", 12: "xpu"}
NEVER = float("inf")


class MemoryArgs(msgspec.Struct, gc=False):
    addr: int | None = msgspec.field(default=None, name="Addr")  # None before torch 1.10
    bytes: int = msgspec.field(default=0, name="Bytes")  # negative where memory is freed
    allocated: int | None = msgspec.field(default=None, name="Total Allocated")  # after it
    reserved: int | None = msgspec.field(default=None, name="Total Reserved")
    device_type: int = msgspec.field(default=CPU, name="Device Type")
    device_id: int = msgspec.field(default=-1, name="Device Id")


memory_args = view(MemoryArgs)
Change = tuple[Event, MemoryArgs]


@dataclass(slots=True)
class _Allocation:
    index: int  # of the change that made it
    bytes: int
    call: OpCall | None
    freed: float = NEVER  # when, in microseconds
    freed_at: float = NEVER  # the index of the change that freed it


@gc_disabled()
def memory(found: Breakdown, events: Iterable[Event]) -> Memory | None:
    """Of the device with the most allocated bytes, or of the host where no device has any; None without allocations."""
    changes = _of_main_device([(event, memory_args(event)) for event in events])
    if not changes:
        return None
    totals, is_lower_bound = _totals(changes)
    times = [event.ts for event, _ in changes]
    step, peak = _highest(found, times, totals)
    begin, end = found.steps[step]
    first, last = bisect_right(times, begin), bisect_right(times, end)
    curve = _curve(times[first:last], totals[first:last], begin, end, totals[first - 1] if first else totals[0])
    held = _held(found, changes, peak)
    if held is not None and not is_lower_bound:
        rest = totals[peak] - sum(each.bytes for each in held)
        held += [Held(kind=BEFORE, phase="", layer="", op="", bytes=rest, allocations=0)] if rest > 0 else []
    args = changes[peak][1]
    return Memory(
        device=_device(args),
        step=step,
        times_s=[(time - begin) * 1e-6 for time, _ in curve],
        allocated=[total for _, total in curve],
        peak_bytes=totals[peak],
        peak_s=max(0.0, times[peak] - begin) * 1e-6,
        kinds=_by_kind(held or []),
        held=sorted(held or [], key=lambda each: -each.bytes)[:LISTED],
        reserved_bytes=args.reserved or None,
        is_lower_bound=is_lower_bound,
    )


def with_known(found: Memory, known: Mapping[str, int], *, is_all: bool = True) -> Memory:
    """With what was there before the trace by name, such as {"parameters": 400}: of a model that was at hand.

    A host's allocations before the trace are not in its totals: they are added to the peak and to the curve. Where they
    are not all, the peak stays a lower bound.
    """
    added = sum(known.values()) if found.is_lower_bound else 0
    left = found.kinds.get(BEFORE, 0) + added
    kinds = {kind: size for kind, size in found.kinds.items() if kind != BEFORE}
    for name, size in known.items():
        part = min(left, size)
        kinds[name] = kinds.get(name, 0) + part
        left -= part
    kinds |= {BEFORE: left}
    return replace(
        found,
        peak_bytes=found.peak_bytes + added,
        allocated=[each + added for each in found.allocated],
        kinds={kind: kinds[kind] for kind in sorted(kinds, key=lambda kind: -kinds[kind]) if kinds[kind] > 0},
        held=[each for each in found.held if each.kind != BEFORE],
        is_lower_bound=found.is_lower_bound and not is_all,
    )


def _of_main_device(changes: list[Change]) -> list[Change]:
    """In order of time; of GPUs before the host, whose allocations beside a GPU are small."""
    sizes: dict[tuple[int, int], int] = defaultdict(int)
    for _, args in changes:
        sizes[args.device_type, args.device_id] += max(0, args.bytes)
    main = max(sizes, key=lambda device: (device[0] != CPU and sizes[device] > 0, sizes[device]), default=None)
    own = [
        (event, args)
        for event, args in changes
        if (args.device_type, args.device_id) == main and args.bytes and math.isfinite(event.ts)
    ]
    return sorted(own, key=lambda change: change[0].ts)


def _totals(changes: Sequence[Change]) -> tuple[list[int], bool]:
    """Allocated bytes after every change, and whether they lack what was allocated before the trace."""
    told = [args.allocated for _, args in changes]
    on_device = changes[0][1].device_type != CPU
    if on_device and None not in told and any(told):
        return [each or 0 for each in told], False
    totals, sofar = [], 0
    for _, args in changes:
        sofar += args.bytes
        totals.append(sofar)
    least = min(0, *totals) if totals else 0  # more was freed than allocated: so much was there before, at least
    return [each - least for each in totals], True


def _highest(found: Breakdown, times: Sequence[float], totals: Sequence[int]) -> tuple[int, int]:
    """The typical step with the highest peak, and the change at which it is reached."""
    best: tuple[int, int, int] | None = None
    for step in sorted(found.typical_steps):
        begin, end = found.steps[step]
        first, last = max(0, bisect_right(times, begin) - 1), bisect_right(times, end)
        peak = max(range(first, max(last, first + 1)), key=lambda index: totals[index])
        if best is None or totals[peak] > best[0]:
            best = totals[peak], step, peak
    assert best is not None  # a trace has a step
    return best[1], best[2]


def _curve(
    times: Sequence[float], totals: Sequence[int], begin: float, end: float, before: int
) -> list[tuple[float, int]]:
    """From the step's beginning to its end, at most POINTS: the highest of each interval, at its own time."""
    points = [(begin, before)]
    width = max(end - begin, 1e-9) / (POINTS - 2)
    highest: dict[int, tuple[float, int]] = {}
    for time, total in zip(times, totals, strict=True):
        slot = int((time - begin) / width)
        if slot not in highest or total > highest[slot][1]:
            highest[slot] = time, total
    points += [highest[slot] for slot in sorted(highest)]
    return [*points[: POINTS - 1], (end, totals[-1] if totals else before)]


def _held(found: Breakdown, changes: Sequence[Change], peak: int) -> list[Held] | None:
    """What is allocated at the peak, by what allocated it; None where the trace has no addresses."""
    if any(args.addr is None for _, args in changes):
        return None
    backward_ends = _backward_ends(found)
    totals: dict[tuple[str, str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    for each in _allocations(changes, _callers(found.op_calls, changes)):
        if each.index <= peak < each.freed_at:
            call = each.call
            owner = (call.phase, call.layer, call.op) if call else ("", "", "")
            total = totals[_kind(each, found.steps, backward_ends), *owner]
            total[0] += each.bytes
            total[1] += 1
    return [
        Held(kind=kind, phase=phase, layer=layer, op=op, bytes=size, allocations=count)
        for (kind, phase, layer, op), (size, count) in totals.items()
    ]


def _allocations(changes: Sequence[Change], callers: Sequence[OpCall | None]) -> list[_Allocation]:
    found: list[_Allocation] = []
    alive: dict[int | None, _Allocation] = {}
    for index, (event, args) in enumerate(changes):
        if args.bytes > 0:
            alive[args.addr] = _Allocation(index, args.bytes, callers[index])
            found.append(alive[args.addr])
        elif args.addr in alive:  # else it was allocated before the trace
            freed = alive.pop(args.addr)
            freed.freed, freed.freed_at = event.ts, index
    return found


def _kind(each: _Allocation, steps: Sequence[Interval], backward_ends: Mapping[int, float]) -> str:
    call = each.call
    if call is None or call.event is None:
        return OTHER
    if not call.is_wrapper and each.freed <= call.event.end:
        return TEMPORARY
    if call.phase == "backward":
        return GRADIENTS if each.freed > backward_ends[call.step] else ACTIVATION_GRADIENTS
    if call.phase == "optimizer":
        return OPTIMIZER if each.freed > steps[call.step][1] else TEMPORARY
    return {"forward": ACTIVATIONS, "data": DATA}.get(call.phase, OTHER)


def _backward_ends(found: Breakdown) -> dict[int, float]:
    """Step -> when its backward pass is over: at the next op of another phase, or at the end of the step."""
    calls = [(call, call.event) for call in found.op_calls if call.event is not None]
    last: dict[int, float] = {}
    for call, event in calls:
        if call.phase == "backward":
            last[call.step] = max(last.get(call.step, event.end), event.end)
    ends = {step: max(end, found.steps[step][1]) for step, end in last.items()}
    for call, event in calls:
        if call.phase != "backward" and event.ts >= last.get(call.step, math.inf):
            ends[call.step] = min(ends[call.step], event.ts)
    return ends


def _callers(calls: Iterable[OpCall], changes: Sequence[Change]) -> list[OpCall | None]:
    """The innermost op call around every change, on its thread."""
    threads: dict[tuple[str, str], list[OpCall]] = defaultdict(list)
    for call in calls:
        if call.event is not None and call.calls:
            threads[_thread(call.event)].append(call)
    asked: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, (event, _) in enumerate(changes):
        asked[_thread(event)].append(index)
    found: list[OpCall | None] = [None] * len(changes)
    for thread, indices in asked.items():
        own = sorted(threads.get(thread, []), key=_begin_then_longest)
        stack: list[OpCall] = []
        position = 0
        for index in indices:
            time = changes[index][0].ts
            while position < len(own) and _event(own[position]).ts <= time:
                stack.append(own[position])
                position += 1
            while stack and _event(stack[-1]).end < time:
                stack.pop()
            found[index] = next((call for call in reversed(stack) if _event(call).end >= time), None)
    return found


def _event(call: OpCall) -> Event:
    assert call.event is not None
    return call.event


def _begin_then_longest(call: OpCall) -> tuple[float, float]:
    return _event(call).ts, -_event(call).dur


def _thread(event: Event) -> tuple[str, str]:
    """As text: some write the same thread as a number here and as text there."""
    return str(event.pid), str(event.tid)


def _by_kind(held: Iterable[Held]) -> dict[str, int]:
    sizes: dict[str, int] = defaultdict(int)
    for each in held:
        sizes[each.kind] += each.bytes
    return {kind: sizes[kind] for kind in sorted(sizes, key=lambda kind: -sizes[kind])}


def _device(args: MemoryArgs) -> str:
    name = DEVICES.get(args.device_type, f"device {args.device_type}")
    return name if args.device_type == CPU or args.device_id < 0 else f"{name}:{args.device_id}"
