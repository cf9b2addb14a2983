"""Several GPUs behind one link: how long their data takes to arrive, and how much of the time they can be busy.

The host sends to one GPU at a time, so that transfers over the link add up. The calculation is that of "Performance
Factors in Neural Network Training" (section V.B): 8 GB to each GPU over PCI-Express 4.0 x16 (31.5 GB/s) and 0.5 s of
computation keep three GPUs 65.62 % busy at best; its example has four, of which three are filled while one computes.

    >>> three = Link(gpus=3, bytes_per_gpu=8e9, bytes_per_s=31.5e9, compute_s=0.5)
    >>> round(three.transfer_s, 6), round(three.busy, 4)
    (0.253968, 0.6562)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from fathom.core.errors import BadOption


@dataclass(frozen=True, kw_only=True)
class Link:
    """One iteration: every GPU gets its data over the link, and computes on it."""

    gpus: int
    bytes_per_gpu: float  # of one iteration
    bytes_per_s: float  # of the link
    compute_s: float  # of one iteration
    overlapped: bool = True  # data of the next iteration arrive while a GPU computes

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "overlapped" and not 0 < value < math.inf:
                raise BadOption(f"{each.name} must be above 0, not {value:g}")

    @property
    def transfer_s(self) -> float:
        """To one GPU."""
        return self.bytes_per_gpu / self.bytes_per_s

    @property
    def all_transfers_s(self) -> float:
        """To all of them, one after another."""
        return self.gpus * self.transfer_s

    @property
    def iteration_s(self) -> float:
        """The link serves all GPUs once, or a GPU does its own part, whichever takes longer."""
        own_s = self.compute_s if self.overlapped else self.transfer_s + self.compute_s
        return max(self.all_transfers_s, own_s)

    @property
    def idle_s(self) -> float:
        """Of each GPU, in one iteration."""
        return self.iteration_s - self.compute_s

    @property
    def busy(self) -> float:
        """The part of the time in which each GPU computes, at best."""
        return self.compute_s / self.iteration_s

    @property
    def gpus_kept_busy(self) -> int:
        """How many GPUs the link can serve without one of them waiting; 0 where even one waits."""
        if not self.overlapped:
            return 0
        return math.floor(self.compute_s / self.transfer_s * (1 + 1e-12))  # an exact multiple is not lost to rounding

    @property
    def bytes_per_s_needed(self) -> float | None:
        """Of a link that would let all GPUs compute all the time; None, as there is none, where they wait for data."""
        return self.gpus * self.bytes_per_gpu / self.compute_s if self.overlapped else None
