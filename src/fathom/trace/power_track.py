"""Power and clocks as counter tracks inside a Chrome trace, on the clock of its ops.

A trace's timestamps are on a clock of the profiler's choice, which differs between its versions. It is therefore not
assumed: marks are left in the trace at known moments of time.monotonic(), the clock of the samples, and what they are
stamped with gives the offset between the two, at the beginning and at the end.
"""

from __future__ import annotations

import gzip
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fathom.core.energy import PowerTrace
from fathom.core.errors import DataError
from fathom.trace.event import Event

CLOCK_MARK = "fathom.clock"
ALIGNMENT = "fathomPowerTrack"  # the key of the trace's document that tells how well the clocks are known
Marked = tuple[float, float]  # between these two moments of time.monotonic() a mark was stamped


@dataclass(frozen=True)
class Alignment:
    """From time.monotonic() to a trace's microseconds, on a line through the marks at both ends."""

    begin: Marked  # seconds, microseconds
    end: Marked
    within_us: float  # how far a mark's stamp may be from the moment it is taken for
    pid: int | str | float | None  # of the process that was profiled

    def to_trace(self, moment: float) -> float:
        (s0, us0), (s1, us1) = self.begin, self.end
        slope = (us1 - us0) / (s1 - s0) if s1 > s0 else 1e6
        return us0 + (moment - s0) * slope


def aligned(events: Sequence[Event], marked: Sequence[Marked]) -> Alignment | None:
    """From the marks found in a trace and when they were made; None where the trace does not have all of them.

    A mark is made in microseconds, but the process may be interrupted in it: each end is the middle of its marks.
    """
    found = sorted((event for event in events if event.name == CLOCK_MARK), key=lambda event: event.ts)
    if not marked or len(found) != len(marked):
        return None
    middles = [((before + after) / 2, event.ts) for (before, after), event in zip(marked, found, strict=True)]
    half = max(1, len(middles) // 2)
    ends = [_middle(middles[:half]), _middle(middles[-half:])]
    within_us = 1e6 * statistics.median(after - before for before, after in marked) / 2
    return Alignment(ends[0], ends[1], within_us, found[0].pid)


def add_power_track(path: Path, traces: Sequence[PowerTrace], alignment: Alignment) -> int:
    """Adds the samples of meters, whose seconds are those of time.monotonic(), to a trace file; gives how many."""
    packed = path.read_bytes()
    gzipped = packed[:2] == b"\x1f\x8b"
    try:
        document = msgspec.json.decode(gzip.decompress(packed) if gzipped else packed, type=dict[str, msgspec.Raw])
        events = msgspec.json.decode(document["traceEvents"], type=list[msgspec.Raw])
    except (msgspec.MsgspecError, KeyError, OSError) as error:
        raise DataError.at(path, f"no trace to add power to: {error}") from None
    added = [msgspec.Raw(msgspec.json.encode(event)) for trace in traces for event in counter_events(trace, alignment)]
    document["traceEvents"] = msgspec.Raw(msgspec.json.encode([*events, *added]))
    document[ALIGNMENT] = msgspec.Raw(msgspec.json.encode({"aligned_within_us": alignment.within_us}))
    whole = msgspec.json.encode(document)
    _replace(path, gzip.compress(whole) if gzipped else whole)
    return len(added)


def counter_events(trace: PowerTrace, alignment: Alignment) -> Iterator[dict[str, Any]]:
    """Of the time between the marks, and one sample before and after it: the track then covers every op."""
    memory = [(at, mhz) for at, mhz in zip(trace.seconds, trace.memory_clock_mhz, strict=False) if mhz is not None]
    for name, unit, points in (
        ("power", "W", trace.power),
        ("clock", "MHz", trace.clock),
        ("memory clock", "MHz", memory),
    ):
        for at, value in _covering(points, alignment.begin[0], alignment.end[0]):
            yield {
                **{"ph": "C", "cat": "power", "name": f"{trace.scope} {name} ({unit})", "pid": alignment.pid, "tid": 0},
                **{"ts": round(alignment.to_trace(at), 3), "args": {unit: value}},
            }


def _covering(points: Sequence[tuple[float, float]], begin: float, end: float) -> Sequence[tuple[float, float]]:
    before = sum(at < begin for at, _ in points)
    after = sum(at <= end for at, _ in points)
    return points[max(0, before - 1) : after + 1]


def _middle(marks: Sequence[Marked]) -> Marked:
    """The mark whose offset is the median one."""
    offset: Callable[[Marked], float] = lambda mark: mark[1] - 1e6 * mark[0]  # noqa: E731
    middle = statistics.median_low(map(offset, marks))
    return next(mark for mark in marks if offset(mark) == middle)


def _replace(path: Path, content: bytes) -> None:
    """Whole or not at all: a trace that cannot be extended stays as the profiler wrote it."""
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
