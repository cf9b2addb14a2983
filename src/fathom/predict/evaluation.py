"""How wrong predictions are: each measured step predicted without the calls of its workload, or of its batch.

Situations:
  unseen workload   nothing of the workload is in what a predictor was fitted to, at any batch
  unseen batch      the workload's calls at other batches are, those of this step are not
  other batches run the same, and measured steps of the workload at other batches correct the prediction
  op by op          the calls of this step were timed alone; the network never ran
  op by op, other batches run   the same, and measured steps of the workload at other batches correct the prediction
Intervals are conformal: errors on the other workloads say how wide the one of a workload must be.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from fathom.core.errors import DataError
from fathom.predict.campaign import Campaign, TimedCall, source_of
from fathom.predict.estimate import Interval, estimate
from fathom.predict.other_batches import Case, factor_at
from fathom.predict.predictors import boosting, svr
from fathom.predict.predictors.base import Predictor
from fathom.predict.predictors.efficiency import Efficiency, Timed
from fathom.predict.predictors.names import BOOSTING, EFFICIENCY, NEIGHBOURS, ROOFLINE, SVR
from fathom.predict.predictors.neighbours import Neighbours
from fathom.predict.predictors.op_by_op import OpByOp
from fathom.predict.predictors.roofline import Roofline
from fathom.predict.target import Target

UNSEEN_WORKLOAD, UNSEEN_BATCH, OP_BY_OP = "unseen workload", "unseen batch", "op by op"
OTHER_BATCHES_RUN, OP_BY_OP_OTHERS_RUN = "other batches run", "op by op, other batches run"
LEVEL = 0.9  # of the intervals
Fit = Callable[[Sequence[TimedCall], Target, str], Predictor]
FITS: dict[str, Fit] = {
    ROOFLINE: lambda calls, target, precision: Roofline(),
    EFFICIENCY: lambda calls, target, precision: Efficiency.fitted(timed_of(calls), target, precision),
    NEIGHBOURS: Neighbours,
    SVR: lambda calls, target, precision: svr.fitted(timed_of(calls), target, precision),
    BOOSTING: lambda calls, target, precision: boosting.fitted(timed_of(calls), target, precision),
}


@dataclass(frozen=True)
class Score:
    workload: str
    phase: str
    batch: int
    situation: str
    predictor: str
    predicted_s: float
    measured_s: float
    precision: str = "fp32"
    parameters: int = 0  # of the network: presets of one workload are different networks

    @property
    def error(self) -> float:
        """Relative to the measured time."""
        return self.predicted_s / self.measured_s - 1

    @property
    def log_error(self) -> float:
        return math.log(self.measured_s / self.predicted_s)


@dataclass(frozen=True)
class Summary:
    """The errors of one predictor in one situation."""

    situation: str
    predictor: str
    cases: int
    mean_error: float  # of absolute values
    median_error: float
    largest_error: float
    factor: float  # a measured time is expected within predicted / factor and predicted x factor
    coverage: float | None  # how many were, by factors of other workloads; None with one workload

    @property
    def interval(self) -> Interval:
        return Interval(1 / self.factor, self.factor, self.coverage)


def evaluate(campaign: Campaign, cases: Sequence[Case], predictors: Iterable[str] = FITS) -> list[Score]:
    target = campaign.target()
    cases = [case for case in cases if target.lacks(case.step.precision) is None]
    cases = [case for case in cases if target.is_like(case.loop_s, case.slow_host)]
    if not cases:
        what = "undisturbed runs of one rank on this machine, with this engine and in a precision of the calibration"
        raise DataError(f"no measured steps to compare with: {what}")
    chosen, scores = list(predictors), list[Score]()
    for workload in dict.fromkeys(case.step.workload for case in cases):
        own = [case for case in cases if case.step.workload == workload]
        without = without_workload(campaign, own)
        scores += _scores(without, own, UNSEEN_WORKLOAD, chosen)
        for batch in dict.fromkeys(case.step.batch for case in own):
            at_batch = [case for case in own if case.step.batch == batch]
            if other := _at_other_batches(campaign, without, at_batch):
                scores += _at_unseen_batch(_scores(other, own, UNSEEN_BATCH, chosen), batch)
        scores += _op_by_op(campaign, without, own, chosen)
    return scores


def without_workload(campaign: Campaign, own: Sequence[Case]) -> Campaign:
    """Neither calls that occur in it at any batch, nor its steps."""
    name, specs = own[0].step.workload, _specs(own)
    calls = [each for each in campaign.calls if each.work.spec not in specs and name not in _workloads(each)]
    probes = [each for each in campaign.probes if each.name.partition("@")[0] != name]
    return replace(campaign, calls=calls, probes=probes)


def _at_other_batches(campaign: Campaign, without: Campaign, own: Sequence[Case]) -> Campaign | None:
    """With the calls of the workload that these steps do not have; None where it was timed at no other batch."""
    specs, steps = _specs(own), {source_of(each.step.workload, each.step.batch, each.step.phase) for each in own}
    calls = [each for each in campaign.calls if each.work.spec not in specs]
    sources = {source for each in calls for source in each.sources}
    phases = {(each.step.workload, each.step.phase) for each in own}
    others = {source for source in sources - steps if (source.partition("@")[0], source.rpartition(" ")[2]) in phases}
    return replace(without, calls=calls) if others else None


def _at_unseen_batch(scores: Sequence[Score], batch: int) -> list[Score]:
    """Of one workload, predicted without the calls of this batch: as predicted, and as its other batches correct it."""
    found = [each for each in scores if each.batch == batch]
    return found + [made for each in found for made in _corrected(each, scores, OTHER_BATCHES_RUN)]


def _corrected(score: Score, scores: Sequence[Score], situation: str) -> list[Score]:
    """By measured over predicted time at the other batches; none where there are none."""
    errors = [
        (each.batch, each.log_error)
        for each in scores
        if (each.phase, each.precision, each.parameters) == (score.phase, score.precision, score.parameters)
        and each.predictor == score.predictor
        and each.batch != score.batch
    ]
    if not errors or score.predictor == ROOFLINE:
        return []
    return [replace(score, situation=situation, predicted_s=score.predicted_s * factor_at(score.batch, errors))]


def _specs(cases: Iterable[Case]) -> set[str]:
    return {op.spec for case in cases for op in case.step.ops}


def _workloads(call: TimedCall) -> set[str]:
    return {source.partition("@")[0] for source in call.sources}


def _scores(campaign: Campaign, cases: Sequence[Case], situation: str, predictors: Sequence[str]) -> list[Score]:
    target = campaign.target()
    found = []
    for name in predictors:
        bare = target.without_costs() if name == ROOFLINE else target
        for precision in dict.fromkeys(case.step.precision for case in cases):
            fitted = FITS[name](campaign.calls, bare, precision)
            found += [
                _score(case, situation, name, estimate(case.step, _ran_on(case, bare), predictor=fitted).step_s)
                for case in cases
                if case.step.precision == precision
            ]
    return found


def _op_by_op(campaign: Campaign, without: Campaign, cases: Sequence[Case], predictors: Sequence[str]) -> list[Score]:
    """Of steps whose calls were timed, but for a few; these few are predicted as in a prediction."""
    timed = {each.work.spec: each for each in campaign.calls}
    if not campaign.timed_alone:
        return []
    target, fit = campaign.target(), FITS[NEIGHBOURS if NEIGHBOURS in predictors else EFFICIENCY]
    fallbacks = {each: fit(without.calls, target, each) for each in {case.step.precision for case in cases}}
    scores = []
    for case in cases:
        own = [timed[op.spec] for op in case.step.ops if op.spec in timed]
        predictor, executed = OpByOp(own, fallbacks[case.step.precision]), _ran_on(case, target)
        if predictor.timed(case.step, executed):
            scores.append(_score(case, OP_BY_OP, OP_BY_OP, estimate(case.step, executed, predictor=predictor).step_s))
    return scores + [made for each in scores for made in _corrected(each, scores, OP_BY_OP_OTHERS_RUN)]


def _ran_on(case: Case, target: Target) -> Target:
    return target.executed_by(case.engine).beside_host(case.loop_s)


def _score(case: Case, situation: str, predictor: str, predicted_s: float) -> Score:
    return Score(
        workload=case.step.workload,
        phase=case.step.phase,
        batch=case.step.batch,
        situation=situation,
        predictor=predictor,
        predicted_s=predicted_s,
        measured_s=case.measured_s,
        precision=case.step.precision,
        parameters=case.step.parameters,
    )


def timed_of(calls: Iterable[TimedCall]) -> Timed:
    return [(each.work, each.seconds) for each in calls]


def summaries(scores: Iterable[Score]) -> list[Summary]:
    groups: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for score in scores:
        groups[score.situation, score.predictor].append(score)
    return [_summary(situation, predictor, group) for (situation, predictor), group in groups.items()]


def _summary(situation: str, predictor: str, scores: Sequence[Score]) -> Summary:
    errors = sorted(abs(each.error) for each in scores)
    held_out = [
        abs(each.log_error) <= width_of([other for other in scores if other.workload != each.workload])
        for each in scores
        if any(other.workload != each.workload for other in scores)
    ]
    return Summary(
        situation=situation,
        predictor=predictor,
        cases=len(scores),
        mean_error=sum(errors) / len(errors),
        median_error=errors[len(errors) // 2] if len(errors) % 2 else sum(errors[len(errors) // 2 - 1 :][:2]) / 2,
        largest_error=errors[-1],
        factor=math.exp(width_of(scores)),
        coverage=sum(held_out) / len(held_out) if held_out else None,
    )


def width_of(scores: Sequence[Score]) -> float:
    """The conformal quantile of absolute log errors: of n, number ceil((n + 1) level), or the largest there is."""
    errors = sorted(abs(each.log_error) for each in scores)
    rank = min(len(errors), math.ceil((len(errors) + 1) * LEVEL))
    return errors[rank - 1]
