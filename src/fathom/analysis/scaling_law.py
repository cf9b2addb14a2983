"""Amdahl's and Gustafson's laws: speed-ups from a serial fraction, and the fraction that fits measured ones best.

Every speed-up is over the measured time on one core, thread or rank, and both laws pass through it: a fraction can be
checked against the speed-ups beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

WEAK, STRONG = "weak", "strong"


def law(serial: float, workers: int, scaling: str) -> float:
    """Speed-up on so many workers. Amdahl: 1 / (s + (1 - s) / n), equal work. Gustafson: n - s (n - 1), equal time."""
    if scaling == STRONG:
        return 1 / (serial + (1 - serial) / workers)
    return workers - serial * (workers - 1)


def serial_fraction(speedups: Mapping[int, float], scaling: str) -> float | None:
    """Least squares on 1/speed-up (Amdahl) or speed-up (Gustafson), which are linear in it; between 0 and 1."""
    points = []
    for workers, found in speedups.items():
        if scaling == STRONG:  # 1/S - 1/n = s (1 - 1/n)
            points.append((1 - 1 / workers, 1 / found - 1 / workers))
        else:  # n - S = s (n - 1)
            points.append((workers - 1.0, workers - found))
    below = sum(x * x for x, _ in points)
    return min(1.0, max(0.0, sum(x * y for x, y in points) / below)) if below else None


def serial_fraction_of_times(times: Mapping[int, float]) -> float | None:
    """Amdahl's, from threads -> seconds; None from a single number of threads.

    Without a time on one thread, that is fitted too: with a = t(1) s and b = t(1) (1 - s) the law is a + b / n, and
    neither may be negative.
    """
    if len(times) < 2:
        return None
    if one := times.get(1):
        speedups = {threads: one / seconds if seconds else math.inf for threads, seconds in times.items()}
        return serial_fraction(speedups, STRONG)
    of_law = np.array([[1.0, 1.0 / threads] for threads in times])
    from scipy.optimize import nnls  # takes a third of a second to import

    (serial, parallel), _ = nnls(of_law, np.array(list(times.values())))
    return float(serial / (serial + parallel)) if serial + parallel > 0 else None
