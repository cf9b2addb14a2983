"""Quantiles and tails are those of scipy.stats, which takes a second to import."""

from __future__ import annotations

import pytest
from scipy import stats

from fathom.analysis.quantiles import heads, normal, normal_tail, student

PROBABILITIES = (1e-12, 1e-5, 0.01, 0.025, 0.9, 0.975, 0.999)


@pytest.mark.parametrize("probability", PROBABILITIES)
def test_quantiles_are_those_of_scipy_stats(probability: float) -> None:
    assert normal(probability) == pytest.approx(stats.norm.ppf(probability), abs=1e-12)
    for free in (1, 2, 3.5, 9, 200):
        assert student(probability, free) == pytest.approx(stats.t.ppf(probability, free), rel=1e-9)


@pytest.mark.parametrize("value", [-5.0, 0.0, 1.0, 6.0, 30.0])
def test_tails_are_those_of_scipy_stats(value: float) -> None:
    assert normal_tail(value) == pytest.approx(stats.norm.sf(value), rel=1e-12)


def test_no_end_is_infinite_where_there_is_no_doubt() -> None:
    assert normal_tail(-normal(0.0)) == 0.0


def test_a_rank_of_the_sign_test_is_the_binomial_quantile() -> None:
    ranks = [heads(0.025, tosses) for tosses in range(1, 300)]
    assert ranks == [int(stats.binom.ppf(0.025, tosses, 0.5)) for tosses in range(1, 300)]
