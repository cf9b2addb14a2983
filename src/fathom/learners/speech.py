"""How speech learns: batch by batch, but for an update that is not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from fathom.learner import Learner
from fathom.session import Session


class SteadyLearner(Learner):
    """Leaves out what an update would do whose gradient is not finite: after it every weight would be lost.

    A gradient can outgrow its type on the way back through hundreds of frames, and then no clipping saves it.
    """

    def __init__(self, session: Session, held_out: Any) -> None:
        super().__init__(session, held_out)
        assert self.state.optimizer is not None
        self.state.optimizer.register_step_pre_hook(_only_finite)


def _only_finite(optimizer: Optimizer, *_: Any) -> None:
    """Decided on the device, so that the host need not wait."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    lost = ~torch.stack(torch._foreach_norm(gradients)).sum().isfinite()
    for gradient in gradients:
        gradient.masked_fill_(lost, 0)
