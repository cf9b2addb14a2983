"""The reference that every framework is checked against: the PyTorch module in double precision.

Inference is checked by its logits, training by the losses of the first steps. A loss hardly moves in three steps, so
that its error is taken relative to how far the reference's loss moved: a wrong gradient then shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fathom.frameworks.framework import Work, torch_module
from fathom.frameworks.network import Array

CHECKED = 3  # steps, which are the warm-up, too
TOLERANCE = {"infer": 1e-4, "train": 1e-2}  # of the errors below; float32 gives 1e-7 to 1e-5, and 1e-5 to 1e-3


def write(work: Work, path: Path) -> None:
    """Computes the reference and stores it: logits in float32, or losses."""
    import torch
    from torch.nn import functional as F

    module, inputs, labels = torch_module(work).double(), torch.from_numpy(work.inputs), torch.from_numpy(work.labels)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    if work.phase == "infer":
        with torch.inference_mode():
            np.save(path, module(inputs).float().numpy())
        return
    optimizer = torch.optim.SGD(
        [weight for weight in module.parameters() if weight.requires_grad], lr=work.network.learning_rate
    )
    losses = []
    for _ in range(CHECKED):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(inputs).flatten(0, -2), labels.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    np.save(path, np.array(losses))


def logits_error(found: Array, reference: Array) -> float:
    """The largest difference over the largest logit."""
    if found.shape != reference.shape:
        raise ValueError(f"logits of shape {found.shape}, not {reference.shape}")
    return float(np.max(np.abs(found - reference)) / np.max(np.abs(reference)))


def losses_error(found: Sequence[float], reference: Array) -> float:
    """The largest difference over the largest change of the loss during these steps."""
    moved = np.max(np.abs(reference - reference[0]))
    return float(np.max(np.abs(np.asarray(found) - reference)) / moved)
