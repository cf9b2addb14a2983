"""What this device can do at best, measured: a large matrix product and a large copy, not a datasheet."""

from __future__ import annotations

from functools import cache

import torch

from fathom.timing import fastest

REPEATS, BUDGET_S = 2, 0.4  # for each of the two: a ceiling is what the machine can do undisturbed


@cache
def ceilings(device: torch.device, precision: str) -> tuple[float, float]:
    """FLOP/s of a square product in the run's precision, and bytes/s (read plus written) of a copy."""
    return _product(device, precision), _copy(device)


def _product(device: torch.device, precision: str) -> float:
    size = 8192 if device.type != "cpu" else 1024
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / fastest(lambda: torch.mm(a, b, out=out), device, REPEATS, BUDGET_S)


def _copy(device: torch.device) -> float:
    count = (1 << 30 if device.type != "cpu" else 1 << 27) // 4  # past every cache
    source, target = (torch.ones(count, device=device) for _ in range(2))
    return 2 * source.nbytes / fastest(lambda: target.copy_(source), device, REPEATS, BUDGET_S)
