"""How fast a CPU's core usually is, by the time of a fixed loop: others that share it slow it down at times."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

UNUSUAL = 1.25  # of a core's speed, or its inverse


@dataclass(frozen=True)
class CoreSpeed:
    loop_s: float

    @classmethod
    def usual(cls, loops_s: Iterable[float | None]) -> CoreSpeed | None:
        """The median of many looks; None where nobody looked."""
        known = [each for each in loops_s if each]
        return cls(statistics.median(known)) if known else None

    def is_usual(self, loop_s: float | None) -> bool:
        """Also where nobody looked."""
        return not loop_s or max(loop_s / self.loop_s, self.loop_s / loop_s) <= UNUSUAL
