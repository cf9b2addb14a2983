"""When a series of step times has been measured well enough."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def half_width(values: Sequence[float]) -> float:
    """Half of the median's 95 % interval over the median, by order statistics: no shape of noise is assumed."""
    if len(values) < 6:
        return math.inf  # fewer values cannot bound a median at 95 %
    ordered = sorted(values)
    count = len(ordered)
    reach = 0.98 * math.sqrt(count)  # 1.96 standard deviations of a binomial with p = 1/2
    low = ordered[max(0, math.floor(count / 2 - reach))]
    high = ordered[min(count - 1, math.ceil(count / 2 + reach))]
    return (high - low) / 2 / statistics.median(ordered)
