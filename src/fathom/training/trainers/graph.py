"""GraphTrainer: a trainer whose forward and backward passes are CUDA graphs, for networks that leave a GPU waiting.

Where kernels are small, launching them one by one is what a step takes its time for; a graph launches them all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from fathom.data.base import Batch
from fathom.engine.engines.cudagraph import Recorded, Track
from fathom.engine.session import Session
from fathom.training.trainer import Trainer


class GraphTrainer(Trainer):
    """The same updates as a plain trainer's; the workload's switch `graphs` says whether they are replayed."""

    def __init__(self, session: Session, held_out: Any) -> None:
        super().__init__(session, held_out)
        self.gradients: Callable[[Batch], Tensor] = self._gradients
        if getattr(self.workload, "graphs", False):
            self.gradients = Graphs(self._gradients, self.state.device)

    def step(self) -> Tensor:
        assert self.state.optimizer is not None
        loss = self.gradients(next(self.state.batches))
        self.state.optimizer.step()
        return loss

    def _gradients(self, batch: Batch) -> Tensor:
        """Forward, backward, clip; the gradients stay where they are in memory, as a graph wants it."""
        assert self.state.optimizer is not None
        self.state.optimizer.zero_grad(set_to_none=False)
        with self.state.autocast():
            loss = self.workload.loss(self.state.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.workload.clip_norm is not None:
            clip_grad_norm_(self.state.weights, self.workload.clip_norm)
        return loss.detach()


class Graphs:
    """Work on batches, recorded once for each shape and replayed from then on: one launch in place of thousands.

    All share one track, as no two run at once and nothing but the loss is wanted of them afterwards.
    """

    def __init__(self, work: Callable[[Batch], Tensor], device: torch.device) -> None:
        self._work, self._device = work, device
        self._track = Track.on(device)
        self._known: dict[tuple[torch.Size, ...], tuple[Batch, Recorded]] = {}

    def __call__(self, batch: Batch) -> Tensor:
        shape = tuple(column.shape for column in batch.values())
        if shape not in self._known:
            inputs = {name: torch.empty_like(column) for name, column in batch.items()}
            # once as usual is enough for libraries to settle: the optimizer, which wants more, is not recorded
            self._known[shape] = inputs, Recorded(partial(self._work, inputs), self._device, 1, self._track)
        inputs, work = self._known[shape]
        for name, column in batch.items():
            inputs[name].copy_(column)
        return work().clone()  # the next replay writes over it
