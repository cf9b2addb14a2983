"""GuardedTrainer: a trainer that leaves out what it cannot trust, for networks that now and then lose their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fathom.engine.session import Session
from fathom.training.trainer import Trainer

TOLERATED = 0.01  # of a round's steps may be lost, and one in any case: oftener is no bad luck, but divergence


class GuardedTrainer(Trainer):
    """Leaves out gradients that are not finite, as after one of them every weight would be lost; momentum goes on.

    A gradient can outgrow its type on the way back through hundreds of frames, or nineteen layers without a norm, and
    then no clipping saves it.
    """

    def __init__(self, session: Session, held_out: Any) -> None:
        super().__init__(session, held_out)
        assert self.state.optimizer is not None
        self._left_out = torch.zeros((), dtype=torch.long, device=self.state.device)
        self._before = 0  # this round
        self.state.optimizer.register_step_pre_hook(self._only_finite)

    def mean_loss(self, losses: Sequence[Tensor]) -> float:
        """Of those steps that counted; nan where too few did."""
        values = torch.stack(list(losses))
        finite = values[values.isfinite()]
        lost = max(len(values) - len(finite), int(self._left_out) - self._before)
        self._before = int(self._left_out)
        return float(finite.mean()) if lost < len(values) and lost <= max(1, TOLERATED * len(values)) else float("nan")

    def notes(self) -> list[str]:
        updates = int(self._left_out)
        return [f"gradients left out, as they were not finite: {updates}"] if updates else []

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "left_out": int(self._left_out)}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        super().load_state_dict(kept)
        self._left_out.fill_(kept["left_out"])
        self._before = kept["left_out"]

    def _only_finite(self, *_: Any) -> None:
        """Decided on the device, so that the host need not wait."""
        gradients = [weight.grad for weight in self.state.weights if weight.grad is not None]
        lost = ~torch.stack(torch._foreach_norm(gradients)).sum().isfinite()
        for gradient in gradients:
            gradient.masked_fill_(lost, 0)
        self._left_out += lost
