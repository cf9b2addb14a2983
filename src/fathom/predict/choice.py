"""Which target, predictor and interval a prediction uses: a calibrated machine, the catalogue, or two numbers.

this machine, calibrated      its own op calls; the nearest of them for calls that were not timed
a device of the catalogue     its peaks as far as the nearest calibrated machine reaches its own, and that one's
                              class efficiencies
--peak-tflops, --bandwidth    the same
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

from fathom.core.errors import BadOption, UnknownName
from fathom.core.spec import EAGER
from fathom.predict import catalogue
from fathom.predict.campaign import SUFFIX, Campaign, find, read
from fathom.predict.errors import Errors, errors_of_its_kind, own_errors
from fathom.predict.estimate import Interval
from fathom.predict.evaluation import (
    FITS,
    OP_BY_OP,
    OP_BY_OP_OTHERS_RUN,
    OTHER_BATCHES_RUN,
    UNSEEN_WORKLOAD,
    Summary,
)
from fathom.predict.other_batches import Case, at_other_batches, corrected
from fathom.predict.predictors.base import Predictor
from fathom.predict.predictors.names import AUTO, EFFICIENCY, NEIGHBOURS, PREDICTORS, ROOFLINE, WITH_EXTRA
from fathom.predict.predictors.op_by_op import OpByOp
from fathom.predict.predictors.regression import has_scikit_learn
from fathom.predict.predictors.roofline import Roofline
from fathom.predict.reference import as_reached, nearest, shipped
from fathom.predict.target import Target
from fathom.trace.step_work import StepWork

SLOWED = 0.9  # of a core's fastest speed, below which that is said


class How(TypedDict):
    predictor: Predictor
    interval: Interval
    roof: Target | None


@dataclass(frozen=True)
class Choice:
    target: Target
    predictor: Predictor
    interval: Interval
    notes: list[str] = field(default_factory=list)
    campaign: Campaign | None = None
    roof: Target | None = None  # with the ceilings of the baseline, where they are not the target's
    partly: Interval | None = None  # of a step whose calls were not timed; None where `interval` holds of any step
    others_run: Interval | None = None  # ... of one corrected by steps at other batches; None: not measured
    others_run_partly: Interval | None = None

    def how(self, step: StepWork) -> How:
        """What estimate() takes of it."""
        return {"predictor": self.predictor, "interval": self.interval_of(step), "roof": self.roof}

    def interval_of(self, step: StepWork) -> Interval:
        """Errors of steps whose calls were timed say nothing of a step whose calls were not."""
        if self.partly is None or not isinstance(self.predictor, OpByOp):
            return self.interval
        return self.interval if self.predictor.timed(step, self.target) else self.partly

    def corrected_by(self, cases: Sequence[Case], step: StepWork) -> Choice:
        """With measured steps of the same workload at other batches."""
        found = corrected(step, cases, self.target, self.predictor)
        if found is None:
            what = f"{step.workload}, {step.phase}, {step.precision}"
            raise BadOption(
                f"no undisturbed profiled step of {what} at another batch than {step.batch} on this machine"
            )
        timed = isinstance(self.predictor, OpByOp) and self.predictor.timed(step, self.target)
        interval = self.others_run if timed else self.others_run_partly
        batches = ", ".join(str(case.step.batch) for case in at_other_batches(step, cases, self.target))
        return replace(
            self,
            target=found.target(self.target),
            predictor=found,
            interval=interval or self.interval_of(step),
            partly=None,
            notes=[*self.notes, f"times {found.factor:.3f}: measured over predicted at batch {batches}"],
        )


def calibrated(path: Path, predictor: str, precision: str, engine: str = EAGER) -> Choice:
    """A machine that has been calibrated."""
    campaign = read(path)
    errors = _errors(path, campaign, engine, precision)
    if not campaign.calls and predictor != ROOFLINE:  # which needs the ceilings alone
        raise BadOption(f"{path} has no op calls: run fathom calibrate with a longer --budget")
    target = campaign.target().executed_by(engine)
    notes = [f"calibrated: {len(campaign.calls)} op calls timed on {campaign.machine}"]
    if (share := campaign.share_of_fastest) is not None and share < SLOWED:
        notes.append(f"for a core at {share:.0%} of its fastest speed, as it usually was in the calibration")
    notes += [f"the calibration was disturbed: {reason}" for reason in campaign.disturbances]
    if errors.machine:
        notes.append(f"interval as on {errors.machine}; fathom predict --evaluate RECORDS finds that of this machine")
    if predictor == ROOFLINE:
        return Choice(target.without_costs(), Roofline(), _error(errors, ROOFLINE, engine, precision), notes, campaign)
    fallback = predictor if predictor in FITS else _best_installed(errors.summaries)
    fitted = FITS[fallback](campaign.calls, target, precision)
    found = Choice(
        target,
        fitted,
        _error(errors, fallback, engine, precision),
        notes,
        campaign,
        others_run=errors.interval(OP_BY_OP, OP_BY_OP_OTHERS_RUN),
        others_run_partly=errors.interval(fallback, OTHER_BATCHES_RUN),
    )
    if predictor in FITS:
        return found
    timed = OpByOp(campaign.calls, fitted)
    return replace(found, predictor=timed, interval=_error(errors, OP_BY_OP, engine, precision), partly=found.interval)


def elsewhere(device: catalogue.Device, predictor: str, precision: str, engine: str = EAGER) -> Choice:
    """A device that is not here."""
    peaks = Target.of(device).executed_by(engine)
    if predictor not in (AUTO, ROOFLINE, EFFICIENCY):
        raise BadOption(f"predictor {predictor} needs a calibration of {device.name}; there is none")
    if predictor == ROOFLINE:
        return Choice(peaks, Roofline(), Interval(), ["at the peaks of the catalogue, which nothing reaches"])
    known = shipped()
    source = nearest(peaks, known.machines)
    assert source is not None, "reference.json has machines"
    target = as_reached(peaks, source).executed_by(engine)
    reduced = f", and as much of {device.name}'s peaks as it reaches of its own"
    note = f"from {source.machine}: its class efficiencies{reduced if target.flop_per_s != peaks.flop_per_s else ''}"
    return Choice(target, source.predictor, interval_elsewhere(engine, precision), [note], roof=peaks)


def chosen(
    on: str | None,
    folder: Path,
    predictor: str,
    precision: str,
    peak_tflops: float | None,
    bandwidth: float | None,
    engine: str = EAGER,
) -> Choice:
    """By what the command was given."""
    if predictor not in PREDICTORS:
        raise UnknownName.among("predictor", predictor, PREDICTORS)
    if (peak_tflops is None) != (bandwidth is None):
        raise BadOption("--peak-tflops and --bandwidth describe a device together; one of them is missing")
    if peak_tflops is not None and bandwidth is not None:
        if on is not None:
            raise BadOption("--on names a device, --peak-tflops and --bandwidth another; give one of them")
        return elsewhere(catalogue.hypothetical(peak_tflops, bandwidth), predictor, precision, engine)
    paths = find(folder)
    if on is None:
        return calibrated(_only(paths, folder), predictor, precision, engine)
    named = [path for path in paths if _is_called(path.name.removesuffix(SUFFIX), on)]
    if named:
        return calibrated(_only(named, folder), predictor, precision, engine)
    return elsewhere(catalogue.device(on), predictor, precision, engine)


def _only(paths: Sequence[Path], folder: Path) -> Path:
    if not paths:
        raise BadOption(f"no calibration in {folder}: run fathom calibrate, or name a device by --on (fathom devices)")
    if len(paths) > 1:
        names = ", ".join(path.name.removesuffix(SUFFIX) for path in paths)
        raise BadOption(f"{folder} has several calibrations, choose one by --on: {names}")
    return paths[0]


def _is_called(calibration: str, name: str) -> bool:
    """Whether a name begins that of a calibrated machine, by whole words: an A10 is no A100."""
    words, wanted = _words(calibration), "".join(_words(name))
    if wanted and words[:1] == ["nvidia"] and not wanted.startswith("nvidia"):
        words = words[1:]
    return wanted in ("".join(words[:count]) for count in range(1, len(words) + 1))


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def _best_installed(errors: Sequence[Summary]) -> str:
    """The predictor of unseen calls that was best in the evaluation; the nearest calls where there was none."""
    found = [each for each in errors if each.situation == UNSEEN_WORKLOAD and each.predictor != ROOFLINE]
    usable = [each for each in found if each.predictor not in WITH_EXTRA or has_scikit_learn()]
    return min(usable, key=lambda each: each.mean_error).predictor if usable else NEIGHBOURS


def interval_elsewhere(engine: str, precision: str) -> Interval:
    """That of predictions for other devices, measured on eager steps in fp32."""
    found = shipped().other
    return found if (engine, precision) == (EAGER, "fp32") else replace(found, coverage=None)


def _error(errors: Errors, predictor: str, engine: str, precision: str) -> Interval:
    """As evaluated; else as wide as between machines, with no measured coverage."""
    elsewhere = replace(interval_elsewhere(engine, precision), coverage=None)
    return errors.interval(predictor, UNSEEN_WORKLOAD, OP_BY_OP) or elsewhere


def _errors(path: Path, campaign: Campaign, engine: str, precision: str) -> Errors:
    """On this machine's records; without any those of a machine of its kind, which were measured in fp32."""
    own = own_errors(path, engine)
    if own.summaries or precision != "fp32":
        return own
    return errors_of_its_kind(campaign.gpu, engine)
