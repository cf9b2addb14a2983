"""Measured steps of a workload at other batches, which correct its prediction at a batch that was not run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fathom.core.spec import EAGER
from fathom.predict.estimate import estimate
from fathom.predict.predictors.base import Predictor
from fathom.predict.target import Target
from fathom.trace.step_work import StepWork


@dataclass(frozen=True)
class Case:
    """A step that was measured: what it consists of, and how long it took without the input pipeline."""

    step: StepWork
    measured_s: float
    engine: str = EAGER
    loop_s: float | None = None  # of the fixed loop on its host; None: not known
    slow_host: bool = False  # whether it was disturbed by that alone


class Corrected:
    """A predictor and a target whose times are a factor longer."""

    def __init__(self, predictor: Predictor, factor: float) -> None:
        self.predictor, self.factor = predictor, factor
        self.name = f"{predictor.name}, corrected by other batches"

    def seconds(self, step: StepWork, target: Target) -> list[float]:
        return [self.factor * each for each in self.predictor.seconds(step, target)]

    def target(self, target: Target) -> Target:
        return replace(target, host=target.host.scaled(self.factor), graphs=target.graphs.scaled(self.factor))


def factor_at(batch: int, log_errors: Sequence[tuple[int, float]]) -> float:
    """From batches and logarithms of measured over predicted: their mean, a batch half as far away counting twice."""
    weights = [1 / abs(math.log2(other / batch)) for other, _ in log_errors]
    return math.exp(math.fsum(w * e for w, (_, e) in zip(weights, log_errors, strict=True)) / math.fsum(weights))


def at_other_batches(step: StepWork, cases: Sequence[Case], target: Target) -> list[Case]:
    """The measured steps of the same workload and phase at another batch that say something of this target."""
    return [
        case
        for case in cases
        if (case.step.workload, case.step.phase, case.step.precision) == (step.workload, step.phase, step.precision)
        and case.step.batch != step.batch
        and target.is_like(case.loop_s, case.slow_host)
    ]


def corrected(step: StepWork, cases: Sequence[Case], target: Target, predictor: Predictor) -> Corrected | None:
    """By the measured steps of the same workload and phase at other batches; None where there are none."""
    others = at_other_batches(step, cases, target)
    if not others:
        return None
    found = [
        (case.step.batch, math.log(case.measured_s / estimate(case.step, beside, predictor=predictor).step_s))
        for case in others
        for beside in [target.beside_host(case.loop_s)]
    ]
    return Corrected(predictor, factor_at(step.batch, found))
