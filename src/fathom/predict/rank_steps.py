"""Steps of ranks that share one machine: one rank's step, slowed by the other ranks, and messages that take its cores.

One rank's step is measured, at the batch in question or at two others. `fathom collectives` has measured on the same
machine what an all-reduce takes, how much longer the same work takes when all ranks do it, and how much of a message is
hidden behind computing. All ranks wait for the slowest: the longer, the more ranks there are and the more steps vary.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from fathom.analysis.labels import labelled
from fathom.analysis.rank_jobs import Curve, Job, circumstances, curves_of, work_of
from fathom.core.errors import DataError
from fathom.core.record import Record
from fathom.predict.scaling import Bucket, Step, buckets, local_step
from fathom.predict.shared_machine import Points, Shared, shared_of
from fathom.trace.step_work import OpWork, StepWork

DDP, GLOO = "ddp", "gloo"
AT_ONCE = 2  # threads of torch's gloo backend


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
    machines: dict[str, list[Record]] = defaultdict(list)
    for record in labelled(records):
        if record.ranks and record.ranks.backend == GLOO:
            machines[record.machine_label].append(record)
    if not (known := {label: shared for label, own in machines.items() if (shared := shared_of(own))}):
        raise DataError("no shared work of ranks among these records; run `fathom collectives`")
    found = [case for label, shared in known.items() for case in _on_machine(machines[label], shared, step_of)]
    if not found:
        raise DataError("no jobs of ddp on one and on several ranks among these records; run `fathom scale --ranks`")
    return found


def _on_machine(
    records: Sequence[Record], shared: Mapping[int, Shared], step_of: Callable[[Record, int], StepWork]
) -> list[RankCase]:
    curves = [each for each in curves_of(records) if each.base and _is_plain_ddp(each.jobs[-1].runs[0])]
    alone: dict[str, OneRank] = defaultdict(OneRank)
    for curve in curves:
        assert curve.base is not None
        alone[_of_any_batch(curve)].add(curve.base)
    return [
        _case(curve, job, alone[_of_any_batch(curve)], shared[job.ranks], partial(step_of, job.runs[0]))
        for curve in curves
        for job in curve.jobs
        if job.ranks > 1 and job.ranks in shared
    ]


def _is_plain_ddp(record: Record) -> bool:
    """On one node, with default options and nothing injected."""
    return record.spec.strategy == DDP and not record.spec.strategy_options and not circumstances(record)


def _of_any_batch(curve: Curve) -> str:
    """One rank's steps at other batches say what they take at this one."""
    return str(replace(work_of(curve.jobs[0].runs[0]), batch=None))


def _case(curve: Curve, job: Job, one: OneRank, shared: Shared, step_of: Callable[[int], StepWork]) -> RankCase:
    batch = job.items_per_step / job.ranks
    step = step_of(round(batch))
    alone_s = alone_at(one.step_s, batch, lambda each: _modelled_s(step_of(round(each)), shared))
    return RankCase(
        workload=curve.workload,
        scaling=curve.scaling,
        ranks=job.ranks,
        batch=batch,
        measured_s=job.step.median,
        predicted_s=rank_step(step, alone_s * one.slowest_of(job.ranks), shared).step_s,
        independent_s=independent_step(step, alone_s, shared).step_s,
        alone_s=alone_s,
    )


@dataclass
class OneRank:
    """What one rank of a workload took, alone."""

    step_s: dict[float, float] = field(default_factory=dict)  # batch -> the median
    varied: list[float] = field(default_factory=list)  # every step over the median of its job

    def add(self, job: Job) -> None:
        self.step_s[job.items_per_step] = job.step.median
        for run in job.runs:
            middle = statistics.median(run.step_s)
            self.varied += [each / middle for each in run.step_s]

    def slowest_of(self, ranks: int) -> float:
        """The mean of the largest of so many steps drawn from these: all ranks wait for the slowest in every step."""
        count = len(self.varied)
        weights = [((place + 1) / count) ** ranks - (place / count) ** ranks for place in range(count)]
        return max(1.0, math.fsum(map(math.prod, zip(weights, sorted(self.varied), strict=True))))


def alone_at(measured: Points, batch: float, modelled: Callable[[float], float]) -> float:
    """One rank's step at a batch: measured, or on the line through the two nearest.

    Where one batch alone was measured, the step is in proportion to what the model gives for both.
    """
    if batch in measured:
        return measured[batch]
    near, *others = sorted(measured, key=lambda each: abs(math.log(each / batch)))
    if not others:
        return measured[near] * modelled(batch) / modelled(near)
    slope = (measured[others[0]] - measured[near]) / (others[0] - near)
    return max(measured[near] + slope * (batch - near), 0.1 * min(measured.values()))


def _modelled_s(step: StepWork, shared: Shared) -> float:
    each = [shared.alone_s(op) for op in step.ops]
    return math.fsum(each[index] for index in step.sequence)


def _memory_bound_s(op: OpWork, shared: Shared) -> float:
    memory_s = shared.memory_s(op)
    return memory_s if memory_s > (op.flop or 0.0) / shared.flop_per_s else 0.0


def _ready(step: StepWork, each_s: Sequence[float], factor: float) -> tuple[list[Bucket], float]:
    """The buckets, and when the backward pass ends; both after it began."""
    local = local_step(step, [each_s[index] * factor for index in step.sequence])
    return buckets(local.gradients), local.backward_s
