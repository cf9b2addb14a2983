"""What this device can do at best, measured: a large matrix product and a large copy, not a datasheet."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache

import torch

BUDGET_S = 0.4  # for each of the two


@cache
def ceilings(device: torch.device, precision: str) -> tuple[float, float]:
    """FLOP/s of a square product in the run's precision, and bytes/s (read plus written) of a copy."""
    return _product(device, precision), _copy(device)


def _product(device: torch.device, precision: str) -> float:
    size = 8192 if device.type != "cpu" else 1024
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / _fastest(lambda: torch.mm(a, b, out=out), device)


def _copy(device: torch.device) -> float:
    count = (1 << 30 if device.type != "cpu" else 1 << 27) // 4  # past every cache
    source, target = (torch.ones(count, device=device) for _ in range(2))
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source), device)


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    """The least time of a call within the budget: a ceiling is what the machine can do undisturbed."""
    best, stop = float("inf"), time.perf_counter() + BUDGET_S
    work()
    while best == float("inf") or time.perf_counter() < stop:
        _wait(device)
        begun = time.perf_counter()
        work()
        _wait(device)
        best = min(best, time.perf_counter() - begun)
    return best


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
