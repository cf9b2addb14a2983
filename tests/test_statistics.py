"""Planted levels, drifts and outliers are found where they were planted, and noise is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from fathom.analysis.statistics import changepoints, coefficient_of_variation, drift, median_interval, steady_state


def noise(count: int, seed: int = 0, size: float = 0.01) -> np.ndarray:
    """Step times have a long tail to the right."""
    return 1 + size * np.random.default_rng(seed).gamma(1.0, 1.0, count)


@pytest.mark.parametrize(("where", "factor"), [(7, 1.5), (30, 0.8), (50, 1.1)])
def test_a_change_of_level_is_found_where_it_is(where: int, factor: float) -> None:
    values = noise(60)
    values[where:] *= factor
    assert changepoints(values.tolist()) == [where]


def test_several_changes() -> None:
    values = np.repeat([3.0, 1.0, 2.0, 1.0], 20) * noise(80)
    assert changepoints(values.tolist()) == [20, 40, 60]


@pytest.mark.parametrize(
    ("levels", "label", "start"),
    [
        ([1.0, 1.0, 1.0, 1.0], "flat", 0),
        ([1.5, 1.0, 1.0, 1.0], "warm-up", 10),
        ([2.0, 1.5, 1.0, 1.0], "warm-up", 20),
        ([1.0, 1.0, 1.3, 1.3], "slowing", 20),
        ([1.5, 0.9, 1.0, 1.0], "slowing", 20),
        ([1.0, 1.5, 1.0, 1.0], "unsteady", 20),  # a level that comes back is no warm-up
    ],
)
def test_labels(levels: list[float], label: str, start: int) -> None:
    steady = steady_state((np.repeat(levels, 10) * noise(40)).tolist())
    assert (steady.label, steady.start) == (label, start)


def test_a_change_in_the_last_quarter_is_no_steady_state() -> None:
    values = noise(40)
    values[35:] *= 1.2
    assert steady_state(values.tolist()).label == "unsteady"


@pytest.mark.parametrize("count", [8, 12, 40, 400])
def test_one_slow_first_step_is_a_warm_up(count: int) -> None:
    values = noise(count, seed=count)
    values[0] *= 4
    steady = steady_state(values.tolist())
    assert (steady.label, steady.start) == ("warm-up", 1)


def test_one_slow_step_amid_the_others_is_no_level() -> None:
    values = noise(40)
    values[17] *= 20
    assert steady_state(values.tolist()).label == "flat"


def test_levels_closer_than_a_clock_wanders_are_one() -> None:
    values = np.full(40, 1.0)
    values[20:] = 1.01
    assert steady_state(values.tolist()).label == "flat"


def test_noise_is_flat_and_does_not_drift() -> None:
    series = [noise(40, seed, size=0.1).tolist() for seed in range(200)]
    assert sum(steady_state(values).label != "flat" for values in series) <= 10
    assert sum(found.significant for values in series if (found := drift(values))) <= 4


def test_too_few_values_say_nothing() -> None:
    assert steady_state([1.0, 2.0, 3.0, 4.0, 5.0]).label is None
    assert drift([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert coefficient_of_variation([1.0]) is None


def test_a_planted_drift_is_significant_with_its_size() -> None:
    values = noise(60) * np.linspace(1.0, 1.3, 60)
    found = drift(values.tolist())
    assert found is not None
    assert found.significant
    assert found.change == pytest.approx(0.2 / 1.15, abs=0.02)  # two thirds of the way, over the middle


def test_a_drift_too_small_to_matter_is_not_significant() -> None:
    found = drift(np.linspace(1.0, 1.01, 60).tolist())
    assert found is not None
    assert found.p_value < 1e-6
    assert not found.significant


def test_mann_kendall_by_hand() -> None:
    """Of the 720 orders of six values only one rises all the way, and one falls: p = 2 / 720."""
    found = drift([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert found is not None
    assert found.p_value == pytest.approx(2 / 720)
    assert found.change == pytest.approx((5.5 - 1.5) / 3.5)


def test_a_constant_series_has_no_drift() -> None:
    found = drift([2.0] * 10)
    assert found is not None
    assert (found.p_value, found.change) == (1.0, 0.0)


def test_coefficient_of_variation_by_hand() -> None:
    assert coefficient_of_variation([2.0, 4.0, 6.0]) == pytest.approx(0.5)


def test_the_interval_of_one_launch_covers_the_true_median() -> None:
    """Of a hundred samples of a known law, about 95 intervals hold its median (ln 2)."""
    samples = [np.random.default_rng(seed).exponential(1.0, 50).tolist() for seed in range(100)]
    intervals = [median_interval([sample]) for sample in samples]
    assert 88 <= sum(each.low <= np.log(2) <= each.high for each in intervals) <= 100
    assert all(each.low <= each.median <= each.high for each in intervals)


def test_launches_are_resampled_before_steps() -> None:
    """Two launches that agree within, not between: the interval spans both, however many steps they have."""
    found = median_interval([[1.0] * 500, [2.0] * 500])
    assert (found.median, found.low, found.high) == (1.5, 1.0, 2.0)


def test_the_same_steps_give_the_same_interval() -> None:
    steps = noise(30).tolist()
    assert median_interval([steps]) == median_interval([steps])
    assert median_interval([[3.0]]).high == 3.0
