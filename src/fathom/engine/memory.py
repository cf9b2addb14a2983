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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fathom.core.errors import DoesNotFit
from fathom.workloads.base import Workload

SAMPLE = 2  # items to count on; the rest is proportion


def refuse_what_cannot_fit(workload: Workload, phase: str) -> None:
    needed, available = least_bytes(workload, phase), psutil.virtual_memory().available
    if needed > available:
        raise DoesNotFit(
            f"batch {workload.batch} of {workload.name} needs at least {needed / 2**30:,.1f} GiB, "
            f"{available / 2**30:.1f} GiB are free; try a smaller --batch"
        )


def least_bytes(workload: Workload, phase: str) -> int:
    """Weights, the batch, and either the largest single op or, in training, gradients and what backward needs."""
    sample = dataclasses.replace(workload, batch=SAMPLE)
    batch = {name: column.to("meta") for name, column in sample.example().items()}
    with torch.device("meta"):
        model = sample.model()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    inputs = sum(column.nbytes for column in batch.values())
    if phase == "infer":
        largest = _LargestOp(model)
        with torch.no_grad(), largest:
            workload.forward(model, batch)
        return weights + (inputs + largest.nbytes) * workload.batch // SAMPLE
    saved = _saved_bytes(sample, model, batch)
    return 2 * weights + (inputs + saved) * workload.batch // SAMPLE


class _LargestOp(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the most that one op reads and writes, weights aside: so much must be there at once."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
        storages = {tensor.untyped_storage()._cdata: tensor.nbytes for tensor in tensors}
        self.nbytes = max(self.nbytes, sum(size for key, size in storages.items() if key not in self.weights))
        return result


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
