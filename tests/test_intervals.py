"""Intervals hold what they claim as often as they claim it: simulated steps and launches with fixed seeds.

Of 400 intervals at 95 %, 94 % to 96 % is what chance allows one time in three; the bounds below leave three standard
errors, or one percentage point, below the coverage that a longer simulation gave.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from sample_series import autoregressive, median_with_outliers, with_outliers

from fathom.analysis.correlated import median_bounds
from fathom.analysis.ratio import FLOOR, ratio
from fathom.analysis.statistics import drift, launch_bounds, median_interval, next_bounds
from fathom.measure.stopping import PRECISE, StoppingRule

SERIES = 400
LAWS = {  # of launch medians; each scatters by some percent
    "normal": lambda random, shape: np.exp(0.02 * random.standard_normal(shape)),
    "long tail": lambda random, shape: 1 + 0.03 * random.exponential(1.0, shape),
    "heavy tails": lambda random, shape: np.exp(0.02 * random.standard_t(3, shape)),
    "a fifth is slow": lambda random, shape: (
        np.exp(0.01 * random.standard_normal(shape)) * np.where(random.random(shape) < 0.2, 1.2, 1.0)
    ),
}


def coverage(series: np.ndarray, true: float, confidence: float = 0.95) -> float:
    bounds = [median_bounds(values.tolist(), confidence) for values in series]
    return float(np.mean([low <= true <= high for low, high in bounds]))


@pytest.mark.parametrize("count", [30, 100, 300])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.8])
def test_the_interval_of_correlated_steps_holds_the_median(correlation: float, count: int) -> None:
    """Order statistics of independent steps cover 95, 90, 77 and 59 %."""
    clean = autoregressive(correlation, count, SERIES, seed=count)
    assert coverage(clean, 1.0) >= 0.925
    slow = with_outliers(clean, 0.05, seed=1)
    assert coverage(slow, median_with_outliers(0.05)) >= 0.92


@pytest.mark.parametrize("count", [6, 10, 15])
def test_a_series_too_short_to_tell_has_a_wide_interval(count: int) -> None:
    series = autoregressive(0.8, count, SERIES, seed=count)
    assert coverage(series, 1.0) >= 0.85
    wider = [median_bounds(values.tolist()) for values in series]
    beyond = np.mean(
        [low < values.min() or high > values.max() for (low, high), values in zip(wider, series, strict=True)]
    )
    assert beyond > 0.5, "it extends beyond the fastest and the slowest step"
    assert coverage(autoregressive(0.3, count, SERIES, seed=count), 1.0) >= 0.93


def test_independent_steps_pay_little_for_the_correction() -> None:
    """At 300 steps the interval is at most half as wide again as order statistics of independent steps have it."""
    series = autoregressive(0.0, 300, 100, seed=2)
    widths = [np.subtract(*median_bounds(values.tolist())[::-1]) for values in series]
    plain = [np.subtract(*np.sort(values)[[300 // 2 + 17, 300 // 2 - 18]]) for values in series]
    assert np.median(widths) < 1.5 * np.median(plain)


def test_equal_steps_have_no_width_and_two_steps_are_students_t() -> None:
    assert median_bounds([2.0] * 10) == (2.0, 2.0)
    low, high = median_bounds([1.0, 1.21])
    assert high == pytest.approx(math.sqrt(low * high) * 1.1**12.706, rel=0.05)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.8])
def test_stopping_at_the_first_narrow_interval_still_covers(correlation: float) -> None:
    """Looks after 5, 10, 20, ... steps: the interval at which the rule stops holds the median."""
    held, stopped = [], 0
    for values in autoregressive(correlation, 640, 150, seed=5, size=0.015):
        rule = StoppingRule()
        for count in (5, 10, 20, 40, 80, 160, 320, 640):
            known = rule.half_width(values[:count].tolist())
            if known <= PRECISE:
                stopped += 1
                held.append(abs(np.median(values[:count]) - 1) <= PRECISE)
                break
    assert stopped >= 60
    assert np.mean(held) >= 0.93


def test_each_look_costs_and_five_steps_are_no_look() -> None:
    values = autoregressive(0.3, 40, 1, seed=1)[0].tolist()
    once, again = StoppingRule(), StoppingRule()
    assert again.half_width(values[:5]) == math.inf
    assert once.half_width(values) == again.half_width(values)
    looks = [once.half_width(values) for _ in range(6)]
    assert looks == sorted(looks)
    assert looks[-1] > looks[0]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("count", [3, 5, 10])
def test_the_interval_over_launches_holds_the_machines_median(count: int, law: str) -> None:
    """A bootstrap of three launches holds it in 75 of 100 cases."""
    random = np.random.default_rng(count)
    true = float(np.median(LAWS[law](random, 400_000)))
    lots = LAWS[law](random, (1500, count))
    held = [low <= true <= high for low, high in (launch_bounds(lot.tolist()) for lot in lots)]
    assert np.mean(held) >= 0.915


@pytest.mark.parametrize(("law", "least"), [("normal", 0.93), ("long tail", 0.9), ("heavy tails", 0.9)])
@pytest.mark.parametrize("count", [2, 3, 5, 10, 40])
def test_the_next_launch_lies_in_its_interval(count: int, law: str, least: float) -> None:
    random = np.random.default_rng(count)
    lots, following = LAWS[law](random, (1500, count)), LAWS[law](random, 1500)
    bounds = [next_bounds(lot.tolist()) or (math.nan, math.nan) for lot in lots]
    assert np.mean([low <= value <= high for (low, high), value in zip(bounds, following, strict=True)]) >= least


LIMITS = {  # laws and launches for which the interval of the next launch covers less, as docs/method.md says
    ("a fifth is slow", 3): 0.87,
    ("a fifth is slow", 10): 0.92,
    ("very skewed", 3): 0.87,
    ("very skewed", 5): 0.90,
    ("very skewed", 20): 0.93,
}


@pytest.mark.parametrize(("law", "count"), LIMITS)
def test_the_limits_of_the_next_launchs_interval_are_those_stated(law: str, count: int) -> None:
    random = np.random.default_rng(count)
    values = 1 + 0.03 * random.exponential(1.0, (2000, count + 1)) ** 2
    if law != "very skewed":
        values = LAWS[law](random, (2000, count + 1))
    lots, following = values[:, :-1], values[:, -1]
    bounds = [next_bounds(lot.tolist()) or (math.nan, math.nan) for lot in lots]
    held = np.mean([low <= value <= high for (low, high), value in zip(bounds, following, strict=True)])
    assert held == pytest.approx(LIMITS[law, count], abs=0.025)


@pytest.mark.parametrize("count", [12, 24])
def test_the_limits_of_drift_in_short_correlated_series_are_those_stated(count: int) -> None:
    """Of series at a lag-1 correlation of 0.6: false drifts, and how often the smallest stated one is found."""
    still = autoregressive(0.6, count, 400, seed=1, size=0.05)
    found = [each for values in still if (each := drift(values.tolist()))]
    stated = float(np.median([each.detectable for each in found if each.detectable]))
    trend = stated / (count - count // 3) * (np.arange(count) - (count - 1) / 2)
    drifting = autoregressive(0.6, count, 400, seed=count + 1, size=0.05) + trend
    shown = [each.significant for values in drifting if (each := drift(values.tolist()))]
    assert 0.01 <= np.mean([each.significant for each in found]) <= 0.08
    assert 0.40 <= np.mean(shown) <= 0.70


def test_one_launch_predicts_nothing() -> None:
    assert next_bounds([1.0]) is None


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_the_ratio_of_few_launches_holds_the_true_one(count: int, paired: bool) -> None:
    random = np.random.default_rng(count)
    held = []
    for _ in range(300):
        a, b = (LAWS["normal"](random, (count, 1)).tolist() for _ in range(2))
        found = ratio(a, b, paired=paired)
        held.append(found.low <= 1 <= found.high)
        assert found.low <= found.value <= found.high
    assert np.mean(held) >= 0.92


def test_the_ratio_of_single_launches_includes_what_launches_are_assumed_to_differ_by() -> None:
    steps = autoregressive(0.6, 200, 2, seed=3)
    found = ratio([steps[0].tolist()], [steps[1].tolist()])
    assert found.high / found.value > 1 + FLOOR
    assert found.value / found.low > 1 + FLOOR


def test_an_interval_says_what_it_claims() -> None:
    steps = autoregressive(0.3, 30, 3, seed=1).tolist()
    assert median_interval(steps[:1]).claim == "within this process"
    assert median_interval(steps).claim == "over 3 launches"
