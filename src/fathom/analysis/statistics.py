"""Statistics of times: where warm-up ends, whether a series drifts, and medians with intervals, over steps or launches.

The method follows Barrett et al., Virtual Machine Warmup Blows Hot and Cold (OOPSLA 2017): change points cut the series
into segments, which are compared with the last one. The labels are not theirs: "flat" and "warm-up" mean the same,
"slowing" is close to their "slowdown", and "unsteady" also covers levels that recur, beside their "no steady state".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from typing import Literal

import numpy as np

from fathom.analysis.changepoints import MATERIAL, changepoints
from fathom.analysis.correlated import CLOCK_S, CONFIDENCE, inflation, median_bounds
from fathom.analysis.quantiles import heads, normal, normal_tail, student

Label = Literal["flat", "warm-up", "slowing", "unsteady"]

FEWEST = 6  # values below which there is no label: no trend in five values is significant
SIGNIFICANT = 0.01
POWER = 0.9  # for noise of known size; about 0.75 is left where size and correlation are estimated from the same steps
ROUNDING = 1e-9  # relative; what is left of an exact line
SIMULATED = 30  # steps up to which the smallest detectable drift is simulated
MOST_CUT = 1 / 3  # of a series may be cut off as warm-up; a later change point leaves no steady state
LEAST_LAUNCHES = 3  # below which no variation between launches is stated
SIGN_TEST = 6  # launches from which the sign test bounds a median at 95 %; fewer take Student's t
WIDEST = 10.0  # times the median: an interval that reaches further, of few launches that differ, bounds nothing
RANK_PREDICTION = 39  # launches from which ranks bound the next one at 95 %; fewer take Student's t


@dataclass(frozen=True)
class Steady:
    """Where the steady state of a series begins, and how it gets there; no label for too short a series.

    An unsteady series has none, and nothing of it is cut: `start` is then 0, and `levels` are the medians before and
    after its last change of level. Where these are equal, as it came back, they are those away from that level and at
    it.
    """

    label: Label | None
    start: int
    levels: tuple[float, float] | None = None  # seconds; of an unsteady series alone


@dataclass(frozen=True)
class Drift:
    """A trend: p-value of the Mann-Kendall test, and how far the last third lies from the first, as a fraction."""

    p_value: float
    change: float
    detectable: float | None  # the smallest such change that as many steps, as noisy, show in about three of four cases

    @property
    def significant(self) -> bool:
        """Statistically, and large enough to matter."""
        return self.p_value < SIGNIFICANT and abs(self.change) > MATERIAL


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % interval, and how many launches (processes) it rests on; None where that is not known.

    Of one launch the interval is that of the median of this process and says nothing of the next one. Of several it is
    that of the machine: the median over all launches that could be made of it.
    """

    median: float
    low: float
    high: float
    launches: int | None = None

    @property
    def bounded(self) -> bool:
        """Whether the interval says where the median is: of two launches it may reach over ten powers of ten."""
        return self.low * WIDEST >= self.median >= self.high / WIDEST

    def cells(self, scale: float = 1.0) -> list[float | None]:
        """The median and both ends of the interval, for a table; no ends where they bound nothing."""
        ends = [scale * self.low, scale * self.high] if self.bounded else [None, None]
        return [scale * self.median, *ends]

    @property
    def claim(self) -> str:
        """What the interval holds of, in words."""
        if self.launches is None:
            return ""
        return "within this process" if self.launches == 1 else f"over {self.launches} launches"


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
    next_low: float | None  # the interval that holds the next launch's value in 95 of 100 cases; None likewise
    next_high: float | None

    @property
    def variation(self) -> float | None:
        """Standard deviation over mean."""
        return None if self.deviation is None or self.mean <= 0 else self.deviation / self.mean


def steady_state(values: Sequence[float]) -> Steady:
    """Flat, warm-up (slower at first), slowing (faster at first), or unsteady (no last level, or levels that recur).

    What is cut off is at most MOST_CUT of the series, whichever way its level changes: a later change point makes it
    unsteady, and all of it counts. A difference of at most MATERIAL is none.
    """
    if len(values) < FEWEST:
        return Steady(None, 0)
    digest = blake2b(np.asarray(values, dtype=float).tobytes()).digest()
    if digest not in _known:
        _known[digest] = _steady_state(values)
    return _known[digest]


_known: dict[bytes, Steady] = {}  # by the digest of a series: a report asks a dozen times of each


