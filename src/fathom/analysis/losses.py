"""What the losses of a run show: whether they fall, rise, or do neither beyond the scatter from batch to batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from scipy import stats

Trend = Literal["falls", "no significant trend", "rises", "too few steps"]

FALLS: Trend = "falls"
NO_TREND: Trend = "no significant trend"
RISES: Trend = "rises"
TOO_FEW: Trend = "too few steps"
SIGNIFICANT = 0.05  # p-value of Kendall's rank correlation with the step number, two-sided
FEWEST = 5  # steps: of four, no order has a p-value below 0.08


def trend(losses: Sequence[float]) -> Trend:
    """By ranks, so that one batch with a huge loss is no trend. Losses that are all equal have none."""
    if len(losses) < FEWEST:
        return TOO_FEW
    found = stats.kendalltau(range(len(losses)), losses)
    if math.isnan(found.statistic) or found.pvalue >= SIGNIFICANT:
        return NO_TREND
    return FALLS if found.statistic < 0 else RISES
