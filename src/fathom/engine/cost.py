"""What a network costs, counted rather than timed: parameters, multiply-accumulates and floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from fathom.workloads.base import Workload


@dataclass(frozen=True)
class Cost:
    """1 MAC = 2 FLOP. Products and convolutions are counted; elementwise work is not, as in the papers."""

    parameters: int
    macs_per_item: int  # forward
    train_flop_per_item: int  # forward and backward


def _backward(grad: torch.Size, image: torch.Size, weight: torch.Size, *rest: Any, **_: Any) -> int:
    """Each gradient asked for costs what the forward pass did; torch's own count forgets groups in the filter's."""
    asked: list[bool] = rest[-1]
    return 2 * prod(grad) * prod(weight[1:]) * sum(asked[:2])


def parameters(workload: Workload) -> int:
    """Counted on the meta device, where no weight is ever allocated."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in workload.model().parameters())


def cost(workload: Workload) -> Cost:
    """The workload's network on one batch of its synthetic data, on the meta device: exact, and instant."""
    batch = {name: column.to("meta") for name, column in workload.example().items()}
    with torch.device("meta"):
        model = workload.model()
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _backward}) as counter:
        prediction = workload.forward(model, batch)
        forward = counter.get_total_flops()
        prediction.sum().backward()  # type: ignore[no-untyped-call]
        total = counter.get_total_flops()
    items = workload.batch
    return Cost(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        macs_per_item=forward // 2 // items,
        train_flop_per_item=total // items,
    )
