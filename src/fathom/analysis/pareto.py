"""Time against energy: the Pareto front of settings, and which setting to recommend for what.

A setting (a power cap, a clock, a batch size, an engine) was run several times, once a process. It is better than
another one only where the 95 % intervals of the two do not overlap; else there is no significant difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fathom.analysis.energy_runs import LARGEST_SPREAD
from fathom.analysis.statistics import Interval, launch_bounds

FULL_SPEED = 0.05  # slower than the reference by this share at most, where a user names no other


@dataclass(frozen=True)
class Choice:
    """One setting, and what each of its runs took for the same work."""

    setting: str  # in words: "300 W"
    seconds: tuple[float, ...]
    joules: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.seconds or len(self.seconds) != len(self.joules):
            raise ValueError(f"{self.setting}: {len(self.seconds)} times and {len(self.joules)} energies")

    @property
    def time(self) -> Interval:
        return _interval(self.seconds)

    @property
    def energy(self) -> Interval:
        """Energy to solution, ETS."""
        return _interval(self.joules)

    @property
    def delay_product(self) -> Interval:
        """EDP, of each run by itself: its time and its energy vary together."""
        return _interval([time * energy for time, energy in zip(self.seconds, self.joules, strict=True)])


Measure = Callable[[Choice], Interval]


@dataclass(frozen=True)
class Recommendation:
    """The setting for one aim, and what it gives and takes against the reference."""

    choice: Choice
    equals: list[Choice]  # others with no significant difference in what was asked for
    energy_ratio: float  # of the reference's median
    time_ratio: float


def pareto_front(choices: Sequence[Choice]) -> list[Choice]:
    """The choices that no other one beats, fastest first.

    One is beaten where another has medians of time and energy that are no worse, and is significantly better in at
    least one. Ties stay, and so does what cannot be told from the front by these runs.
    """
    front = [choice for choice in choices if not any(beats(other, choice) for other in choices)]
    return sorted(front, key=lambda choice: (choice.time.median, choice.energy.median))


def beats(one: Choice, other: Choice) -> bool:
    """Never in a circle: medians that are no worse, in both, order all choices."""
    no_worse = one.time.median <= other.time.median and one.energy.median <= other.energy.median
    return no_worse and (less(one.time, other.time) or less(one.energy, other.energy))


def less(one: Interval, other: Interval) -> bool:
    """Significantly."""
    return one.high < other.low


def least_energy(choices: Sequence[Choice], reference: Choice) -> Recommendation:
    """Least energy to solution."""
    return _least(choices, lambda choice: choice.energy, reference)


def least_delay_product(choices: Sequence[Choice], reference: Choice) -> Recommendation:
    """Least energy-delay product."""
    return _least(choices, lambda choice: choice.delay_product, reference)


def least_energy_near_full_speed(
    choices: Sequence[Choice], reference: Choice, slower: float = FULL_SPEED
) -> Recommendation:
    """Least energy among those whose median time is at most so much above the reference's; 0.05 is 5 %."""
    longest = reference.time.median * (1 + slower)
    near = [choice for choice in choices if choice.time.median <= longest]
    return _least(near or [reference], lambda choice: choice.energy, reference)


def _least(choices: Sequence[Choice], measure: Measure, reference: Choice) -> Recommendation:
    """The fastest of those with no significant difference from the least: slower must be worth it."""
    least = min(choices, key=lambda choice: measure(choice).median)
    equals = [choice for choice in choices if not less(measure(least), measure(choice))]
    best = min(equals, key=lambda choice: (choice.time.median, measure(choice).median))
    return Recommendation(
        choice=best,
        equals=[choice for choice in equals if choice is not best],
        energy_ratio=best.energy.median / reference.energy.median,
        time_ratio=best.time.median / reference.time.median,
    )


def _interval(values: Sequence[float]) -> Interval:
    """Of one run as wide as trials of one setting may differ: nothing is known of the next one."""
    alone = values[0] * (1 - LARGEST_SPREAD), values[0] * (1 + LARGEST_SPREAD)
    low, high = launch_bounds(values) if len(values) > 1 else alone
    return Interval(float(np.median(values)), low, high, len(values))
