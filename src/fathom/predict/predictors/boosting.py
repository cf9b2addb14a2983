"""Gradient boosting of trees for each class of ops, on the same features."""

from __future__ import annotations

from typing import Any

from fathom.predict.predictors.efficiency import Timed
from fathom.predict.predictors.regression import Regression, needs_scikit_learn
from fathom.predict.target import Target

ROUNDS, RATE, LEAF = 100, 0.1, 4


def fitted(timed: Timed, target: Target, precision: str = "fp32") -> Regression:
    needs_scikit_learn()
    return Regression("gradient boosting", _make, timed, target, precision)


def _make() -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(max_iter=ROUNDS, learning_rate=RATE, min_samples_leaf=LEAF, random_state=0)
