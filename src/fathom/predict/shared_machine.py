"""What ranks of one machine have alone and what they leave each other, from the records of `fathom collectives`."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fathom.core.errors import DataError
from fathom.core.ranks import ALL_REDUCE, COPY, PRODUCT
from fathom.core.record import Record
from fathom.trace.step_work import OpWork

LARGE = 1 << 20  # bytes of a message whose time is not for its latency alone
Points = Mapping[float, float]


@dataclass(frozen=True)
class Shared:
    """So many ranks of one machine: what each of them has alone, and what is left of it when all work."""

    ranks: int
    flop_per_s: float  # of one rank alone
    product: float  # times as long when all ranks compute
    copy_s: Points  # bytes moved -> seconds of one rank alone
    copy: Points  # bytes moved -> times as long when all ranks do it
    hidden: float  # of a message beside computing, the share that costs no time
    all_reduce: Points  # message bytes -> seconds

    def memory_s(self, op: OpWork) -> float:
        """One call on one rank alone, by the bytes that it moves: they come from a cache where they fit in one."""
        near = min(max(op.bytes or 0.0, min(self.copy_s)), max(self.copy_s))
        return _between(self.copy_s, near) * (op.bytes or 0.0) / near

    def alone_s(self, op: OpWork) -> float:
        return max((op.flop or 0.0) / self.flop_per_s, self.memory_s(op))

    def slower(self, op: OpWork) -> float:
        """Times as long among all ranks, of a call that memory bounds."""
        return max(1.0, _between(self.copy, op.bytes or 0.0))

    def message_s(self, size: float) -> float:
        last = max(self.all_reduce)
        return _between(self.all_reduce, size) * max(1.0, size / last)

    @property
    def latency_s(self) -> float:
        return self.all_reduce[min(self.all_reduce)]


def shared_of(records: Sequence[Record]) -> dict[int, Shared]:
    """By number of ranks, of one machine; medians over the launches. Empty where nothing shared was timed.

    Of ranks with different numbers of threads, those with the most launches count.
    """
    launches: dict[int, dict[int | None, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        job = record.ranks
        if record.spec.kind == "collectives" and record.outcome == "ok" and job and job.shared_work and job.nodes == 1:
            launches[job.ranks][record.spec.threads].append(record)
    return {ranks: _shared(ranks, max(same.values(), key=len)) for ranks, same in sorted(launches.items())}


def _shared(ranks: int, records: Sequence[Record]) -> Shared:
    alone, slowdown = defaultdict(list), defaultdict(list)
    messages: dict[float, list[float]] = defaultdict(list)
    added: dict[float, list[float]] = defaultdict(list)
    rates, hidden = [], []
    for each in (record.ranks for record in records if record.ranks):
        for work in each.shared_work:
            slowdown[work.work, work.bytes_moved].append(work.slowest)
            alone[work.work, work.bytes_moved].append(statistics.median(work.alone_s))
            if work.work == PRODUCT:
                rates.append(work.flop / statistics.median(work.alone_s))
        for message in each.collectives:
            if message.operation == ALL_REDUCE:
                messages[message.message_bytes].append(message.latency_s)
        for overlap in each.overlaps:
            if overlap.message_bytes >= LARGE:
                hidden.append(overlap.hidden)
            if overlap.added_s is not None:
                added[overlap.message_bytes].append(overlap.added_s)
    if not messages:
        raise DataError(f"no all-reduce among {ranks} ranks in these records; run `fathom collectives`")
    return Shared(
        ranks=ranks,
        flop_per_s=statistics.median(rates),
        product=max(
            1.0, statistics.median([each for (work, _), all_ in slowdown.items() if work == PRODUCT for each in all_])
        ),
        copy_s={size: statistics.median(times) for (work, size), times in alone.items() if work == COPY},
        copy={size: statistics.median(times) for (work, size), times in slowdown.items() if work == COPY},
        hidden=statistics.median(hidden) if hidden else 1.0,
        all_reduce=_after_computing(_medians(messages), _medians(added)),
    )


def _medians(times: Mapping[float, Sequence[float]]) -> Points:
    return {size: statistics.median(each) for size, each in times.items()}


def _after_computing(back_to_back: Points, added: Points) -> Points:
    """Messages as they take in a step: as much shorter as those of about their size that followed computing."""
    if not added:
        return back_to_back
    ratios = {size: seconds / _between(back_to_back, size) for size, seconds in added.items()}
    return {size: seconds * _between(ratios, size) for size, seconds in back_to_back.items()}


def _between(points: Points, size: float) -> float:
    """On a line between the logarithms of two points; before the first and after the last, theirs."""
    sizes = sorted(points)
    logs = [math.log(points[each]) for each in sizes]
    return math.exp(float(np.interp(math.log(max(size, 1.0)), np.log(sizes), logs)))