def _steady_state(values: Sequence[float]) -> Steady:
    bounds = [0, *changepoints(values), len(values)]
    levels = [float(np.median(values[begin:end])) for begin, end in pairwise(bounds)]
    ratios = [level / levels[-1] - 1 for level in levels] if levels[-1] > 0 else [0.0] * len(levels)
    first_settled = len(ratios)
    while first_settled > 0 and abs(ratios[first_settled - 1]) <= MATERIAL:
        first_settled -= 1
    start, before = bounds[first_settled], ratios[:first_settled]
    if not before:
        return Steady("flat", 0)
    recurs = any(abs(ratio) <= MATERIAL for ratio in before)
    if recurs or start > MOST_CUT * len(values):
        earlier, last = float(np.median(values[:start])), float(np.median(values[start:]))
        if abs(earlier / last - 1) <= MATERIAL:
            return _came_back(values, bounds, ratios)
        return Steady("unsteady", 0, (earlier, last))
    return Steady("slowing" if min(before) < 0 else "warm-up", start)


def _came_back(values: Sequence[float], bounds: list[int], ratios: list[float]) -> Steady:
    """A series that ends as fast as it was: unsteady where the levels in between change its time by over MATERIAL.

    Its first levels, as far as they are all slower or all faster than the last one, are no such levels.
    """
    lead = 0
    while abs(ratios[lead]) > MATERIAL and ratios[lead] * ratios[0] > 0:
        lead += 1
    if bounds[lead] > MOST_CUT * len(values):
        lead = 0
    start, x = bounds[lead], np.asarray(values, dtype=float)[bounds[lead] :]
    of_steps = np.repeat(ratios[lead:], np.diff(bounds[lead:]))
    away = np.where(abs(of_steps) > MATERIAL, of_steps, 0.0)
    if np.mean(abs(away)) > MATERIAL:
        side = away > 0 if away.sum() > 0 else away < 0  # where it is slower at times and faster at others: the more so
        return Steady("unsteady", 0, (float(np.median(x[side])), float(np.median(x[away == 0]))))
    if lead == 0:
        return Steady("flat", 0)
    return Steady("slowing" if ratios[0] < 0 else "warm-up", start)


