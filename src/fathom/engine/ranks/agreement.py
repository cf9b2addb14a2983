"""agreement: whether a divided network computes what the whole one does, judged by its loss and its gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fathom.data.base import Batch
from fathom.engine.base import Loss

TOLERANCE = 1e-4  # relative to the largest element: sums are taken in another order, and nothing else differs
ROUNDING = 1e-7  # of the largest element of all gradients: one that should cancel out is as large as that


def loss_and_gradients(model: nn.Module, loss: Loss, batch: Batch) -> list[Tensor]:
    """The loss, and the gradient of each weight as it lies on this rank; the weights are left without one."""
    found = loss(batch).sum()
    found.backward()  # type: ignore[no-untyped-call]
    gradients = [torch.zeros(1) if weight.grad is None else weight.grad for weight in model.parameters()]
    for weight in model.parameters():
        weight.grad = None
    return [found.detach(), *gradients]


def difference(plain: Sequence[Tensor], found: Sequence[Tensor]) -> str:
    """Between two of loss_and_gradients(), in words; nothing where there is none."""
    one, other = float(plain[0]), float(found[0])
    if not abs(one - other) <= TOLERANCE * abs(one):
        return f"the loss becomes {other:.6g} in place of {one:.6g}"
    largest = max((float(each.abs().max()) for each in plain[1:]), default=0.0)
    for mine, theirs in zip(plain[1:], found[1:], strict=True):
        limit = max(TOLERANCE * float(mine.abs().max()), ROUNDING * largest)
        if mine.shape != theirs.shape or not float((mine - theirs).abs().max()) <= limit:
            return "a gradient differs"
    return ""
