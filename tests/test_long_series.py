"""Series of a hundred thousand steps: the same change points and intervals, at a cost that is not quadratic."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from fathom.analysis import changepoints, correlated

LONG = 100_000


def stepped(count: int, levels: dict[int, float], seed: int = 0) -> list[float]:
    """Noise of 2 % whose level changes at these indices."""
    level = np.ones(count)
    for begin, height in levels.items():
        level[begin:] = height
    noise = 0.02 * np.random.default_rng(seed).standard_normal(count)
    return [float(value) for value in level * (1 + noise)]


@pytest.mark.parametrize("count", [1000, 10_000, LONG, 10**7])
def test_the_places_of_change_are_bounded_whatever_the_length(count: int) -> None:
    places = changepoints._places(count)
    assert len(places) <= changepoints.MOST_PLACES + 1
    assert (places[0], places[-1]) == (0, count)
    assert (np.diff(places) > 0).all()
    assert (places[:200] == np.arange(200)).all()


@pytest.mark.parametrize("count", [6, 20, 999])
def test_a_short_series_may_change_everywhere(count: int) -> None:
    assert (changepoints._places(count) == np.arange(count + 1)).all()


def test_change_points_of_a_long_series_are_found_to_the_step() -> None:
    levels = {0: 1.07, 150: 1.0, 20_017: 1.04, 61_234: 1.1}
    found = changepoints.changepoints(stepped(LONG, levels))
    assert found == pytest.approx([150, 20_017, 61_234], abs=3)
    assert changepoints.changepoints(stepped(LONG, {0: 1.0})) == []


@pytest.mark.parametrize("seed", range(5))
def test_spaced_places_find_what_all_places_find(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = int(rng.integers(1, 400)), int(rng.integers(900, 1300))
    series = stepped(2200, {0: 2.0, first: 1.0, second: 1.1}, seed)
    spaced = changepoints.changepoints(series)
    monkeypatch.setattr(changepoints, "MOST_PLACES", 10**6)
    assert spaced == changepoints.changepoints(series)


def test_the_interval_of_a_long_series_takes_little_memory() -> None:
    series = stepped(LONG, {0: 1.0})
    tracemalloc.start()
    low, high = correlated.median_bounds(series)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.999 < low < high < 1.001
    assert peak < 40 * 8 * LONG  # some copies of the series; a table of cosines is 754


def test_the_interval_is_the_same_with_and_without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    series = stepped(1500, {0: 1.0, 700: 1.01})
    by_table = correlated.median_bounds(series)
    monkeypatch.setattr(correlated, "LONG", 100)
    assert correlated.median_bounds(series) == pytest.approx(by_table, rel=1e-12)
