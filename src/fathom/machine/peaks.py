"""Measured peaks of a device: FLOP/s of a large matrix product and bytes/s of a large copy."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import psutil
import torch

from fathom.machine.clock import fastest
from fathom.machine.host import affinity

REPEATS, BUDGET_S = 2, 0.2  # of each measurement; the fastest repeat counts, as a peak is undisturbed
MIN_PRODUCT_S = 0.01  # a shorter product is dominated by starting its threads
TRIAL_S = 0.03  # time to try a size: one disturbed product must not look long enough
MIN_ROWS, MAX_ROWS = 128, 8192  # of the square matrices; a CPU without bf16 instructions is slow even with 128
DEFAULT_CACHE_BYTES = 64 << 20  # assumed where the system reports none
MIN_COPY_BYTES, MAX_COPY_BYTES = 64 << 20, 1 << 30  # allocating more would take longer than copying
DTYPES = {
    **{"fp32": torch.float32, "tf32": torch.float32},  # tf32 is a switch of the process
    **{"bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64},
}
CPUS = Path("/sys/devices/system/cpu")


@cache
def ceilings(device: torch.device, precision: str | None) -> tuple[float | None, float | None]:
    """FLOP/s of a square product in the run's precision, and bytes/s (read plus written) of a copy.

    None where the precision is mixed or not known, the device has no such product, or its memory is full.
    """
    dtype = DTYPES.get(precision or "")
    return None if dtype is None else _product(device, dtype), _copy(device)


def _product(device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOP/s of a square product; on a CPU it grows until it takes MIN_PRODUCT_S."""
    size = MIN_ROWS if device.type == "cpu" else MAX_ROWS
    try:
        work = _multiplication(size, device, dtype)
        work()
    except (RuntimeError, TypeError):  # a device without this type: fp64 on Apple's, say
        return None
    while size < MAX_ROWS and fastest(work, device, REPEATS, TRIAL_S) < MIN_PRODUCT_S:
        size *= 2
        work = _multiplication(size, device, dtype)
    return 2 * size**3 / fastest(work, device, REPEATS, BUDGET_S)


def _multiplication(size: int, device: torch.device, dtype: torch.dtype) -> Callable[[], object]:
    tile = torch.randn(MIN_ROWS, MIN_ROWS, device=device, dtype=dtype)
    # a CPU draws random numbers on one core, which would take longer than the product
    a, b = (tile.repeat(size // MIN_ROWS, size // MIN_ROWS) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _copy(device: torch.device) -> float | None:
    count = (1 << 30 if device.type != "cpu" else _bytes_past_cache()) // 4
    try:
        source, target = (torch.ones(count, device=device) for _ in range(2))
    except torch.OutOfMemoryError:
        return None
    return 2 * source.nbytes / fastest(lambda: target.copy_(source), device, REPEATS, BUDGET_S)


def _bytes_past_cache() -> int:
    """Twice the last-level cache, so that source and target together are four times its size; within free memory."""
    wanted = max(2 * (last_level_cache_bytes() or DEFAULT_CACHE_BYTES), MIN_COPY_BYTES)
    return min(wanted, MAX_COPY_BYTES, psutil.virtual_memory().available // 8)


def last_level_cache_bytes(cpus: Path = CPUS) -> int | None:
    """Total size of the last-level caches of the usable cores; None if the system does not report it."""
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
