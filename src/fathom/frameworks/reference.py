"""The reference that every framework is checked against: the PyTorch module in double precision.

Inference is checked by its logits, training by the losses of the first steps. A loss hardly moves in three steps, so
that its error is taken relative to how far the reference's loss moved: a wrong gradient then shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fathom.frameworks.framework import Work, torch_module
from fathom.frameworks.network import Array

if TYPE_CHECKING:
    import torch

CHECKED = 3  # steps, which are the warm-up, too
LOGITS_TOLERANCE = 1e-4  # float32 gives 1e-7 to 1e-5
LOSSES_TOLERANCE = 1e-2  # float32 gives 1e-6 to 1e-5 where training is well conditioned
NOISE = (
    4  # times the error of PyTorch's own float32 losses is none: a deep network at random weights amplifies rounding
)
MOST = 0.2  # of any tolerance of losses: half of a gradient still shows


def write(work: Work, path: Path) -> None:
    """Computes the reference and stores it: logits in float32; or losses in float64 and, below them, in float32."""
    import torch

    if work.phase == "infer":
        module, inputs = torch_module(work).double(), torch.from_numpy(work.inputs)
        with torch.inference_mode():
            np.save(path, module(inputs.double() if inputs.is_floating_point() else inputs).float().numpy())
    else:
        np.save(path, np.array([_losses(work, kind) for kind in (torch.float64, torch.float32)]))


def _losses(work: Work, kind: torch.dtype) -> list[float]:
    import torch
    from torch.nn import functional as F

    module, inputs, labels = torch_module(work).to(kind), torch.from_numpy(work.inputs), torch.from_numpy(work.labels)
    inputs = inputs.to(kind) if inputs.is_floating_point() else inputs
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(weights, lr=work.network.learning_rate)
    losses = []
    for _ in range(CHECKED):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(inputs).flatten(0, -2), labels.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def tolerance(phase: str, stored: Array) -> float:
    """Of the errors below, for this reference."""
    if phase == "infer":
        return LOGITS_TOLERANCE
    return min(MOST, max(LOSSES_TOLERANCE, NOISE * losses_error(stored[1], stored)))


def logits_error(found: Array, reference: Array) -> float:
    """The largest difference over the largest logit."""
    if found.shape != reference.shape:
        raise ValueError(f"logits of shape {found.shape}, not {reference.shape}")
    return float(np.max(np.abs(found - reference)) / np.max(np.abs(reference)))


def losses_error(found: Sequence[float] | Array, stored: Array) -> float:
    """The largest difference over the largest change of the loss during these steps."""
    exact = stored[0]
    return float(np.max(np.abs(np.asarray(found) - exact)) / np.max(np.abs(exact - exact[0])))
