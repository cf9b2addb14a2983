"""A lower bound on the memory a run needs, counted on the meta device before anything is allocated.

A CPU's allocator hands out more than there is, and the kernel then kills the process without a word; a run that
cannot fit is better refused beforehand. A GPU's allocator refuses by itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fathom.errors import DoesNotFit
from fathom.workload import Workload

SAMPLE = 2  # items to count on; the rest is proportion


def refuse_what_cannot_fit(workload: Workload, phase: str) -> None:
    needed, available = least_bytes(workload, phase), psutil.virtual_memory().available
    if needed > available:
        raise DoesNotFit(
            f"batch {workload.batch} of {workload.name} needs at least {needed / 2**30:,.1f} GiB, "
            f"{available / 2**30:.1f} GiB are free; try a smaller --batch"
        )


def least_bytes(workload: Workload, phase: str) -> int:
    """Weights, the batch, and in training the gradients and what the forward pass saves for the backward."""
    sample = dataclasses.replace(workload, batch=SAMPLE)
    batch = {name: column.to("meta") for name, column in sample.example().items()}
    with torch.device("meta"):
        model = sample.model()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    inputs = sum(column.nbytes for column in batch.values())
    if phase == "infer":
        with torch.no_grad():
            outputs = workload.forward(model, batch).nbytes
        return weights + (inputs + outputs) * workload.batch // SAMPLE
    saved = _saved_bytes(sample, model, batch)
    return 2 * weights + (inputs + saved) * workload.batch // SAMPLE


def _saved_bytes(workload: Workload, model: torch.nn.Module, batch: dict[str, Tensor]) -> int:
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            sizes[storage._cdata] = tensor.nbytes
        return tensor

    def give_back(tensor: Any) -> Any:
        return tensor

    with saved_tensors_hooks(keep, give_back):
        prediction = workload.forward(model, batch)  # held, so that no storage's number is used twice
    del prediction
    return sum(sizes.values())
