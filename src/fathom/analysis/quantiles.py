"""Quantiles and tails of the distributions that intervals and tests are made of.

From scipy.special alone: scipy.stats takes a second to import, which every command would spend.
"""

from __future__ import annotations

from scipy import special


def normal(probability: float) -> float:
    """The standard normal value that this much probability lies below."""
    return float(special.ndtri(probability))


def normal_tail(value: float) -> float:
    """The probability above a standard normal value."""
    return float(special.ndtr(-value))


def student(probability: float, free: float) -> float:
    """The value of Student's t with so many degrees of freedom that this much probability lies below."""
    return float(special.stdtrit(free, probability))


def heads(probability: float, tosses: int) -> int:
    """The least number of heads that so many tosses of a coin do not exceed with at least this probability."""
    return next(count for count in range(tosses + 1) if special.bdtr(count, tosses, 0.5) >= probability)
