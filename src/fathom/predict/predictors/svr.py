"""Support vector regression for each class of ops, as the Cookbook's predictor had."""

from __future__ import annotations

from typing import Any

from fathom.predict.predictors.efficiency import Timed
from fathom.predict.predictors.regression import Regression, needs_scikit_learn
from fathom.predict.target import Target

COST, TOLERANCE = 10.0, 0.02  # of the regression: C and epsilon, the latter a relative error of 2 %


def fitted(timed: Timed, target: Target, precision: str = "fp32") -> Regression:
    needs_scikit_learn()
    return Regression("support vector regression", _make, timed, target, precision)


def _make() -> Any:
    from sklearn.svm import SVR

    return SVR(C=COST, epsilon=TOLERANCE)
