"""Calibrated machines that come with Fathom: what classes of ops reach of their ceilings, and how wrong that is.

A prediction for a device that nobody here can run on takes the nearest of these: the same efficiencies under other
ceilings. reference.json is written from records by `python -m fathom.predict.reference FOLDER ...`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec

from fathom.core import store
from fathom.core.errors import BadOption, UnknownName
from fathom.core.record import Record
from fathom.predict import catalogue
from fathom.predict.campaign import Campaign
from fathom.predict.estimate import Interval, estimate
from fathom.predict.evaluation import Score, evaluate, summaries, timed_of, without_workload
from fathom.predict.from_records import campaign_of, case_of, usable
from fathom.predict.other_batches import Case
from fathom.predict.predictors.efficiency import ClassFit, Efficiency
from fathom.predict.predictors.names import EFFICIENCY
from fathom.predict.target import HostCosts, Target

FILE = "reference.json"
TRANSFER = "another machine"


@dataclass(frozen=True, kw_only=True)
class Reference:
    machine: str
    gpu: bool
    flop_per_s: dict[str, float]
    bytes_per_s: float
    host: HostCosts
    fits: dict[str, ClassFit]
    own: Interval  # of a workload that it was not fitted to, on the machine itself

    @property
    def predictor(self) -> Efficiency:
        return Efficiency(self.fits, set(self.flop_per_s))

    @property
    def target(self) -> Target:
        return Target.measured_as(self, self.host)


@dataclass(frozen=True, kw_only=True)
class References:
    machines: list[Reference]
    other: Interval  # of the steps of one of them, predicted from another


def reference_of(campaign: Campaign, own: Interval) -> Reference:
    target = campaign.target()
    return Reference(
        machine=campaign.machine,
        gpu=campaign.gpu,
        flop_per_s=campaign.flop_per_s,
        bytes_per_s=campaign.bytes_per_s,
        host=target.host,
        fits=Efficiency.fitted(timed_of(campaign.calls), target).fits,
        own=own,
    )


@cache
def shipped() -> References:
    text = (files("fathom") / "predict" / FILE).read_bytes()
    return msgspec.json.decode(text, type=References)


def nearest(target: Target, known: Sequence[Reference]) -> Reference | None:
    """Of the same kind, the one whose bandwidth is nearest; of the other kind where there is none."""
    same = [each for each in known if each.gpu == target.gpu] or list(known)
    return min(same, key=lambda each: abs(math.log(each.bytes_per_s / target.bytes_per_s)), default=None)


def as_reached(target: Target, reference: Reference) -> Target:
    """The target's peaks reduced to what the reference machine reaches of its own; its host's costs.

    A measured target, or a reference that is in no catalogue, leaves the ceilings as they are.
    """
    try:
        peaks = Target.of(catalogue.device(reference.machine))
    except (UnknownName, BadOption):  # in no catalogue, or without its peaks
        peaks = None
    if target.measured or peaks is None:
        return replace(target, host=reference.host)
    shares = {
        name: rate / peaks.flop_per_s[name] for name, rate in reference.flop_per_s.items() if name in peaks.flop_per_s
    }
    usual = min(1.0, sum(shares.values()) / len(shares)) if shares else 1.0
    return replace(
        target,
        flop_per_s={name: rate * min(1.0, shares.get(name, usual)) for name, rate in target.flop_per_s.items()},
        bytes_per_s=target.bytes_per_s * min(1.0, reference.bytes_per_s / peaks.bytes_per_s),
        host=reference.host,
    )


def made_from(groups: Sequence[Sequence[Record]]) -> References:
    """One machine for each group of records; errors are measured on them."""
    campaigns = [campaign_of(group) for group in groups]
    cases = [[case_of(each) for each in usable(group)] for group in groups]
    machines = []
    for campaign, steps in zip(campaigns, cases, strict=True):
        scored = summaries(evaluate(campaign, steps, [EFFICIENCY]))
        machines.append(reference_of(campaign, scored[0].interval))
    scores = [
        _transferred(case, without_workload(campaign, [each for each in steps if each.step.workload == name]), target)
        for campaign in campaigns
        for target, steps in zip(machines, cases, strict=True)
        if target.machine != campaign.machine
        for case in steps
        for name in [case.step.workload]
    ]
    return References(machines=machines, other=summaries(scores)[0].interval if scores else Interval())


def _transferred(case: Case, source: Campaign, target: Reference) -> Score:
    """With the ceilings of the target, and all else from the source, which has nothing of the workload."""
    step, ceilings = case.step, source.target()
    predictor = Efficiency.fitted(timed_of(source.calls), ceilings)
    found = estimate(step, replace(target.target, host=ceilings.host), predictor=predictor).step_s
    return Score(step.workload, step.phase, step.batch, TRANSFER, EFFICIENCY, found, case.measured_s)


def main(folders: Sequence[str]) -> None:
    read = [store.read([Path(folder)], lambda problem: print(problem, file=sys.stderr)) for folder in folders]
    groups = [[each for each in records if (each.gpu is not None) == _has_gpu(records)] for records in read]
    found = made_from(groups)
    path = Path(__file__).with_name(FILE)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def _has_gpu(records: Sequence[Record]) -> bool:
    return any(each.gpu is not None for each in records)


if __name__ == "__main__":
    main(sys.argv[1:])
