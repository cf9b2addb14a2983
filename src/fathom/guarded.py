"""GuardedLearner: a learner that leaves out what it cannot trust, for networks that now and then lose their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fathom.learner import Learner
from fathom.session import Session

TRUSTED = 0.99  # of a round's losses must be finite: now and then is bad luck, oftener is divergence


class GuardedLearner(Learner):
    """Leaves out what an update would do whose gradient is not finite: after it every weight would be lost.

    A gradient can outgrow its type on the way back through hundreds of frames, or nineteen layers without a norm, and
    then no clipping saves it.
    """

    def __init__(self, session: Session, held_out: Any) -> None:
        super().__init__(session, held_out)
        assert self.state.optimizer is not None
        self.state.optimizer.register_step_pre_hook(_only_finite)

    def mean_loss(self, losses: Sequence[Tensor]) -> float:
        """Of those steps that counted."""
        values = torch.stack(list(losses))
        finite = values.isfinite()
        return float(values[finite].mean()) if float(finite.float().mean()) >= TRUSTED else float("nan")


def _only_finite(optimizer: Optimizer, *_: Any) -> None:
    """Decided on the device, so that the host need not wait."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    lost = ~torch.stack(torch._foreach_norm(gradients)).sum().isfinite()
    for gradient in gradients:
        gradient.masked_fill_(lost, 0)
