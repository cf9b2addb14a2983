"""What a model keeps in the memory of its device from step to step: parameters, gradients, the optimizer's state."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fathom.workloads.base import State

ALLOCATED_BLOCK = 512  # bytes: a GPU's allocator gives whole blocks


class Held:
    """What a step finds allocated on its device, made before some steps and asked after them."""

    def __init__(self, state: State) -> None:
        self.state = state
        # an engine may free gradients and allocate new ones in every step: these are found in the trace
        self._gradients = [weakref.ref(weight.grad) for weight in state.weights if weight.grad is not None]

    def bytes(self) -> dict[str, int]:
        """Parameters with buffers, optimizer state, and gradients and a batch that were there before the steps."""
        networks = [self.state.model, *self.state.beside.values()]
        held = {
            "parameters": [each for network in networks for each in (*network.parameters(), *network.buffers())],
            "gradients": [gradient for each in self._gradients if (gradient := each()) is not None],
            "optimizer state": _tensors(dict(self.state.optimizer.state)) if self.state.optimizer else [],
            "batch": _tensors(self.state.source),  # of a user's model, which is given all of it
        }
        block = 1 if self.state.device.type == "cpu" else ALLOCATED_BLOCK
        return {
            name: sum(-(-size // block) * block for size in _sizes(tensors, self.state))
            for name, tensors in held.items()
        }


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
