"""Change points: where the level of a series of step times changes, told from noise that is correlated.

Optimal partitioning (Jackson et al., 2005): the segmentation with the least squared error plus a penalty for each
level. Steps that resemble the one before wander as if their level changed, so the penalty grows with the long-run
variance of an autoregressive process of order one. Its correlation is estimated within the levels that were found,
and the levels are then sought again, until it no longer grows: estimated around one mean, a true change of level would
itself look like correlation (Chakar et al., Bernoulli 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MATERIAL = 0.02  # levels closer than this count as equal: a CPU's clock varies by as much
MOST_PLACES = 1000  # at which a level may begin; in a longer series they are spaced
EVERY_FIRST = 200  # of its first values each is one
CLIPPED = 4.0  # times the noise, about the median of its neighbours: one slow step is no level of its own
FIRST_CLIPPED = 8.0  # a first step may be one
ROUNDS = 6  # of estimating correlation; most series need two
MOST_CORRELATED = 0.95  # lag-1 correlation assumed at most

Array = NDArray[np.float64]


def changepoints(values: Sequence[float]) -> list[int]:
    """The indices at which a new level begins; only the very first level may be a single value."""
    shortest = max(2, round(len(values) / 20))
    x = _without_outliers(np.asarray(values, dtype=float), shortest)
    correlation, found = 0.0, _segmented(x, shortest, 0.0)
    for _ in range(ROUNDS):
        higher = min(_correlation(x, found), MOST_CORRELATED) if found else 0.0
        if higher <= correlation + 0.01:
            break
        correlation, found = higher, _segmented(x, shortest, higher)
    return found


def _without_outliers(x: Array, shortest: int) -> Array:
    """In units of the noise between neighbours; what is too short for a level stays near the median around it."""
    noise = np.quantile(np.abs(np.diff(x)), 0.8) / (1.2816 * np.sqrt(2))  # a normal's standard deviation
    noise = max(noise, MATERIAL / 4 * abs(np.median(x)), np.finfo(float).tiny)  # a clock that ticks coarsely shows none
    from scipy import ndimage  # takes a third of a second to import

    around = ndimage.median_filter(x, 4 * shortest + 1, mode="mirror")
    bound = np.full(len(x), CLIPPED)
    bound[0] = FIRST_CLIPPED
    return np.asarray((around - np.median(x)) / noise + np.clip((x - around) / noise, -bound, bound))


def _correlation(x: Array, found: list[int]) -> float:
    """Of neighbours within levels, corrected for the mean of each level, which is estimated (Kendall 1954)."""
    products, squares, levels = 0.0, 0.0, 0
    for begin, end in pairwise([0, *found, len(x)]):
        rest = x[begin:end] - x[begin:end].mean()
        products, squares = products + float(rest[1:] @ rest[:-1]), squares + float(rest @ rest)
        levels += end - begin > 1
    raw = products / squares if squares > 0 else 0.0
    return raw + levels * (1 + 3 * raw) / len(x)


def _segmented(x: Array, shortest: int, correlation: float) -> list[int]:
    """The segmentation where neighbours are so correlated."""
    count = len(x)
    penalty = _penalties(count, correlation)
    sums, squares = (np.concatenate([[0.0], np.cumsum(part)]) for part in (x, x * x))
    places = _places(count)
    best = np.full(len(places), np.inf)
    best[0] = 0.0
    came_from = np.zeros(len(places), dtype=int)
    sums_at, squares_at = sums[places], squares[places]
    # places where the level that ends at each may begin: 0 always, so the first level may be of any length
    begins = np.maximum(1, np.searchsorted(places, places - shortest, "right")).tolist()
    for index, end in enumerate(places.tolist()[1:], start=1):
        until = begins[index]
        lengths = end - places[:until]
        error = squares_at[index] - squares_at[:until] - (sums_at[index] - sums_at[:until]) ** 2 / lengths
        total = best[:until] + error + penalty[lengths]
        chosen = int(np.argmin(total))
        best[index], came_from[index] = total[chosen], chosen
    found, index = [], len(places) - 1
    while came_from[index] > 0:
        index = int(came_from[index])
        found.append(int(places[index]))
    return found[::-1] if len(places) > count else _refined([0, *found[::-1], count], places, shortest, sums, squares)


def _penalties(count: int, correlation: float) -> Array:
    """For a level, by its length: as many times as the variance of its mean is that of independent neighbours.

    These differ by less than others do where they are correlated, and a mean of many varies by more.
    """
    independent = 8 + 3 * np.log(count)  # steady noise with a long tail then passes as flat in 19 of 20 series
    lengths = np.arange(1, count + 1)
    short = 2 * correlation * (1 - correlation**lengths) / (lengths * (1 - correlation))
    return np.concatenate([[0.0], independent * (1 + correlation - short) / (1 - correlation) ** 2])


def _places(count: int) -> NDArray[np.int64]:
    """Where levels may begin or end: everywhere, but of a long series only at so many places, so that cost is linear.

    Its first values are all among them, as warm-up is short.
    """
    if count < MOST_PLACES:
        return np.arange(count + 1)
    spaced = np.linspace(EVERY_FIRST, count, MOST_PLACES - EVERY_FIRST).round().astype(np.int64)
    return np.unique(np.concatenate([np.arange(EVERY_FIRST), spaced]))


def _refined(
    bounds: list[int],
    places: NDArray[np.int64],
    shortest: int,
    sums: Array,
    squares: Array,
) -> list[int]:
    """Each change point moved to where between its neighbouring places the squared error is least."""
    for index in range(1, len(bounds) - 1):
        before, here, after = bounds[index - 1 : index + 2]
        at = int(np.searchsorted(places, here))
        least, most = places[at - 1] + 1, places[at + 1] - 1
        least = max(least, before + (shortest if before else 1))
        tried = np.arange(least, max(least, min(most, after - shortest)) + 1)
        left = squares[tried] - squares[before] - (sums[tried] - sums[before]) ** 2 / (tried - before)
        right = squares[after] - squares[tried] - (sums[after] - sums[tried]) ** 2 / (after - tried)
        bounds[index] = int(tried[np.argmin(left + right)])
    return bounds[1:-1]
