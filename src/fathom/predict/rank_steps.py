"""Steps of ranks that share one machine: one rank's step, slowed by the other ranks, and messages that take its cores.

One rank's step is measured, at the batch in question or at two others. `fathom collectives` has measured on the same
machine what an all-reduce takes, how much longer the same work takes when all ranks do it, and how much of a message is
hidden behind computing.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fathom.analysis.rank_jobs import Curve, curves_of
from fathom.core.errors import DataError
from fathom.core.ranks import ALL_REDUCE, COPY, PRODUCT
from fathom.core.record import Record
from fathom.predict.scaling import Bucket, Step, buckets, local_step
from fathom.trace.step_work import OpWork, StepWork

DDP, GLOO = "ddp", "gloo"
AT_ONCE = 2  # threads of torch's gloo backend
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


@dataclass(frozen=True, kw_only=True)
class RankCase:
    """A measured job beside its prediction."""

    workload: str
    scaling: str
    ranks: int
    batch: float  # of one rank
    measured_s: float
    predicted_s: float
    independent_s: float  # predicted as if ranks took nothing from each other: the baseline
    alone_s: float  # of one rank, measured

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def shared_of(records: Sequence[Record]) -> dict[int, Shared]:
    """By number of ranks; medians over the launches."""
    launches: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        if record.spec.kind == "collectives" and record.outcome == "ok" and record.ranks and record.ranks.shared_work:
            launches[record.ranks.ranks].append(record)
    found = {ranks: _shared(ranks, same) for ranks, same in sorted(launches.items())}
    if not found:
        raise DataError("no shared work of ranks among these records; run `fathom collectives`")
    return found


def _shared(ranks: int, records: Sequence[Record]) -> Shared:
    alone, slowdown, messages = defaultdict(list), defaultdict(list), defaultdict(list)
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
        hidden += [overlap.hidden for overlap in each.overlaps]
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
        all_reduce={size: statistics.median(times) for size, times in messages.items()},
    )


def rank_step(step: StepWork, alone_s: float, shared: Shared) -> Step:
    """One step of DistributedDataParallel, from that of one rank alone.

    What memory bounds takes as much longer as copies of its size do, all else as products do. The latency of a message
    can be hidden behind the backward pass; of the time for its bytes, the part that was hidden where it was measured.
    """
    each = [shared.alone_s(op) for op in step.ops]
    memory = [_memory_bound_s(op, shared) for op in step.ops]
    modelled, moved = (math.fsum(times[index] for index in step.sequence) for times in (each, memory))
    share = min(1.0, alone_s / moved) if moved else 1.0  # of operands that the model counts, and caches had
    slowed = math.fsum(memory[index] * (shared.slower(step.ops[index]) - 1) for index in step.sequence) * share
    compute_s = moved * share + slowed + (alone_s - moved * share) * shared.product
    ready, backward_end = _ready(step, each, compute_s / modelled if modelled else 0.0)
    free, messages, bytes_s = _through(ready, shared)
    exposed = max(0.0, free - backward_end)
    taken = (1 - shared.hidden) * max(0.0, bytes_s - exposed)
    return Step(compute_s + taken, messages, exposed)


def independent_step(step: StepWork, alone_s: float, shared: Shared) -> Step:
    """The same, of ranks that take nothing from each other, as those of several machines."""
    each = [shared.alone_s(op) for op in step.ops]
    modelled = math.fsum(each[index] for index in step.sequence)
    ready, backward_end = _ready(step, each, alone_s / modelled if modelled else 0.0)
    free, messages, _ = _through(ready, shared)
    return Step(alone_s, messages, max(0.0, free - backward_end))


def _through(ready: Sequence[Bucket], shared: Shared) -> tuple[float, float, float]:
    """When the last message is through, how long all take one by one, and how much of that is for their bytes.

    gloo has so many messages under way; they wait for answers at once, and their bytes go one after another.
    """
    free, link, messages, bytes_s = [0.0] * AT_ONCE, 0.0, 0.0, 0.0
    for bucket in ready:
        took = shared.message_s(bucket.size_bytes)
        own = max(0.0, took - shared.latency_s)
        begun = max(min(free), bucket.ready_s)
        link = max(link, begun) + own
        free[free.index(min(free))] = max(begun + took, link)
        messages += took
        bytes_s += own
    return max(free), messages, bytes_s


def cases_of(records: Sequence[Record], step_of: Callable[[Record, int], StepWork]) -> list[RankCase]:
    """Every job of ddp on several ranks whose workload also ran on one; `step_of` gives the step of a rank's batch.

    Of CPUs: ranks with a GPU each share less, and NCCL does not send as gloo does.
    """
    records = [record for record in records if record.ranks and record.ranks.backend == GLOO]
    shared = shared_of(records)
    curves = [each for each in curves_of(records) if each.strategy == DDP and each.base]
    alone: dict[str, dict[float, float]] = defaultdict(dict)
    for curve in curves:
        assert curve.base is not None
        alone[curve.workload][curve.base.items_per_step] = curve.base.step.median
    found = [case for curve in curves for case in _cases(curve, alone[curve.workload], shared, step_of)]
    if not found:
        raise DataError("no jobs of ddp on one and on several ranks among these records; run `fathom scale --ranks`")
    return found


def _cases(
    curve: Curve, alone: Points, shared: Mapping[int, Shared], step_of: Callable[[Record, int], StepWork]
) -> list[RankCase]:
    found = []
    for job in curve.jobs:
        batch = job.items_per_step / job.ranks
        if job.ranks == 1 or job.ranks not in shared or (alone_s := alone_at(alone, batch)) is None:
            continue
        step, among = step_of(job.runs[0], round(batch)), shared[job.ranks]
        found.append(
            RankCase(
                workload=curve.workload,
                scaling=curve.scaling,
                ranks=job.ranks,
                batch=batch,
                measured_s=job.step.median,
                predicted_s=rank_step(step, alone_s, among).step_s,
                independent_s=independent_step(step, alone_s, among).step_s,
                alone_s=alone_s,
            )
        )
    return found


def alone_at(measured: Points, batch: float) -> float | None:
    """One rank's step at a batch: measured, or on the line through the two nearest batches; None: of one batch."""
    if batch in measured:
        return measured[batch]
    if len(measured) < 2:
        return None
    near, far = sorted(measured, key=lambda each: abs(math.log(each / batch)))[:2]
    slope = (measured[far] - measured[near]) / (far - near)
    return max(measured[near] + slope * (batch - near), 0.1 * min(measured.values()))


def _memory_bound_s(op: OpWork, shared: Shared) -> float:
    memory_s = shared.memory_s(op)
    return memory_s if memory_s > (op.flop or 0.0) / shared.flop_per_s else 0.0


def _ready(step: StepWork, each_s: Sequence[float], factor: float) -> tuple[list[Bucket], float]:
    """The buckets, and when the backward pass ends; both after it began."""
    local = local_step(step, [each_s[index] * factor for index in step.sequence])
    return buckets(local.gradients), local.backward_s


def _between(points: Points, size: float) -> float:
    """On a line between the logarithms of two points; before the first and after the last, theirs."""
    sizes = sorted(points)
    logs = [math.log(points[each]) for each in sizes]
    return math.exp(float(np.interp(math.log(max(size, 1.0)), np.log(sizes), logs)))
