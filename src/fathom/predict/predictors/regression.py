"""Regressions of op times: for each class of ops, the logarithm of the time relative to the roofline.

What is learnt is how far a call is from its roof, which varies far less than its time. scikit-learn is needed, which is
an extra; svr.py and boosting.py say which regression.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fathom.core.errors import BadOption
from fathom.predict.features import Floats, features, group_of
from fathom.predict.predictors.efficiency import Efficiency, Timed, bare_step
from fathom.predict.predictors.roofline import roof_s
from fathom.predict.recurrent import with_backward
from fathom.predict.target import Target
from fathom.trace.step_work import OpWork, StepWork

LEAST_S = 1e-7
ENOUGH = 20  # calls, to fit a class; with fewer the class efficiency holds
BASE_QUANTILE = 0.1  # of the times of all calls: what a call without work takes, about
SPREAD = 1.0  # e-folds that a prediction may go beyond the times it was fitted to, relative to the roofline
NAMED = 2.0  # weight of an op's name beside its sizes, where distances count

Make = Callable[[], Any]  # a regressor of scikit-learn


@dataclass(frozen=True)
class _Class:
    names: dict[str, int]  # of the ops that it was fitted to
    mean: Floats
    scale: Floats
    low: float
    high: float
    model: Any

    def predict(self, rows: Floats) -> Floats:
        found: Floats = np.clip(self.model.predict((rows - self.mean) / self.scale), self.low, self.high)
        return found


class Regression:
    """Fitted once; then seconds() for any step on the device that the times are of."""

    def __init__(self, name: str, make: Make, timed: Timed, target: Target, precision: str = "fp32") -> None:
        self.name, self._target = name, target
        self._fallback = Efficiency.fitted(timed, target, precision)
        step = bare_step(precision)
        self._base_s = float(np.quantile([max(seconds, LEAST_S) for _, seconds in timed], BASE_QUANTILE))
        groups: dict[str, list[tuple[OpWork, float, float]]] = defaultdict(list)
        for op, seconds in timed:
            groups[group_of(op)].append((op, roof_s(op, step, target), max(seconds, LEAST_S)))
        self._classes = {group: self._fitted(make(), calls) for group, calls in groups.items() if len(calls) >= ENOUGH}

    def _fitted(self, model: Any, calls: Sequence[tuple[OpWork, float, float]]) -> _Class:
        names = {name: at for at, name in enumerate(sorted({_name(op) for op, _, _ in calls}))}
        rows = _rows([(op, roof) for op, roof, _ in calls], names)
        values = np.array([math.log(seconds / (roof + self._base_s)) for _, roof, seconds in calls])
        mean, scale = rows.mean(axis=0), rows.std(axis=0)
        scale[scale < 1e-6] = 1.0
        model.fit((rows - mean) / scale, values)
        return _Class(names, mean, scale, float(values.min()) - SPREAD, float(values.max()) + SPREAD, model)

    def seconds(self, step: StepWork, target: Target) -> list[float]:
        found = list(self._fallback.seconds(step, target))
        roofs = [roof_s(op, step, target) for op in step.ops]
        members: dict[str, list[int]] = defaultdict(list)
        for at, op in enumerate(step.ops):
            members[group_of(op)].append(at)
        for group, indices in members.items():
            fitted = self._classes.get(group)
            if fitted is None:
                continue
            rows = _rows([(step.ops[at], roofs[at]) for at in indices], fitted.names)
            for at, value in zip(indices, fitted.predict(rows), strict=True):
                found[at] = math.exp(value) * (roofs[at] + self._base_s)
        return with_backward(step, found)


def _rows(calls: Sequence[tuple[OpWork, float]], names: dict[str, int]) -> Floats:
    rows = np.zeros((len(calls), len(features(*calls[0])) + len(names)))
    for row, (op, roof) in zip(rows, calls, strict=True):
        numbers = features(op, roof)
        row[: len(numbers)] = numbers
        if _name(op) in names:
            row[len(numbers) + names[_name(op)]] = NAMED
    return rows


def _name(op: OpWork) -> str:
    return op.op.removesuffix("_")


def has_scikit_learn() -> bool:
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return False
    return True


def needs_scikit_learn() -> None:
    if not has_scikit_learn():
        raise BadOption("this predictor needs scikit-learn: pip install 'fathom[predict]'")
