"""What CUDA libraries take of torch's allocator beside tensors: cuBLAS's workspaces. An assumption of ours.

torch gives cuBLAS a workspace per thread that launches products: one in inference, and in training another for the
thread of the backward pass. Its size depends on the architecture; CUBLAS_WORKSPACE_CONFIG changes it.
"""

from __future__ import annotations

MEBI = 1 << 20
HOPPER = (9, 0)
CUBLAS = {True: 32 * MEBI, False: 4096 * 1024 * 2 + 16 * 1024 * 8}  # from Hopper on, and before: ":4096:2:16:8"


def workspace_bytes(phase: str, capability: tuple[int, int] = HOPPER) -> int:
    """Of all threads of a step together."""
    return CUBLAS[capability >= HOPPER] * (2 if phase == "train" else 1)
