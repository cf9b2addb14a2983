"""Lesson: what a workload shall learn, how good is good enough, and how that is judged. Plain data, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The number a workload is judged by once it has learnt."""

    metric: str  # "top-1 accuracy"
    unit: str  # "%", "nats", "points"
    target: float | None  # None where nobody has said what would be good
    better: Literal["higher", "lower"]
    protocol: str  # on what data, counted how, looked at when

    def reached(self, value: float) -> bool | None:
        """None without a target."""
        if self.target is None:
            return None
        return value >= self.target if self.better == "higher" else value <= self.target


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """How a workload learns from real data: what differs from its published preset, and for how long at most."""

    quality: Quality
    rounds: int  # at most; each ends with a look at held-out data
    items: int | None = None  # of a round, whatever the batch; None is once through the data
    preset: str = "paper"
    options: Mapping[str, Any] = field(default_factory=dict)  # fields of the workload, changed
    precision: str = "fp32"
    stops_at_target: bool = True  # False where the protocol says how long to train, whatever comes of it
    instead: Mapping[str, Lesson] = field(default_factory=dict)  # another lesson, where the switch so named is on

    def given(self, options: Mapping[str, Any]) -> Lesson:
        """This lesson, or the one that stands in its place with these options."""
        return next((lesson for switch, lesson in self.instead.items() if options.get(switch)), self)
