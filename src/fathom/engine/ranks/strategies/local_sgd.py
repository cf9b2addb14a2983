"""local_sgd: every rank trains by itself, and every few steps all take the mean of their weights.

Between two averages nothing is sent. With a period of one step and plain SGD it is ddp; optimizer state stays local.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from fathom.core.errors import BadOption
from fathom.core.ranks import ALL_REDUCE, BROADCAST
from fathom.data.base import Batch
from fathom.engine.base import Engine, Loss
from fathom.engine.ranks.base import Parallel, Rank, Strategy, is_summed
from fathom.workloads.base import State, Workload


@dataclass(frozen=True, kw_only=True)
class LocalSgd(Strategy):
    name: ClassVar = "local_sgd"

    period: int = 4  # steps between two averages

    def check(self) -> None:
        if self.period < 1:
            raise BadOption(f"period must be at least 1, not {self.period}")

    def prepare(self, rank: Rank, workload: Workload, state: State, loss: Loss) -> Parallel:
        return _Local(self.period * workload.updates_per_step, rank, state, loss)


class _Local(Parallel):
    def __init__(self, updates: int, rank: Rank, state: State, loss: Loss) -> None:
        super().__init__(rank, state, loss)
        self._period, self._updates = updates, 0  # updates between two averages, and so far
        self._summed: bool | None = None
        for weight in state.weights:
            rank.timeline.heartbeat.begin(BROADCAST)
            dist.broadcast(weight.data, src=0)
            rank.timeline.heartbeat.done()

    @property
    def summed(self) -> bool:
        return bool(self._summed)

    def update(self, engine: Engine, batch: Batch) -> Tensor:
        if self._summed is None:
            self._summed = is_summed(self.rank, self.state, self.loss, batch)
        self.rank.drag.begin()
        loss = engine.update(batch)
        self.rank.drag.pull()
        self._updates += 1
        if self._updates % self._period == 0:
            self._average()
        return loss

    def resume(self, updates: int) -> None:
        self._updates = updates

    def learnt(self) -> list[Tensor]:
        """The mean of the ranks' weights."""
        found = super().learnt()
        for weight in found:
            self.rank.timeline.heartbeat.begin(ALL_REDUCE)
            dist.all_reduce(weight)
            self.rank.timeline.heartbeat.done()
        return [weight / self.rank.group.ranks for weight in found]

    def _average(self) -> None:
        timeline, weights = self.rank.timeline, self.state.weights
        if self.rank.group.ranks == 1:
            return
        flat = torch.cat([weight.detach().reshape(-1) for weight in weights]) / self.rank.group.ranks
        begun = timeline.begin(ALL_REDUCE, flat.nbytes)
        dist.all_reduce(flat)
        timeline.done(begun)
        timeline.exposed_since(begun)
        offset = 0
        for weight in weights:  # into the same memory: fused optimizers know its layout
            weight.data.copy_(flat[offset : offset + weight.numel()].view(weight.shape))
            offset += weight.numel()
