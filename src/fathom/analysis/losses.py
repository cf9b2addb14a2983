"""What the losses of a run show: whether they fall, rise, or do neither beyond the scatter from batch to batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fathom.analysis.correlated import inflation
from fathom.analysis.statistics import ROUNDING, widened

Trend = Literal["falls", "no significant trend", "rises", "too few steps"]

FALLS: Trend = "falls"
NO_TREND: Trend = "no significant trend"
RISES: Trend = "rises"
TOO_FEW: Trend = "too few steps"
SIGNIFICANT = 0.05  # p-value of Kendall's rank correlation with the step number, two-sided
FEWEST = 5  # steps: of four, no order has a p-value below 0.08


def trend(losses: Sequence[float]) -> Trend:
    """By ranks, so that one batch with a huge loss is no trend. Losses that are all equal have none.

    Losses that follow one another wander more than independent ones do: corrected as drift() is (statistics.py).
    """
    if len(losses) < FEWEST:
        return TOO_FEW
    from scipy.stats import kendalltau  # takes a second to import

    found = kendalltau(range(len(losses)), losses)
    if math.isnan(found.statistic) or _corrected(float(found.pvalue), losses) >= SIGNIFICANT:
        return NO_TREND
    return FALLS if found.statistic < 0 else RISES


def _corrected(p_value: float, losses: Sequence[float]) -> float:
    """By the inflation of the variance that ranks have once a line is taken out; none where a line leaves nothing.

    Of ranks: about a line of its values, a loss that falls fast at first and slowly later looks like one that wanders.
    """
    if not np.isfinite(losses).all():
        return p_value
    from scipy.stats import rankdata

    steps, ranks = np.arange(len(losses)), rankdata(losses)
    residuals = ranks - np.polyval(np.polyfit(steps, ranks, 1), steps)
    if float(np.abs(residuals).max()) <= ROUNDING * len(losses):
        return p_value
    return widened(p_value, math.sqrt(inflation(residuals.tolist())))
