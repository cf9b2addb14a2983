"""What a model keeps in the memory of its device from step to step: parameters, gradients, the optimizer's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fathom.workloads.base import State

ALLOCATED_BLOCK = 512  # bytes: a GPU's allocator gives whole blocks


def bytes_of(state: State) -> dict[str, int]:
    """What a step finds allocated on its device: parameters with buffers, gradients and the optimizer's state."""
    networks = [state.model, *state.beside.values()]
    weights = [weight for network in networks for weight in network.parameters()]
    held = {
        "parameters": [*weights, *(buffer for network in networks for buffer in network.buffers())],
        "gradients": [weight.grad for weight in weights if weight.grad is not None],
        "optimizer state": _tensors(dict(state.optimizer.state)) if state.optimizer else [],
    }
    block = 1 if state.device.type == "cpu" else ALLOCATED_BLOCK
    return {name: sum(-(-size // block) * block for size in _sizes(tensors, state)) for name, tensors in held.items()}


def _sizes(tensors: Sequence[Tensor], state: State) -> list[int]:
    """Of the memory behind tensors, each once, as weights may be tied or views of one another."""
    own = [tensor for tensor in tensors if tensor.device.type == state.device.type and tensor.layout == torch.strided]
    storages = [tensor.untyped_storage() for tensor in own]
    return list({storage._cdata: storage.nbytes() for storage in storages}.values())


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return [tensor for each in inside for tensor in _tensors(each)]
