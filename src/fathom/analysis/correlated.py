"""The interval of the median of one process's steps, which are correlated: what it claims holds within this process.

A median lies between two order statistics. How far from the middle they must lie depends on how the number of steps
below the median varies, and correlated steps make it vary more than a binomial does. That variance is estimated twice,
from the signs of the steps about their median, so that no outlier and no shape of noise matters:

- by the lowest cosine frequencies of the signs (Lazarus, Lewis, Stock and Watson, HAR inference, JBES 2018), which
  assumes no kind of correlation, with Student's t for as many frequencies;
- by the signs' lag-1 correlation, as if the steps had a normal copula of order one, corrected for the bias of short
  series (Kendall 1954), with Student's t for the effective number of steps.

The larger of the two counts. Where a series is too short for its correlation, the order statistics would lie outside
it: the interval then extends beyond the fastest and the slowest step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

CONFIDENCE = 0.95  # of intervals
SHORT = 6  # steps below which one frequency is taken: no order statistics of five values bound a median at 95 %
FREQUENCIES = 0.35  # times the number of steps to the power 2/3; fewer cover better and are wider
LONG = 2000  # steps from which cosines are not kept: a table of them would take gigabytes
MOST_CORRELATED = 0.97  # lag-1 correlation assumed at most; beyond it nothing can be told from a finite series
CLOCK_S = 1e-9  # values below a clock's resolution have no logarithm that means anything

Array = NDArray[np.float64]


def median_bounds(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval that holds the median of the process which these steps are a part of; one step bounds nothing."""
    if len(values) < 2:
        return 0.0, float("inf")
    x = np.asarray(values, dtype=float)
    reach, ordered = _reach(x, confidence), np.sort(x)
    return _quantile(ordered, 0.5 - reach), _quantile(ordered, 0.5 + reach)


def inflation(residuals: Sequence[float]) -> float:
    """How many steps tell as much of a trend as one independent step; of the steps less their trend, at least 1."""
    signs = _signs(np.asarray(residuals, dtype=float))
    return max(_spectral(signs), _first_order(signs, trend=True))


def _reach(values: Array, confidence: float) -> float:
    """Half of the interval's width, as a part of all steps: 0.5 reaches from the fastest step to the slowest."""
    signs, count = _signs(values), len(values)
    first_order = _first_order(signs)
    spectral_t = special.stdtrit(_frequencies(count), (1 + confidence) / 2)
    effective_t = special.stdtrit(max(1.0, count / first_order - 1), (1 + confidence) / 2)
    wide = max(spectral_t * np.sqrt(_spectral(signs)), effective_t * np.sqrt(first_order))
    return float(wide / np.sqrt(count) / 2)


def _signs(values: Array) -> Array:
    """+1 above the median and -1 below it, less their mean."""
    signs = np.sign(values - np.median(values))
    return np.asarray(signs - signs.mean())


def _frequencies(count: int) -> int:
    return 1 if count < SHORT else max(2, int(FREQUENCIES * count ** (2 / 3)))


def _spectral(signs: Array) -> float:
    """The long-run variance of the signs, over that of independent ones."""
    if len(signs) <= LONG:
        return float(np.mean(np.square(_cosines(len(signs)) @ signs)))
    lowest = fft.dct(signs, norm="ortho")[1 : _frequencies(len(signs)) + 1]  # the same, and its cost is not quadratic
    return float(np.mean(np.square(lowest)))


@lru_cache(maxsize=64)
def _cosines(count: int) -> Array:
    frequencies = np.arange(1, _frequencies(count) + 1)
    return np.asarray(np.sqrt(2 / count) * np.cos(np.pi * np.outer(frequencies, np.arange(count) + 0.5) / count))


def _first_order(signs: Array, *, trend: bool = False) -> float:
    """The same, from the lag-1 correlation alone; negative correlation counts as none.

    A mean or a trend that was estimated from the same series and taken out makes the correlation look smaller.
    """
    count, squares = len(signs), float(signs @ signs)
    if squares == 0:
        return 1.0
    found = float(signs[1:] @ signs[:-1]) / squares
    bias = (2 + 4 * found if trend else 1 + 3 * found) / count
    unbiased = min(max(found + bias, 0.0), 1.0)
    normal = min(float(np.sin(np.pi / 2 * unbiased)), MOST_CORRELATED)  # of normal values with such signs
    lags = np.arange(1, count)
    return float(1 + 2 * np.sum((1 - lags / count) * 2 / np.pi * np.arcsin(normal**lags)))


def _quantile(ordered: Array, part: float) -> float:
    """The order statistic on the far side of this part; beyond the ends, in proportion on a log scale."""
    count, middle = len(ordered), max(float(np.median(ordered)), CLOCK_S)
    if part < 0 or part > 1:
        end = max(float(ordered[0] if part < 0 else ordered[-1]), CLOCK_S)
        return float(middle * (end / middle) ** (abs(part - 0.5) / 0.5))
    position = part * count - 0.5
    outward = np.floor(position) if part < 0.5 else np.ceil(position)
    return float(ordered[int(min(max(outward, 0), count - 1))])
