"""Series of step times with known medians and known correlation, for tests of intervals."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import signal, special

Array = NDArray[np.float64]


def autoregressive(correlation: float, count: int, series: int, *, seed: int, size: float = 0.02) -> Array:
    """So many stationary AR(1) series of log-normal steps, one a row; their median is 1."""
    noise = np.random.default_rng(seed).standard_normal((series, count + 100))
    filtered = signal.lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], noise, axis=1)
    return np.asarray(np.exp(size * filtered[:, 100:]))


def with_outliers(values: Array, part: float, *, seed: int) -> Array:
    """This part of the steps takes several times as long, at random: the median moves to a known quantile."""
    random = np.random.default_rng(seed)
    slow = random.random(values.shape) < part
    return np.where(slow, values * (2 + random.exponential(2.0, values.shape)), values)


def median_with_outliers(part: float, size: float = 0.02) -> float:
    """Of the above: the quantile of the clean steps that half of all steps lie below."""
    return float(np.exp(size * special.ndtri(0.5 / (1 - part))))
