"""A lower bound on the memory a run needs, counted on the meta device before anything is allocated.

A CPU's allocator hands out more than there is, and the kernel then kills the process without a word; a run that
cannot fit is better refused beforehand. A GPU's allocator refuses by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import psutil
import torch
from torch import Tensor, UntypedStorage
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

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


class _LargestOp(TorchFunctionMode):
    """Notes the most that one op reads and writes, weights aside: so much must be there at once."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.weights = _storages(model.parameters())
        self.nbytes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        touched = _storages(_tensors([args, list((kwargs or {}).values()), result]))
        self.nbytes = max(self.nbytes, sum(s.nbytes() for key, s in touched.items() if key not in self.weights))
        return result


def _storages(tensors: Iterable[Tensor]) -> dict[int, UntypedStorage]:
    """By their identity: views share one, and each is held, so that no number is used twice."""
    found = (tensor.untyped_storage() for tensor in tensors)
    return {id(storage): storage for storage in found}


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _saved_bytes(workload: Workload, model: torch.nn.Module, batch: dict[str, Tensor]) -> int:
    """What backward needs of a forward pass, beside the weights and the batch itself."""
    own, saved = _storages([*model.parameters(), *batch.values()]), {}

    def keep(tensor: Tensor) -> Tensor:
        saved.update(_storages([tensor]))
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        workload.forward(model, batch)
    return sum(storage.nbytes() for key, storage in saved.items() if key not in own)
