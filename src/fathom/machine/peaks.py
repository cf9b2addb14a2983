"""What this device can do at best, measured: a large matrix product and a large copy, not a datasheet."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil
import torch

from fathom.machine.clock import fastest
from fathom.machine.host import affinity

REPEATS, BUDGET_S = 2, 0.2  # for each of the two: a ceiling is what the machine can do undisturbed
LONG_ENOUGH_S = 0.01  # for a product: a shorter one is in good part the start of its threads
TRIAL_S = 0.03  # of a size, so that one disturbed product does not pass for a long one
SMALLEST, LARGEST = 128, 8192  # rows of it; a CPU without bf16 instructions is busy with 128 for long enough
UNKNOWN_CACHE = 64 << 20  # bytes, where the system does not tell
LEAST_COPIED, MOST_COPIED = 64 << 20, 1 << 30  # bytes: fetching more memory would take longer than all the copying
CPUS = Path("/sys/devices/system/cpu")


@cache
def ceilings(device: torch.device, precision: str) -> tuple[float, float]:
    """FLOP/s of a square product in the run's precision, and bytes/s (read plus written) of a copy."""
    return _product(device, torch.bfloat16 if precision == "bf16" else torch.float32), _copy(device)


def _product(device: torch.device, kind: torch.dtype) -> float:
    """Many cores are through with a small product before they have all begun: larger until it takes a while."""
    size = SMALLEST if device.type == "cpu" else LARGEST
    work = _multiplication(size, device, kind)
    while size < LARGEST and fastest(work, device, REPEATS, TRIAL_S) < LONG_ENOUGH_S:
        size *= 2
        work = _multiplication(size, device, kind)
    return 2 * size**3 / fastest(work, device, REPEATS, BUDGET_S)


def _multiplication(size: int, device: torch.device, kind: torch.dtype) -> Callable[[], object]:
    tile = torch.randn(SMALLEST, SMALLEST, device=device, dtype=kind)
    # a CPU draws random numbers on one core only, which takes longer than the product
    a, b = (tile.repeat(size // SMALLEST, size // SMALLEST) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _copy(device: torch.device) -> float:
    count = (1 << 30 if device.type != "cpu" else _bytes_past_cache()) // 4
    source, target = (torch.ones(count, device=device) for _ in range(2))
    return 2 * source.nbytes / fastest(lambda: target.copy_(source), device, REPEATS, BUDGET_S)


def _bytes_past_cache() -> int:
    """Twice the last-level cache, so that source and target are four times as large; within what memory there is."""
    wanted = max(2 * (last_level_cache_bytes() or UNKNOWN_CACHE), LEAST_COPIED)
    return min(wanted, MOST_COPIED, psutil.virtual_memory().available // 8)


def last_level_cache_bytes(cpus: Path = CPUS) -> int | None:
    """All last-level caches of the cores this process may use, together; None where the system does not tell."""
    sizes: dict[tuple[int, str], int] = {}
    for number in affinity() or range(os.cpu_count() or 1):
        for folder in (cpus / f"cpu{number}" / "cache").glob("index*"):
            try:
                size = int((folder / "size").read_text().strip().removesuffix("K")) << 10
                sizes[int((folder / "level").read_text()), (folder / "shared_cpu_list").read_text()] = size
            except (OSError, ValueError):
                continue
    last = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == last) or None
