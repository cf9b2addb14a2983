"""Joules of op classes and layers: a run's measured energy shared out over its op rows by a fitted power model.

    energy of a step = static power x time + sum over classes of (joules/FLOP x FLOP + joules/byte x bytes)

No meter sees a single op. The coefficients are fitted over all metered runs of a machine by non-negative least squares
of the relative error, and the shares of a run are scaled to its measured total. How far the model is off on a workload
that it was not fitted on is the uncertainty. How finely classes are told apart is chosen by that error, too.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from fathom.analysis.selection import outside, plain_scale
from fathom.core.formatting import count
from fathom.core.record import OpRow, Profile

Key = TypeVar("Key", bound=Hashable)
LEAST_RUNS, LEAST_WORKLOADS = 6, 3  # to fit on
OUTSIDE = "outside ops"
ROUNDING = 1e-9  # of a step: what sums of its rows may differ by
STATIC = "static power"
BETTER = 0.9  # the left-out error of a finer model, of that of a coarser one, for it to be preferred
HEAVY = ("B", "D")  # matrix operations and convolutions: their FLOP have units of their own
# how finely classes are told apart, from the coarsest: op class -> the name of its terms; None has no dynamic terms
GRAINS: dict[str, Callable[[str], str | None]] = {
    "time alone": lambda group: None,
    "all ops alike": lambda group: "all ops",
    "matrix products and convolutions apart": lambda group: "products" if group in HEAVY else "other ops",
    "every class": lambda group: f"class {group}",
}


@dataclass(frozen=True)
class MeteredRun:
    """The energy of a step of one run, and the profile of the same work."""

    workload: str
    name: str  # with phase and choices, as tables show it
    step_j: float
    step_s: float
    profile: Profile

    @cached_property
    def rows(self) -> list[tuple[OpRow, float]]:
        """Op rows with their seconds of the metered step: with what is outside ops they add up to it."""
        scale = self._scale * plain_scale(self.profile)
        return [(row, self.profile.seconds(row) * scale) for row in self.profile.rows]

    @property
    def outside_s(self) -> float:
        left = self.step_s - sum(seconds for _, seconds in self.rows)
        return left if left > ROUNDING * self.step_s else 0.0

    @property
    def _scale(self) -> float:
        """The profiled process may have been a little faster or slower than the metered one."""
        plain_s = self.profile.op_s * plain_scale(self.profile) + outside(self.profile)
        return self.step_s / plain_s if plain_s else 0.0

    @cached_property
    def work(self) -> dict[str, tuple[float, float]]:
        """Op class -> FLOP and bytes of a step; those that are not known count as none."""
        classes = dict.fromkeys(row.group for row in self.profile.rows)
        return {
            group: (
                sum(row.flop or 0.0 for row in self.profile.rows if row.group == group),
                sum(row.bytes or 0.0 for row in self.profile.rows if row.group == group),
            )
            for group in classes
        }

    def terms(self, grain: str) -> dict[str, float]:
        """What the coefficients of a model are multiplied by: seconds, and FLOP and bytes by class."""
        found: dict[str, float] = defaultdict(float, {STATIC: self.step_s})
        for group, (flop, moved) in self.work.items():
            for name, amount in _dynamic(group, flop, moved, grain):
                found[name] += amount
        return dict(found)


@dataclass(frozen=True)
class Share:
    """Joules per step of some rows, and what they are from the least to the most where a workload is left out."""

    joules: float
    low: float
    high: float


@dataclass(frozen=True)
class EnergyModel:
    """Coefficients by term: watts for static power, joules per FLOP and per byte for the rest."""

    grain: str
    coefficients: dict[str, float]
    left_out: dict[str, dict[str, float]]  # workload -> the coefficients without its runs
    errors: dict[str, float]  # run -> predicted over measured energy, less 1, by a model that never saw its workload

    @property
    def static_w(self) -> float:
        return self.coefficients.get(STATIC, 0.0)

    @property
    def error(self) -> float:
        """The median over runs that were left out, as a part of the measured energy."""
        return statistics.median(abs(error) for error in self.errors.values())

    @property
    def worst(self) -> tuple[str, float]:
        name = max(self.errors, key=lambda run: abs(self.errors[run]))
        return name, self.errors[name]

    def shares(self, run: MeteredRun, key: Callable[[OpRow], Key]) -> dict[Key | str, Share]:
        """The measured energy of a step by what rows have in common, largest first; with OUTSIDE it adds up to it."""
        whole = _shared(run, key, self.grain, self.coefficients)
        others = [_shared(run, key, self.grain, without) for without in self.left_out.values()]
        found = {
            name: Share(
                joules,
                min([joules, *(other[name] for other in others)]),
                max([joules, *(other[name] for other in others)]),
            )
            for name, joules in whole.items()
        }
        return dict(sorted(found.items(), key=lambda item: -item[1].joules))


def refusal(runs: Sequence[MeteredRun]) -> str | None:
    """Why there is nothing to fit on; None where there is."""
    workloads = {run.workload for run in runs}
    if len(runs) < LEAST_RUNS or len(workloads) < LEAST_WORKLOADS:
        return (
            f"{count(len(runs), 'metered and profiled run')} of {count(len(workloads), 'workload')}; an energy model "
            f"needs {LEAST_RUNS} runs, of at least {LEAST_WORKLOADS} workloads"
        )
    return None


def fit(runs: Sequence[MeteredRun]) -> EnergyModel:
    """The model that predicts best what it was not fitted on; where it hardly matters, the coarser one.

    The errors are those of a left-out workload that had no part in this choice either.
    """
    assert refusal(runs) is None
    grain = _chosen(runs)
    errors, left_out = {}, {}
    for workload in dict.fromkeys(run.workload for run in runs):
        rest = [run for run in runs if run.workload != workload]
        left_out[workload] = _fitted(rest, grain)
        blind = _chosen(rest)
        coefficients = _fitted(rest, blind)
        for run in runs:
            if run.workload == workload:
                errors[run.name] = _predicted(run, blind, coefficients) / run.step_j - 1
    return EnergyModel(grain, _fitted(runs, grain), left_out, errors)


def _chosen(runs: Sequence[MeteredRun]) -> str:
    best, least = "", float("inf")
    for grain in GRAINS:
        error = _left_out_error(runs, grain)
        if error < BETTER * least:
            best, least = grain, error
    return best


def _left_out_error(runs: Sequence[MeteredRun], grain: str) -> float:
    """The root mean square relative error over workloads, each predicted from the others."""
    squares = []
    for workload in {run.workload for run in runs}:
        coefficients = _fitted([run for run in runs if run.workload != workload], grain)
        own = [run for run in runs if run.workload == workload]
        squares += [(_predicted(run, grain, coefficients) / run.step_j - 1) ** 2 for run in own]
    return float(np.sqrt(np.mean(squares)))


def _fitted(runs: Sequence[MeteredRun], grain: str) -> dict[str, float]:
    """Non-negative least squares of the relative error; columns are scaled, as FLOP and seconds differ by 1e12."""
    found = [run.terms(grain) for run in runs]
    names = list(dict.fromkeys(name for terms in found for name in terms))
    matrix = np.array([[terms.get(name, 0.0) for name in names] for terms in found])
    matrix /= np.array([[run.step_j] for run in runs])
    size = matrix.max(axis=0)
    used = [index for index in range(len(names)) if size[index] > 0]
    from scipy.optimize import nnls  # takes a third of a second to import

    solution, _ = nnls(matrix[:, used] / size[used], np.ones(len(runs)))
    return {names[index]: float(value / size[index]) for index, value in zip(used, solution, strict=True)}


def _predicted(run: MeteredRun, grain: str, coefficients: dict[str, float]) -> float:
    return sum(coefficients.get(name, 0.0) * amount for name, amount in run.terms(grain).items())


def _shared(
    run: MeteredRun, key: Callable[[OpRow], Key], grain: str, coefficients: dict[str, float]
) -> dict[Key | str, float]:
    """Joules by key, scaled to the measured total; by time alone where the model gives nothing any energy."""
    static = coefficients.get(STATIC, 0.0)
    found: dict[Key | str, float] = defaultdict(float, {OUTSIDE: static * run.outside_s})
    for row, seconds in run.rows:
        terms = _dynamic(row.group, row.flop or 0.0, row.bytes or 0.0, grain)
        dynamic = sum(coefficients.get(name, 0.0) * amount for name, amount in terms)
        found[key(row)] += static * seconds + dynamic
    total = sum(found.values())
    if not total:
        return _shared(run, key, grain, {STATIC: 1.0})
    return {name: joules * run.step_j / total for name, joules in found.items()}


def _dynamic(group: str, flop: float, moved: float, grain: str) -> list[tuple[str, float]]:
    name = GRAINS[grain](group)
    return [] if name is None else [(f"FLOP of {name}", flop), (f"bytes of {name}", moved)]