def drift(values: Sequence[float]) -> Drift | None:
    """The trend of a series: Kendall's tau against time, which is the Mann-Kendall test.

    Correlated steps wander more than independent ones do. The test is corrected for it (Hamed and Rao 1998) by the
    inflation of the variance that the steps have once their trend is taken out.
    """
    from scipy.stats import kendalltau  # takes a second to import

    count = len(values)
    if count < FEWEST:
        return None
    x, steps = np.asarray(values, dtype=float), np.arange(count)
    third = count // 3
    first, last, middle = np.median(x[:third]), np.median(x[-third:]), np.median(x)
    p_value = float(kendalltau(steps, x).pvalue)
    if np.isnan(p_value) or middle <= 0:  # a constant series has no tau
        return Drift(1.0, 0.0, MATERIAL)
    residuals = x - np.polyval(np.polyfit(steps, x, 1), steps)
    noise = np.sqrt(residuals @ residuals / (count - 2)) / middle
    wider = float(np.sqrt(inflation(residuals.tolist()))) if noise > ROUNDING else 1.0
    detectable = max(MATERIAL, float(detectable_slope(count) * (count - third) * noise * wider))
    could = widened(_kendall_p(count * (count - 1) // 2, count), wider) < SIGNIFICANT
    return Drift(widened(p_value, wider), float((last - first) / middle), detectable if could else None)


def widened(p_value: float, factor: float) -> float:
    """The two-sided p-value where the standard error is larger by this factor."""
    return 2 * normal_tail(-normal(p_value / 2) / factor)


@cache
def detectable_slope(count: int) -> float:
    """The slope per step, over the noise of a step, that the Mann-Kendall test finds with a probability of POWER.

    Up to SIMULATED steps it is found by simulation with normal noise, as so few steps have few ranks; above, by the
    test's asymptotic efficiency of 0.955 against the slope of a regression.
    """
    if count > SIMULATED:
        standard_error = np.sqrt(12 / (count * (count**2 - 1)) / 0.955)
        return float((normal(1 - SIGNIFICANT / 2) + normal(POWER)) * standard_error)
    noise = np.random.default_rng(count).standard_normal((1000, count))
    later, earlier = np.tril_indices(count, -1)
    pairs = len(later)
    needed = min(score for score in range(pairs % 2, pairs + 1, 2) if _kendall_p(score, count) < SIGNIFICANT)
    low, high = 0.0, 10.0
    while high - low > 0.01 * high:
        slope = (low + high) / 2
        series = noise + slope * np.arange(count)
        scores = np.sign(series[:, later] - series[:, earlier]).sum(axis=1)
        low, high = (low, slope) if np.mean(scores >= needed) >= POWER else (slope, high)
    return high


@cache
def _kendall_p(score: int, count: int) -> float:
    """The two-sided p-value of the Mann-Kendall score (concordant less discordant pairs), without ties."""
    pairs = count * (count - 1) // 2
    if count > SIMULATED:
        return 2 * normal_tail(score / np.sqrt(pairs * (2 * count + 5) / 9))
    ways = np.ones(1)
    for size in range(2, count + 1):
        ways = np.convolve(ways, np.ones(size))  # permutations by their number of discordant pairs
    return float(min(1.0, 2 * ways[: (pairs - score) // 2 + 1].sum() / ways.sum()))


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """Standard deviation over mean; None for a single value."""
    if len(values) < 2 or np.mean(values) <= 0:
        return None
    return float(np.std(values, ddof=1) / np.mean(values))


def median_interval(launches: Sequence[Sequence[float]]) -> Interval:
    """The median of the launches' medians, with its 95 % interval; each launch is one process with its steps.

    The steps of a single launch are correlated, and bound the median of this process alone. Several launches count as
    one value each, however many steps they have: a step more says nothing of the next launch.
    """
    medians = [float(np.median(steps)) for steps in launches]
    bounds = median_bounds(launches[0]) if len(launches) == 1 else launch_bounds(medians)
    return Interval(float(np.median(medians)), *bounds, len(launches))


def ratio_interval(launches: Sequence[Sequence[float]]) -> Interval:
    """The same of two sides that were timed in turns: ratios of their times, turn by turn.

    Each ratio is of neighbours in time, and the side that begins alternates. The ratios of one launch are therefore
    not correlated as steps are (a test asks the trials in results/), and bound its median as independent values do.
    """
    if len(launches) == 1 and len(launches[0]) > 1:
        return Interval(float(np.median(launches[0])), *launch_bounds(launches[0]), 1)
    return median_interval(launches)


def launch_bounds(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median over launches, one value each, at least two of them.

    From SIGN_TEST launches on it is that of the sign test, which holds for any distribution. Fewer cannot bound a
    median without one: theirs is Student's t on logarithms, for scatter that is about log-normal.
    """
    count = len(values)
    if count >= SIGN_TEST:
        outside = heads((1 - CONFIDENCE) / 2, count)  # the first and the last of these are the ends
        return _ranked(values, outside)
    return _log_t(values, np.sqrt(1 / count))


def next_bounds(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval that holds the value of the next launch in 95 of 100 cases; None for a single launch.

    Ranks give it from RANK_PREDICTION launches on; fewer take Student's t on logarithms. A slow mode that no launch
    has shown is not in it.
    """
    count = len(values)
    if count < 2:
        return None
    if count >= RANK_PREDICTION:
        return _ranked(values, int((1 - CONFIDENCE) / 2 * (count + 1)))
    return _log_t(values, np.sqrt(1 + 1 / count))


def distribution(launches: Sequence[float]) -> Distribution:
    """Of one value per launch."""
    enough = len(launches) >= LEAST_LAUNCHES
    low, high = launch_bounds(launches) if enough else (None, None)
    next_low, next_high = (enough and next_bounds(launches)) or (None, None)
    p5, p95 = np.quantile(launches, [0.05, 0.95])
    return Distribution(
        count=len(launches),
        mean=float(np.mean(launches)),
        deviation=float(np.std(launches, ddof=1)) if len(launches) > 1 else None,
        p5=float(p5),
        median=float(np.median(launches)),
        p95=float(p95),
        low=low,
        high=high,
        next_low=next_low,
        next_high=next_high,
    )


def _ranked(values: Sequence[float], rank: int) -> tuple[float, float]:
    """The rank-th smallest and the rank-th largest value."""
    ordered = sorted(values)
    return float(ordered[rank - 1]), float(ordered[-rank])


def _log_t(values: Sequence[float], factor: float) -> tuple[float, float]:
    """The mean of the logarithms, and so many standard deviations of theirs to either side, times Student's t."""
    if min(values) == max(values):
        return float(min(values)), float(max(values))
    logs = np.log(np.maximum(values, CLOCK_S))
    half = student((1 + CONFIDENCE) / 2, len(logs) - 1) * np.std(logs, ddof=1) * factor
    return float(np.exp(np.mean(logs) - half)), float(np.exp(np.mean(logs) + half))
