"""Drag: makes one rank slower by a factor, as a slower processor would, to see what the other ranks do about it."""

from __future__ import annotations

import time

from fathom.core.errors import BadOption
from fathom.core.spec import RunSpec
from fathom.engine.ranks.group import Group


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


def slowness(spec: RunSpec, group: Group) -> tuple[float, float]:
    """How many times as long computing and messages take on this rank, as the spec asks for."""
    if (spec.slow_rank or spec.slow_link) and group.device.type != "cpu":
        raise BadOption("a slow rank or link can be injected on a CPU alone: a GPU works while the host sleeps")
    compute, link = (pair[1] if pair and pair[0] == group.rank else 1.0 for pair in (spec.slow_rank, spec.slow_link))
    return compute, link
