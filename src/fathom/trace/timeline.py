"""One typical step as rectangles: the outermost ops of every thread, the kernels and copies of every stream."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from copy import copy

import msgspec

from fathom.core.traced import Lane, Timeline
from fathom.trace.reader import gc_disabled
from fathom.trace.rows import Breakdown
from fathom.trace.steps import Window
from fathom.trace.taxonomy import AUTOGRAD, kernel_type, short_name

RECTANGLES = 2000  # at most: a drawing has no more pixels side by side
LANES = 40  # at most, the busiest


class _Rectangle(msgspec.Struct, gc=False):
    begin: float
    end: float
    name: str
    type: str
    longest: float  # of what was merged into it: that names it
    count: int = 1


Key = tuple[bool, str]  # whether on the device; the lane's name
Lanes = dict[Key, list[_Rectangle]]


@gc_disabled()
def timeline(found: Breakdown) -> Timeline | None:
    """Of the typical step whose duration is nearest to the median; None where nothing ran in it."""
    lengths = {step: found.steps[step][1] - found.steps[step][0] for step in sorted(found.typical_steps)}
    middle = statistics.median(lengths.values())
    step = min(lengths, key=lambda each: abs(lengths[each] - middle))
    window = found.steps[step]
    lanes = _lanes(found, step, window)
    if not lanes or lengths[step] <= 0:
        return None
    resolution = lengths[step] / RECTANGLES
    drawn = {key: _merged(lane, resolution) for key, lane in lanes.items()}
    while sum(map(len, drawn.values())) > RECTANGLES:
        resolution *= 2
        drawn = {key: _merged(lane, resolution) for key, lane in lanes.items()}
    names: dict[tuple[str, str], int] = {}
    kept = [_lane(key, lane, window[0], names) for key, lane in drawn.items()]
    return Timeline(
        step_s=lengths[step] * 1e-6,
        resolution_us=resolution,
        names=[name for name, _ in names],
        types=[kind for _, kind in names],
        lanes=kept,
    )


def _lanes(found: Breakdown, step: int, window: Window) -> Lanes:
    """The busiest, in order: threads, then streams, by their first rectangle."""
    threads: dict[object, list[_Rectangle]] = defaultdict(list)
    for call in found.op_calls:
        event = call.event
        if call.step != step or event is None or not call.calls or (call.is_wrapper and call.type == AUTOGRAD):
            continue  # a node of autograd's says little: the ops inside it are shown
        threads[event.tid].append(_Rectangle(event.ts, event.end, call.op, call.type, event.dur))
    streams: dict[tuple[object, object], list[_Rectangle]] = defaultdict(list)
    for activity in found.gpu_activities:
        if activity.begin < window[1] and activity.end > window[0]:
            kind = activity.op_call.type if activity.op_call else kernel_type(activity.name)
            span = activity.begin, activity.end
            streams[activity.stream].append(_Rectangle(*span, short_name(activity.name), kind, span[1] - span[0]))
    lanes: Lanes = {(False, f"thread {thread}"): _outermost(calls) for thread, calls in threads.items()}
    lanes |= {(True, _stream(*stream)): lane for stream, lane in streams.items()}
    cut = {key: _inside(lane, window) for key, lane in lanes.items()}
    busiest = sorted(cut, key=lambda key: -sum(each.end - each.begin for each in cut[key]))[:LANES]
    order = sorted((key for key in busiest if cut[key]), key=lambda key: (key[0], cut[key][0].begin))
    return {key: cut[key] for key in order}


def _stream(device: object, stream: object) -> str:
    text = str(stream)
    return f"GPU {device} {text if text.startswith('stream') else f'stream {text}'}"


def _outermost(calls: Iterable[_Rectangle]) -> list[_Rectangle]:
    kept: list[_Rectangle] = []
    reached = float("-inf")
    for each in sorted(calls, key=lambda each: (each.begin, -each.end)):
        if each.begin >= reached:  # else inside the one before
            reached = each.end
            kept.append(each)
    return kept


def _inside(lane: Sequence[_Rectangle], window: Window) -> list[_Rectangle]:
    """What lies in the step, cut at its borders."""
    begin, end = window
    kept = [each for each in lane if each.begin < end and each.end > begin]
    for each in kept:
        each.begin, each.end = max(each.begin, begin), min(each.end, end)
    return sorted(kept, key=lambda each: each.begin)


def _merged(lane: Iterable[_Rectangle], resolution: float) -> list[_Rectangle]:
    """Neighbours that together are too narrow to be told apart are one."""
    merged: list[_Rectangle] = []
    last = None
    for each in lane:
        if last is None or max(last.end, each.end) - last.begin >= resolution:
            last = copy(each)
            merged.append(last)
            continue
        if each.longest > last.longest:
            last.name, last.type, last.longest = each.name, each.type, each.longest
        last.end = max(last.end, each.end)
        last.count += each.count
    return merged


def _lane(key: Key, lane: Sequence[_Rectangle], begin: float, names: dict[tuple[str, str], int]) -> Lane:
    return Lane(
        name=key[1],
        on_device=key[0],
        begin_us=[round(each.begin - begin, 3) for each in lane],
        us=[round(each.end - each.begin, 3) for each in lane],
        names=[names.setdefault((each.name, each.type), len(names)) for each in lane],
        counts=[each.count for each in lane],
    )
