"""fsdp: data parallelism in which every rank keeps a part of the weights, by torch's fully_shard.

The weights are gathered before they are used and freed after; gradients are reduced and scattered, so that each rank
updates its own part. Memory for weights, gradients and optimizer is divided by the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.optim import Adam, Optimizer

from fathom.core.errors import UnknownName
from fathom.core.ranks import ALL_GATHER, REDUCE_SCATTER
from fathom.data.base import Batch
from fathom.engine.base import Engine, Loss
from fathom.engine.ranks.base import LossModule, Parallel, Rank, Strategy, is_summed
from fathom.workloads.base import State, Workload

UNITS = ("network", "children")  # what is gathered at once: the whole network, or each of its direct children


@dataclass(frozen=True, kw_only=True)
class Fsdp(Strategy):
    name: ClassVar = "fsdp"
    checkpointed: ClassVar = False
    whole_weights: ClassVar = False

    units: str = "network"  # of UNITS; children need that the loss calls them as modules

    def check(self) -> None:
        if self.units not in UNITS:
            raise UnknownName.among("units", self.units, UNITS)

    def refusal(self, workload: Workload, ranks: int) -> str | None:
        if workload.interactive:
            return "cannot run a network that also acts between its updates: its weights are not there then"
        return None

    def prepare(self, rank: Rank, workload: Workload, state: State, loss: Loss) -> Parallel:
        return _Sharded(self, rank, workload, state, loss)


class _Sharded(Parallel):
    def __init__(self, settings: Fsdp, rank: Rank, workload: Workload, state: State, loss: Loss) -> None:
        super().__init__(rank, state, self._loss)
        self._plain = loss
        self._summed = self._found_summed(workload)
        self._scale = float(rank.group.ranks) if self._summed else 1.0
        self._relaid = [weight for weight in state.weights if not weight.is_contiguous()]
        for weight in self._relaid:
            weight.data = weight.data.contiguous()  # fully_shard takes no other layout, such as channels last
        self._module = LossModule(state.model, loss)
        units = [child for child in state.model.children() if any(True for _ in child.parameters())]
        for module in [*(units if settings.units == "children" else []), self._module]:
            sharded = fully_shard(module)
            if rank.group.ranks > 1:
                sharded.set_custom_all_gather(_Timed(rank, ALL_GATHER))  # type: ignore[arg-type]
                sharded.set_custom_reduce_scatter(_Timed(rank, REDUCE_SCATTER))  # type: ignore[arg-type]
        state.weights = list(state.model.parameters())
        state.optimizer = workload.optimizer(state.model)  # of the parts that are this rank's
        unfuse(state.optimizer)

    @property
    def summed(self) -> bool:
        return self._summed

    @property
    def notes(self) -> list[str]:
        notes = []
        if self._relaid:
            notes.append("fully_shard needs contiguous weights: convolutions are not in channels-last layout")
        if self.state.device.type != "cpu":
            notes.append("fsdp on a GPU: communication is counted as hidden; what of it is exposed was not measured")
        return notes

    def update(self, engine: Engine, batch: Batch) -> Tensor:
        self.rank.drag.begin()
        loss = engine.update(batch)
        self.rank.drag.pull()
        return loss if self._scale == 1.0 else loss / self._scale

    def _loss(self, batch: Batch) -> Tensor:
        loss: Tensor = self._module(batch)
        return loss if self._scale == 1.0 else loss * self._scale

    def _found_summed(self, workload: Workload) -> bool:
        """Before the weights are divided: afterwards a pass without gradients would gather them."""
        batch = {name: column.to(self.state.device) for name, column in workload.example().items()}
        return is_summed(self.rank, self.state, self._plain, batch)


def unfuse(optimizer: Optimizer) -> None:
    """Of the fused optimizers, torch has only Adam and AdamW for divided weights."""
    if isinstance(optimizer, Adam):  # of which AdamW is one
        return
    for group in optimizer.param_groups:
        if group.get("fused"):
            group["fused"] = False


class _Timed:
    """One of fully_shard's operations, noted on the timeline; on a CPU the step waits for it."""

    def __init__(self, rank: Rank, operation: str) -> None:
        self._timeline, self._drag, self._operation = rank.timeline, rank.drag, operation
        names = ("all_gather_single", "all_gather_into_tensor")
        if operation == REDUCE_SCATTER:
            names = ("reduce_scatter_single", "reduce_scatter_tensor")
        self._call: Callable[..., Any] = getattr(dist, names[0], None) or getattr(dist, names[1])  # renamed in 2.13

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, **settings: Any) -> Any:
        whole = output_tensor if self._operation == ALL_GATHER else input_tensor
        self._drag.pull()
        begun = self._timeline.begin(self._operation, whole.nbytes)
        work = self._call(output_tensor, input_tensor, group=group, **settings)
        self._timeline.done(begun)
        if whole.device.type == "cpu" and self._timeline.steps:
            self._timeline.exposed_since(begun)
        self._drag.begin()
        return work
