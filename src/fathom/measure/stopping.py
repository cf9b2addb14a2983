"""When a series of step times has been measured well enough: the median of this process is known to 1 %."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

PRECISE = 0.01  # half-width of the median's 95 % interval, relative
ERROR = 0.05  # probability that any of the intervals looked at misses the median
FEWEST = 6  # steps: five bound no median


class StoppingRule:
    """Looks at the steps of one process again and again, and says whether their median is known well enough.

    The interval of each look allows for the correlation of steps. Whoever looks often and stops at the first narrow
    interval stops where the noise was underestimated, so the n-th look has ERROR / (n (n + 1)) of the error allowed:
    all looks together have ERROR, however many there are.
    """

    def __init__(self) -> None:
        from fathom.analysis.correlated import median_bounds  # here: SciPy loads before the budget's time begins

        self._bounds = median_bounds
        self._looks = 0

    def half_width(self, values: Sequence[float]) -> float:
        """Half of the interval over the median, corrected for correlation and for the looks so far; one more look."""
        if len(values) < FEWEST:
            return math.inf
        self._looks += 1
        allowed = ERROR / (self._looks * (self._looks + 1))
        low, high = self._bounds(values, 1 - allowed)
        return (high - low) / 2 / statistics.median(values)
