"""The time of a message of n bytes as alpha + beta n: latency and inverse bandwidth, fitted to measured times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

RELATIVE_FLOOR = 1e-12  # seconds; no message is faster


@dataclass(frozen=True)
class AlphaBeta:
    """Both are at least 0. The errors say how far from a straight line the times are."""

    alpha_s: float
    beta_s_per_byte: float
    median_error: float  # relative, of the fitted times
    largest_error: float

    @property
    def bytes_per_s(self) -> float | None:
        """What a message without end would reach; None where its size does not matter."""
        return 1 / self.beta_s_per_byte if self.beta_s_per_byte else None

    def seconds(self, message_bytes: float) -> float:
        return self.alpha_s + self.beta_s_per_byte * message_bytes


def fit(seconds: Mapping[int, float]) -> AlphaBeta | None:
    """Message bytes -> seconds; None of fewer than two sizes.

    The relative errors are minimised: in seconds, the largest messages alone would decide, and alpha would be a guess.
    """
    if len(seconds) < 2:
        return None
    sizes = np.array(list(seconds), dtype=float)
    times = np.maximum(np.array(list(seconds.values()), dtype=float), RELATIVE_FLOOR)
    largest = sizes.max()
    columns = np.stack([1 / times, sizes / largest / times], axis=1)  # bytes of order 1, as seconds are
    from scipy.optimize import nnls  # takes a third of a second to import

    (alpha, beta), _ = nnls(columns, np.ones(len(times)))
    errors = np.abs(columns @ np.array([alpha, beta]) - 1)
    return AlphaBeta(float(alpha), float(beta / largest), float(np.median(errors)), float(errors.max()))
