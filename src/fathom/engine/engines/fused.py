"""fused: the optimizer updates all weights in one kernel that reads and writes each once."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch.optim import Adagrad, Optimizer

from fathom.engine.base import Engine, Infer, Loss, model_to_look_at
from fathom.workloads.base import State, Workload


class Fused(Engine):
    name: ClassVar = "fused"

    def __init__(self, state: State, loss: Loss, infer: Infer, clip: Callable[[], object] | None = None) -> None:
        super().__init__(state, loss, infer, clip)
        if state.optimizer is not None:
            set_fused(state.optimizer)

    @classmethod
    def refusal(cls, workload: Workload, device: torch.device, phase: str) -> str | None:
        if phase == "infer":
            return "changes the optimizer, and inference has none"
        optimizer = workload.optimizer(model_to_look_at(workload))
        kind = type(optimizer).__name__
        if not has_fused_form(optimizer, device):
            return f"changes nothing: torch has no fused {kind} for {device.type}"
        if all(group["fused"] for group in optimizer.param_groups):
            return f"changes nothing: {workload.name} has a fused {kind} by itself"
        return None


def has_fused_form(optimizer: Optimizer, device: torch.device) -> bool:
    """Adagrad has one on a CPU alone."""
    missing = isinstance(optimizer, Adagrad) and device.type != "cpu"
    return not missing and all("fused" in group for group in optimizer.param_groups)


def set_fused(optimizer: Optimizer) -> None:
    """In place, so that schedules and hooks of the optimizer stay; torch reads these at every step."""
    for group in optimizer.param_groups:
        group["fused"], group["foreach"] = True, None
