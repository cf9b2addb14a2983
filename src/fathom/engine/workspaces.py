"""Workspaces that CUDA libraries allocate beside tensors. Assumptions of ours, that benchmarks/memory.py tests.

cuBLAS: torch gives it a workspace per thread that launches products: one in inference, and in training another for the
thread of the backward pass. Its size depends on the architecture; CUBLAS_WORKSPACE_CONFIG changes it.

cuDNN: a convolution has a workspace while it runs, whose size depends on the algorithm, which cuDNN chooses by timing.
What does not depend on that is the layout: kernels of half precision work on NHWC tensors with at least eight channels,
those of fp32 (without TF32) on NCHW. Tensors in the other layout are copied, results too. Gradients of fp32
convolutions of 3 x 3 and 5 x 5 also need transformed tiles, as in Winograd's algorithm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MEBI = 1 << 20
HOPPER = (9, 0)
CUBLAS = {True: 32 * MEBI, False: 4096 * 1024 * 2 + 16 * 1024 * 8}  # from Hopper on, and before: ":4096:2:16:8"
FEW_CHANNELS = 8  # of an input: fewer are padded to 8 in half precision, and are not copied in fp32
TILED = ((3, 3), (5, 5))  # kernels, of stride 1
# bytes of tiles per byte of input and output. 13 convolutions on one H200: 2.2 to 8.3, median 3.1
# (convolution_backward among the temporaries of results/benchmarks/h200-memory.json, less the copies)
TILES = 3


def workspace_bytes(phase: str, capability: tuple[int, int] = HOPPER) -> int:
    """cuBLAS's, of all threads of a step together."""
    return CUBLAS[capability >= HOPPER] * (2 if phase == "train" else 1)


def convolution_bytes(op: Any, args: tuple[Any, ...], result: Any) -> int:
    """cuDNN's workspace of this op; 0 for what is no convolution, or one that runs on torch's own kernels."""
    if op is torch.ops.aten.convolution.default:
        (given, weight), made, how, backward = args[:2], result, args[3:], False
    elif op is torch.ops.aten.convolution_backward.default:
        (made, given, weight), how, backward = args[:3], args[4:], True
    else:
        return 0
    stride, transposed, groups = how[0], how[3], how[5]
    depthwise = groups == given.shape[1] > 1 and not transposed
    if given.dim() != 4 or depthwise:
        return 0
    last = any(each.is_contiguous(memory_format=torch.channels_last) for each in (given, weight) if _has_layout(each))
    if given.dtype in (torch.bfloat16, torch.float16):
        return _for_half(given, weight, made, last)
    copied = last and given.shape[1] >= FEW_CHANNELS
    copies: int = given.nbytes + made.nbytes + weight.nbytes if copied else 0
    tiled = backward and tuple(weight.shape[2:]) in TILED and set(stride) == {1}
    return copies + (TILES * (given.nbytes + made.nbytes) if tiled else 0)


def _for_half(given: Tensor, weight: Tensor, made: Tensor, last: bool) -> int:
    channels = given.shape[1]
    padded = given.nbytes // channels * max(channels, FEW_CHANNELS)
    if last:
        return padded if channels < FEW_CHANNELS else 0
    return padded + made.nbytes + weight.nbytes


def _has_layout(tensor: Tensor) -> bool:
    """Whether channels first and last differ: of one channel, or one pixel, they do not."""
    return tensor.shape[1] > 1 and tensor.shape[2:].numel() > 1
