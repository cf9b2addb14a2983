"""Measures how convolution backward divides into filter gradient and input gradient, where a trace does not tell.

Each distinct call is run again on random data, once for each gradient alone, and the op's time is divided in the ratio
of the two.
"""

from __future__ import annotations

from typing import Any

import torch

from fathom.machine.clock import fastest
from fathom.trace.call import TracedCall
from fathom.trace.convolution import split_backward
from fathom.trace.formulas.convolutions import MASK
from fathom.trace.rows import Breakdown

REPEATS = 3


def split_convolution_backward(found: Breakdown, device: torch.device) -> list[str]:
    """Replaces every convolution backward by its two halves, in place; returns notes on how they were split."""
    return split_backward(found, lambda inputs: _filter_share(inputs, device))


def _filter_share(inputs: TracedCall, device: torch.device) -> float | None:
    """The filter gradient's share of the time of both; None if the trace does not have all arguments."""
    arguments = _arguments(inputs, device)
    if arguments is None:
        return None
    backward = torch.ops.aten.convolution_backward
    for_filter = fastest(lambda: backward(*arguments, [False, True, False]), device, REPEATS)
    for_input = fastest(lambda: backward(*arguments, [True, False, False]), device, REPEATS)
    return for_filter / (for_filter + for_input)


def _arguments(inputs: TracedCall, device: torch.device) -> list[Any] | None:
    """The call's arguments, with random tensors of the same shapes and strides."""
    dtypes = {"float": torch.float32, "c10::BFloat16": torch.bfloat16, "c10::Half": torch.float16}
    strides = inputs.strides or []
    try:
        tensors = [
            torch.empty_strided(inputs.shape(index), strides[index], dtype=dtypes[inputs.dtype(index)], device=device)
            for index in range(3)
        ]
        # arguments 3 to 9: bias sizes, stride, padding, dilation, transposed, output padding, groups
        rest = [inputs.value(index) for index in range(4, MASK)]
    except LookupError:
        return None
    return None if any(value is None for value in rest) else [*(tensor.normal_() for tensor in tensors), None, *rest]
