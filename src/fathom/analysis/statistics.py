"""Statistics of a series of times: where warm-up ends, whether it drifts, and its median with an interval.

The method follows Barrett et al., Virtual Machine Warmup Blows Hot and Cold (OOPSLA 2017): change points cut the series
into segments, which are compared with the last one. The labels are not theirs: "flat" and "warm-up" mean the same,
"slowing" is close to their "slowdown", and "unsteady" also covers levels that recur, beside their "no steady state".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Label = Literal["flat", "warm-up", "slowing", "unsteady"]

FEWEST = 6  # values below which there is no label: no trend in five values is significant
MATERIAL = 0.02  # levels closer than this count as equal: a CPU's clock varies by as much
SIGNIFICANT = 0.01
SETTLED = 0.75  # a change point after this part of the series leaves no steady state
CONFIDENCE = 0.95  # of intervals
RESAMPLES = 1000  # of a bootstrap
LEAST_LAUNCHES = 3  # below which no variation between launches is stated


@dataclass(frozen=True)
class Steady:
    """Where the steady state of a series begins, and how it gets there; no label for too short a series."""

    label: Label | None
    start: int


@dataclass(frozen=True)
class Drift:
    """A trend: p-value of the Mann-Kendall test, and how far the last third lies from the first, as a fraction."""

    p_value: float
    change: float

    @property
    def significant(self) -> bool:
        """Statistically, and large enough to matter."""
        return self.p_value < SIGNIFICANT and abs(self.change) > MATERIAL


@dataclass(frozen=True)
class Interval:
    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Distribution:
    """The launches of one configuration, one value each, outliers included."""

    count: int
    mean: float
    deviation: float | None  # standard deviation; None for a single launch
    p5: float
    median: float
    p95: float
    low: float | None  # the median's 95 % interval over launches; None for fewer than LEAST_LAUNCHES
    high: float | None

    @property
    def variation(self) -> float | None:
        """Standard deviation over mean."""
        return None if self.deviation is None or self.mean <= 0 else self.deviation / self.mean


def steady_state(values: Sequence[float]) -> Steady:
    """Flat, warm-up (slower at first), slowing (faster at first), or unsteady (no last level, or levels that recur)."""
    if len(values) < FEWEST:
        return Steady(None, 0)
    bounds = [0, *changepoints(values), len(values)]
    levels = [float(np.median(values[begin:end])) for begin, end in pairwise(bounds)]
    ratios = [level / levels[-1] - 1 for level in levels] if levels[-1] > 0 else [0.0] * len(levels)
    first_settled = len(ratios)
    while first_settled > 0 and abs(ratios[first_settled - 1]) <= MATERIAL:
        first_settled -= 1
    start, before = bounds[first_settled], ratios[:first_settled]
    if not before:
        return Steady("flat", 0)
    if start > SETTLED * len(values):
        return Steady("unsteady", start)
    if min(before) < -MATERIAL:
        return Steady("slowing", start)
    return Steady("warm-up" if min(before) > MATERIAL else "unsteady", start)


def changepoints(values: Sequence[float]) -> list[int]:
    """The indices at which a new level begins: the segmentation with the least squared error plus penalty.

    Optimal partitioning (Jackson et al., 2005). Outliers are clipped first, so that one slow step is no level of its
    own; only the very first level may be a single value, since a first step often is.
    """
    x = _scaled(np.asarray(values, dtype=float))
    count = len(x)
    shortest = max(2, round(count / 20))
    penalty = 8 + 3 * np.log(count)  # steady noise with a long tail then passes as flat in 19 of 20 series
    sums, squares = (np.concatenate([[0.0], np.cumsum(part)]) for part in (x, x * x))
    best = np.full(count + 1, np.inf)
    best[0] = -penalty
    came_from = np.zeros(count + 1, dtype=int)
    for end in range(1, count + 1):
        begins = np.arange(max(1, end - shortest + 1))  # 0 always, so the first level may be of any length
        error = squares[end] - squares[begins] - (sums[end] - sums[begins]) ** 2 / (end - begins)
        total = best[begins] + error + penalty
        chosen = int(np.argmin(total))
        best[end], came_from[end] = total[chosen], begins[chosen]
    found, end = [], count
    while came_from[end] > 0:
        end = int(came_from[end])
        found.append(end)
    return found[::-1]


def drift(values: Sequence[float]) -> Drift | None:
    """The trend of a series: Kendall's tau against time, which is the Mann-Kendall test."""
    if len(values) < FEWEST:
        return None
    p_value = float(stats.kendalltau(np.arange(len(values)), values).pvalue)
    third = len(values) // 3
    first, last, middle = np.median(values[:third]), np.median(values[-third:]), np.median(values)
    if np.isnan(p_value) or middle <= 0:  # a constant series has no tau
        return Drift(1.0, 0.0)
    return Drift(p_value, float((last - first) / middle))


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Standard deviation over mean; None for a single value."""
    if len(values) < 2 or np.mean(values) <= 0:
        return None
    return float(np.std(values, ddof=1) / np.mean(values))


def median_interval(launches: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """The median of the launches' medians, with a bootstrap interval that resamples launches first, then steps.

    Each launch is one process; a single one gives the interval of its own steps.
    """
    generator = np.random.default_rng(seed)
    medians = np.stack([resampled_medians(np.asarray(steps), RESAMPLES, generator) for steps in launches])
    drawn = generator.integers(len(launches), size=(len(launches), RESAMPLES))
    copies = generator.integers(RESAMPLES, size=(len(launches), RESAMPLES))  # a launch drawn twice differs in its steps
    resampled = np.median(medians[drawn, copies], axis=0)
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(np.median([np.median(steps) for steps in launches])), float(low), float(high))


def distribution(launches: Sequence[float]) -> Distribution:
    """Of one value per launch; resampling launches is then resampling values."""
    interval = median_interval([launches]) if len(launches) >= LEAST_LAUNCHES else None
    p5, p95 = np.quantile(launches, [0.05, 0.95])
    return Distribution(
        count=len(launches),
        mean=float(np.mean(launches)),
        deviation=float(np.std(launches, ddof=1)) if len(launches) > 1 else None,
        p5=float(p5),
        median=float(np.median(launches)),
        p95=float(p95),
        low=interval.low if interval else None,
        high=interval.high if interval else None,
    )


def resampled_medians(
    steps: NDArray[np.float64], resamples: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    chosen = generator.integers(len(steps), size=(resamples, len(steps)))
    return np.asarray(np.median(steps[chosen], axis=1))


def _scaled(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """In units of the noise between neighbours, outliers clipped to four of them, a slow first step to eight."""
    middle = np.median(x)
    noise = np.quantile(np.abs(np.diff(x)), 0.8) / (1.2816 * np.sqrt(2))  # a normal's standard deviation
    noise = max(noise, MATERIAL / 4 * abs(middle), np.finfo(float).tiny)  # a clock that ticks coarsely shows none
    bound = np.full(len(x), 4.0)
    bound[0] = 8.0
    return np.asarray(np.clip((x - middle) / noise, -bound, bound))
