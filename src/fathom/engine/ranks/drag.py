"""Drag: makes one rank slower by a factor, as a slower processor would, to see what the other ranks do about it."""

from __future__ import annotations

import time


class Drag:
    """Sleeps for a multiple of the computing time since the last call, at the ends of forward and of every bucket.

    Only of use where computing is done when Python comes to the call, as on a CPU.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self.extra = factor - 1.0
        self._since = time.perf_counter()

    def begin(self) -> None:
        """What is done from here on is computing."""
        self._since = time.perf_counter()

    def pull(self) -> None:
        if self.extra > 0:
            time.sleep(self.extra * (time.perf_counter() - self._since))
            self.begin()
