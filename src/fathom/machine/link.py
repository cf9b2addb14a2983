"""Host-to-device bandwidth: copies of several sizes, from pinned and from pageable memory, by the device's clock."""

from __future__ import annotations

import torch

from fathom.core.feeding import Transfer

SIZES = tuple(4096 * 8**power for power in range(6))  # 4 KiB to 128 MiB: from latency alone to bandwidth alone
REPEATS = 10  # copies of each size; one before them is not timed


def host_to_device(device: torch.device, sizes: tuple[int, ...] = SIZES) -> list[Transfer]:
    """Nothing on a CPU, whose batches are where it computes, and on accelerators without CUDA's pinned memory."""
    if device.type != "cuda":
        return []
    return [_copied(device, size, pinned) for pinned in (True, False) for size in sizes]


def _copied(device: torch.device, size: int, pinned: bool) -> Transfer:
    host = torch.ones(size, dtype=torch.uint8, pin_memory=pinned)  # written: untouched pages would share one of zeros
    target = torch.empty(size, dtype=torch.uint8, device=device)
    marks = [torch.Event(device, enable_timing=True) for _ in range(2 * (REPEATS + 1))]
    pairs = list(zip(marks[::2], marks[1::2], strict=True))
    for before, after in pairs:
        before.record()
        target.copy_(host, non_blocking=True)
        after.record()
        torch.accelerator.synchronize(device)  # one at a time: a queue of copies would hide what starting one costs
    seconds = [before.elapsed_time(after) / 1000 for before, after in pairs[1:]]
    return Transfer(bytes=size, pinned=pinned, seconds=seconds)
