"""The ratio of B's step time to A's, with an interval, and the noise: the ratio that equal launches come to by chance.

Times are taken as logarithms, so that B over A and A over B agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fathom.analysis.correlated import CONFIDENCE, median_bounds
from fathom.analysis.quantiles import normal, student
from fathom.analysis.statistics import launch_bounds

Launches = Sequence[Sequence[float]]  # one process each, and its steps
Array = NDArray[np.float64]

CHANCE = 0.005  # how often equal launches may differ by more than the noise: a table has some sixteen lines
RESAMPLES = 1000  # of a bootstrap
LEAST_CHANGE = 1e-4  # that any number of launches could show
FEW = 5  # launches below which their scatter is not estimated
LARGEST = 50.0  # of a logarithm: more is infinite
FLOOR = 0.15  # assumed difference of two equal launches where it is not estimated: two studies differed by 0.11


@dataclass(frozen=True)
class Ratio:
    """B over A: the ratio, its 95 % interval, and the noise, a fraction that equal launches rarely exceed."""

    value: float
    low: float
    high: float
    noise: float

    @property
    def significant(self) -> bool:
        """The interval excludes 1, and the ratio is beyond the noise."""
        return not self.low <= 1 <= self.high and abs(math.log(self.value)) > math.log1p(self.noise)

    @property
    def detectable(self) -> float:
        """The smallest change that launches as many and as noisy as these could have shown, as a fraction.

        A true change of this size is found in about half of such comparisons. Infinite where a side is a single step,
        which bounds nothing.
        """
        if not self.low > 0:
            return math.inf
        return max(self.noise, self.value / self.low - 1, self.high / self.value - 1)


def ratio(a: Launches, b: Launches, *, paired: bool = False, seed: int = 0) -> Ratio:
    """The medians of the launches' medians, B over A, with an interval over launches: each counts as one value.

    Paired, the n-th launches of both were interleaved: the ratio of each pair is taken, from which a drift of the
    machine cancels.
    """
    generator = np.random.default_rng(seed)
    middle_a, middle_b = (np.log([np.median(steps) for steps in side]) for side in (a, b))
    middle = float(np.median(middle_b - middle_a) if paired else np.median(middle_b) - np.median(middle_a))
    if min(len(a), len(b)) == 1:
        low, high = _assumed(middle, a, b)
    elif paired:
        low, high = np.log(launch_bounds(np.exp(middle_b - middle_a).tolist()))
    elif min(len(a), len(b)) < FEW:
        low, high = _welch(middle_a, middle_b)
    else:
        resampled = _median_of_drawn(middle_b, generator) - _median_of_drawn(middle_a, generator)
        low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    noise = _noise(middle_a, middle_b, paired, generator)
    return Ratio(math.exp(middle), math.exp(low), math.exp(high), noise)


def launches_needed(found: Ratio, launches: int, change: float) -> int | None:
    """How many of each would show such a change; None where these do, or where none would: below a ten-thousandth.

    Noise falls with the root of their number.
    """
    if found.detectable <= change or change < LEAST_CHANGE:
        return None
    return 2 * FEW if launches < FEW else math.ceil(launches * (found.detectable / change) ** 2)


def _noise(a: Array, b: Array, paired: bool, generator: np.random.Generator) -> float:
    """A against A and B against B: the ratio that launches drawn from either's own scatter come to.

    The scatter is the distance of each launch from the median of its side (paired: of each pair from the median pair).
    Few launches estimate it imprecisely, so the bound is widened as Student's t is for as few, and below FEW it is no
    less than what is assumed.
    """
    if paired:
        lots = [b - a]
        chance = _drawn_scatter(b - a, generator)
    else:
        lots = [a, b]
        chance = _drawn_scatter(b, generator) - _drawn_scatter(a, generator)
    bound = float(np.quantile(np.abs(chance), CONFIDENCE))
    fewest, launches = min(len(a), len(b)), sum(map(len, lots))
    assumed = FLOOR / math.sqrt(fewest) if fewest < FEW else 0.0
    free = launches - len(lots)
    if fewest == 1:
        return max(assumed, math.expm1(bound))
    widened = student(1 - CHANCE / 2, free) / normal((1 + CONFIDENCE) / 2) * math.sqrt(launches / free)
    return max(assumed, math.expm1(min(bound * widened, LARGEST)))


def _assumed(middle: float, a: Launches, b: Launches) -> tuple[float, float]:
    """Of one launch on a side: what its steps leave open, and what two equal launches are assumed to differ by."""
    down, up = [math.log1p(FLOOR)], [math.log1p(FLOOR)]
    for side, towards_low, towards_high in ((a, up, down), (b, down, up)):
        if len(side) == 1:
            steps, (low, high) = float(np.median(side[0])), median_bounds(side[0])
            towards_low.append(math.log(steps / low) if low > 0 else math.inf)
            towards_high.append(math.log(high / steps))
    return middle - math.hypot(*down), middle + math.hypot(*up)


def _welch(a: Array, b: Array) -> tuple[float, float]:
    """Welch's interval of the difference of two means, for too few launches to resample."""
    difference, errors = float(np.mean(b) - np.mean(a)), [float(np.var(side, ddof=1)) / len(side) for side in (a, b)]
    if sum(errors) == 0:
        return difference, difference
    free = sum(errors) ** 2 / sum(error**2 / (len(side) - 1) for error, side in zip(errors, (a, b), strict=True))
    half = student((1 + CONFIDENCE) / 2, free) * math.sqrt(sum(errors))
    return difference - half, difference + half


def _drawn_scatter(lot: Array, generator: np.random.Generator) -> Array:
    """Medians of as many values drawn from the lot, less the lot's median."""
    return np.asarray(_median_of_drawn(lot, generator) - np.median(lot))


def _median_of_drawn(lot: Array, generator: np.random.Generator) -> Array:
    """Of as many launches drawn from these."""
    drawn = generator.integers(len(lot), size=(len(lot), RESAMPLES))
    return np.asarray(np.median(lot[drawn], axis=0))
