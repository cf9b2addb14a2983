"""channels_last: images and filters with their channels side by side in memory, as tensor cores read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from fathom.data.base import Batch
from fathom.engine.base import Engine, Infer, Loss, model_to_look_at
from fathom.workloads.base import Output, State, Workload

IMAGE_DIMENSIONS = 4  # batch, channels, height, width: what the memory format is defined for


class ChannelsLast(Engine):
    name: ClassVar = "channels_last"

    def __init__(self, state: State, loss: Loss, infer: Infer, clip: Callable[[], object] | None = None) -> None:
        super().__init__(state, loss, infer, clip)
        state.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @classmethod
    def refusal(cls, workload: Workload, device: torch.device, phase: str) -> str | None:
        weights = model_to_look_at(workload).parameters()
        filters = [weight for weight in weights if weight.dim() == IMAGE_DIMENSIONS]
        if not filters:
            return f"changes nothing: {workload.name} has no convolution over images"
        if all(weight.is_contiguous(memory_format=torch.channels_last) for weight in filters):
            return f"changes nothing: {workload.name} is in this memory format by itself"
        return None

    def gradients(self, batch: Batch) -> Tensor:
        return super().gradients(_channels_last(batch))

    def output(self, batch: Batch) -> Output:
        return super().output(_channels_last(batch))


def _channels_last(batch: Batch) -> Batch:
    return {
        name: column.contiguous(memory_format=torch.channels_last) if column.dim() == IMAGE_DIMENSIONS else column
        for name, column in batch.items()
    }
