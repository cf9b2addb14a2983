"""The time of a step on a target: op times summed, the host's work beside or before them, and communication exposed.

step = step_work(workload, "train", "fp32", items=256)
estimate(step, Target.of(catalogue.device("H100")), count=8, link=Link.of(catalogue.interconnect("NVLink 4")))
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from fathom.core.errors import BadOption
from fathom.core.ranks import ALL_REDUCE
from fathom.predict.communication import Link, fastest
from fathom.predict.predictors.base import Predictor
from fathom.predict.predictors.roofline import Roofline, is_compute_bound
from fathom.predict.scaling import local_step, synchronous
from fathom.predict.target import Target
from fathom.trace.step_work import OPTIMIZER, StepWork
from fathom.trace.taxonomy import family_of

COMPUTE, MEMORY, HOST, COMMUNICATION = "compute", "memory bandwidth", "host", "communication"
INDEPENDENT = "in inference the devices work independently, each on a batch of its own: no communication"


@dataclass(frozen=True)
class Interval:
    """Factors of a predicted time between which the measured one is expected."""

    low: float = 1.0
    high: float = 1.0
    coverage: float | None = None  # how often that was so, on held-out workloads on one device; None: not measured
    measured_on: str = ""  # the machine on which, where it is not that of the prediction


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One step of `count` devices; each has step.batch items. compute + exposed = step."""

    workload: str
    target: str
    count: int
    batch: int  # of one device
    precision: str
    phase: str
    predictor: str
    step_s: float
    low_s: float
    high_s: float
    coverage: float | None  # of low_s to high_s; None: not measured
    coverage_on: str  # the machine it was measured on, where it is another one; else ""
    roofline_s: float  # the baseline's step, communication included
    compute_s: float  # of one device: its kernels or its host, whichever takes longer
    device_s: float  # in ops
    host_s: float  # around ops
    communication_s: float
    exposed_s: float  # of the communication, what the backward pass does not hide
    memory_bytes: int
    fits: bool | None  # None where the memory of the target is not known
    bound_by: str  # compute, memory bandwidth, host or communication: what takes longest
    by_family: dict[str, float]  # families of op types -> seconds in ops, longest first
    notes: list[str] = field(default_factory=list)

    @property
    def items_per_s(self) -> float:
        return self.count * self.batch / self.step_s if self.step_s else math.inf


def estimate(
    step: StepWork,
    target: Target,
    *,
    count: int = 1,
    link: Link | None = None,
    predictor: Predictor | None = None,
    interval: Interval | None = None,
    roof: Target | None = None,
) -> Estimate:
    """With the roofline where no predictor is given. Several devices train as DistributedDataParallel does.

    The baseline has the ceilings of `roof`, or of the target, and nothing else of it.
    """
    if count < 1:
        raise BadOption(f"--count must be at least 1, not {count}")
    if count > 1 and step.phase == "train" and link is None:
        raise BadOption("several devices need an interconnect; `fathom devices` lists them")
    chosen, factors = predictor or Roofline(), interval or Interval()
    each = chosen.seconds(step, target)
    alone = _alone(step, target, each)
    together = _together(step, alone, count, link)
    ceilings = (roof or target).without_costs()
    base = _together(step, _alone(step, ceilings, Roofline().seconds(step, ceilings)), count, link)
    step_s = alone.compute_s + together.exposed_s
    return Estimate(
        workload=step.workload,
        target=target.name,
        count=count,
        batch=step.batch,
        precision=step.precision,
        phase=step.phase,
        predictor=chosen.name,
        step_s=step_s,
        low_s=step_s * factors.low,
        high_s=step_s * factors.high,
        coverage=factors.coverage if count == 1 else None,
        coverage_on=factors.measured_on if count == 1 else "",
        roofline_s=base.compute_s + base.exposed_s,
        compute_s=alone.compute_s,
        device_s=alone.device_s,
        host_s=alone.host_s,
        communication_s=together.communication_s,
        exposed_s=together.exposed_s,
        memory_bytes=step.peak_bytes,
        fits=None if target.memory_bytes is None else step.peak_bytes <= target.memory_bytes,
        bound_by=_bound_by(step, target, each, alone, together.exposed_s),
        by_family=_by_family(step, each),
        notes=[INDEPENDENT] if count > 1 and step.phase != "train" else [],
    )


@dataclass(frozen=True)
class _Alone:
    """One device: seconds of each call in order, already scaled to the longer of host and device."""

    calls_s: Sequence[float]
    device_s: float
    host_s: float
    compute_s: float


def _alone(step: StepWork, target: Target, each_s: Sequence[float]) -> _Alone:
    device = [target.in_step_s(each_s[index]) for index in step.sequence]
    of_op = [target.host_s(op) for op in step.ops]
    host = [of_op[index] for index in step.sequence]
    calls_s, host_s = math.fsum(device), math.fsum(host) + target.host.of_step(step)
    device_s = calls_s + target.once_s
    if target.gpu:
        # the host runs ahead of the device, or the device waits for it: per call the slower of both sets the pace
        compute_s = max(device_s, host_s)
        factor = compute_s / calls_s if calls_s else 0.0
        calls = [seconds * factor for seconds in device]
    else:
        compute_s = device_s + host_s
        calls = [op_s + around_s for op_s, around_s in zip(device, host, strict=True)]
    return _Alone(calls, device_s, host_s, compute_s)


@dataclass(frozen=True)
class _Together:
    compute_s: float
    communication_s: float
    exposed_s: float


def _together(step: StepWork, alone: _Alone, count: int, link: Link | None) -> _Together:
    if count == 1 or link is None or not step.gradients:
        return _Together(alone.compute_s, 0.0, 0.0)
    local = local_step(step, alone.calls_s)
    found = synchronous(local, lambda size: fastest(ALL_REDUCE, count, size, link)[1])
    return _Together(alone.compute_s, found.communication_s, found.exposed_s)


def _bound_by(step: StepWork, target: Target, each_s: Sequence[float], alone: _Alone, exposed_s: float) -> str:
    """A GPU whose host is slower waits for it, whatever its kernels do: faster ones would not shorten the step."""
    host_paces = alone.host_s > alone.device_s
    sums = dict.fromkeys((COMPUTE, MEMORY, HOST, COMMUNICATION), 0.0)
    if not target.gpu or not host_paces:
        for op, seconds, calls in zip(step.ops, each_s, step.calls, strict=True):
            sums[COMPUTE if is_compute_bound(op, step, target) else MEMORY] += seconds * calls
    if not target.gpu or host_paces:
        sums[HOST] = alone.host_s
    sums[COMMUNICATION] = exposed_s
    return max(sums, key=lambda name: sums[name])


def _by_family(step: StepWork, each_s: Sequence[float]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for op, seconds, calls in zip(step.ops, each_s, step.calls, strict=True):
        sums["optimizer" if op.part == OPTIMIZER else family_of(op.type)] += seconds * calls
    return dict(sorted(sums.items(), key=lambda pair: -pair[1]))
