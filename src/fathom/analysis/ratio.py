"""The ratio of B's step time to A's, with an interval, and the noise: the ratio that equal launches come to by chance.

Times are taken as logarithms, so that B over A and A over B agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fathom.analysis.statistics import CONFIDENCE, RESAMPLES, resampled_medians

Launches = Sequence[Sequence[float]]  # one process each, and its steps
Array = NDArray[np.float64]

CHANCE = 0.005  # how often equal launches may differ by more than the noise: a table has some sixteen lines
FEW = 5  # launches below which their scatter is not estimated
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
        """The smallest change that launches as many and as noisy as these would have shown, as a fraction."""
        return max(self.noise, self.value / self.low - 1, self.high / self.value - 1)


def ratio(a: Launches, b: Launches, *, paired: bool = False, seed: int = 0) -> Ratio:
    """The medians of the launches' medians, B over A; the interval resamples launches first, then steps.

    Paired, the n-th launches of both were interleaved: the ratio of each pair is taken, from which a drift of the
    machine cancels.
    """
    generator = np.random.default_rng(seed)
    middle_a, middle_b = (np.log([np.median(steps) for steps in side]) for side in (a, b))
    again_a, again_b = (_resampled(side, generator) for side in (a, b))
    if paired:
        middle = float(np.median(middle_b - middle_a))
        resampled = _median_of_drawn(again_b - again_a, generator)
    else:
        middle = float(np.median(middle_b) - np.median(middle_a))
        resampled = _median_of_drawn(again_b, generator) - _median_of_drawn(again_a, generator)
    low, high = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    noise = _noise(middle_a, middle_b, paired, generator)
    return Ratio(math.exp(middle), math.exp(low), math.exp(high), noise)


def launches_needed(found: Ratio, launches: int, change: float) -> int | None:
    """How many of each would show such a change; None where these do. Noise falls with the root of their number."""
    if found.detectable <= change:
        return None
    return 2 * FEW if launches < FEW else math.ceil(launches * (found.detectable / change) ** 2)


def _noise(a: Array, b: Array, paired: bool, generator: np.random.Generator) -> float:
    """A against A and B against B: the ratio that launches drawn from either's own scatter come to.

    The scatter is the distance of each launch from the median of its side (paired: of each pair from the median pair).
    Few launches estimate it imprecisely, so the bound is widened as Student's t is for as few.
    """
    if paired:
        lots = [b - a]
        chance = _drawn_scatter(b - a, generator)
    else:
        lots = [a, b]
        chance = _drawn_scatter(b, generator) - _drawn_scatter(a, generator)
    bound = float(np.quantile(np.abs(chance), CONFIDENCE))
    if (fewest := min(len(a), len(b))) < FEW:
        return max(FLOOR / math.sqrt(fewest), math.expm1(bound))
    launches = sum(map(len, lots))
    free = launches - len(lots)
    widened = stats.t.ppf(1 - CHANCE / 2, free) / stats.norm.ppf((1 + CONFIDENCE) / 2) * math.sqrt(launches / free)
    return math.expm1(bound * widened)


def _drawn_scatter(lot: Array, generator: np.random.Generator) -> Array:
    """Medians of as many values drawn from the lot, less the lot's median."""
    drawn = generator.integers(len(lot), size=(len(lot), RESAMPLES))
    return np.asarray(np.median(lot[drawn], axis=0) - np.median(lot))


def _resampled(launches: Launches, generator: np.random.Generator) -> Array:
    """Logarithms of medians, a row for each launch."""
    return np.log([resampled_medians(np.asarray(steps), RESAMPLES, generator) for steps in launches])


def _median_of_drawn(medians: Array, generator: np.random.Generator) -> Array:
    """Of as many launches drawn from these; one that is drawn twice differs in its steps."""
    drawn, copies = (generator.integers(many, size=medians.shape) for many in medians.shape)
    return np.asarray(np.median(medians[drawn, copies], axis=0))
