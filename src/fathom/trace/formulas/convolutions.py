"""Convolutions by their definition: one multiply-add (2 FLOP) per output element and element of its window.

What Winograd or FFT algorithms save is not subtracted; adding a bias is not counted.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from fathom.trace.call import NotInTrace, Shape, TracedCall
from fathom.trace.formulas.rule import Rule


class Positions(NamedTuple):
    """Where an op has its arguments; input and weight are 0 and 1."""

    stride: int
    padding: int
    dilation: int | None = None
    bias: int | None = None
    transposed: int | None = None  # output padding and groups follow it


_FULL = Positions(stride=3, padding=4, dilation=5, bias=2, transposed=6)
_SIMPLE = Positions(stride=3, padding=4, dilation=5, bias=2)
_CUDNN = Positions(stride=3, padding=2, dilation=4)
_ONEDNN = Positions(stride=4, padding=3, dilation=5, bias=2)
_SLOW = Positions(stride=4, padding=5, bias=3)
_DEPTHWISE = Positions(stride=4, padding=5, dilation=6, bias=3)

POSITIONS: dict[str, Positions] = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _FULL),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "cudnn_convolution_relu"), _SIMPLE),
    "cudnn_convolution": _CUDNN,
    **dict.fromkeys(("mkldnn_convolution", "miopen_convolution"), _ONEDNN),
    **dict.fromkeys(("_slow_conv2d_forward", "thnn_conv2d", "slow_conv3d_forward"), _SLOW),
    **dict.fromkeys(("_conv_depthwise2d", "conv_depthwise3d"), _DEPTHWISE),
}


def _is_transposed(call: TracedCall) -> bool:
    at = POSITIONS[call.name].transposed
    return at is not None and call.value(at) is True


def _output(call: TracedCall) -> Shape:
    """The output's shape. A string as padding ("same", "valid") is not in a trace."""
    at, weight = POSITIONS[call.name], call.shape(1)
    rank = len(weight) - 2
    x = call.shape(0) if len(call.shape(0)) == len(weight) else [1, *call.shape(0)]  # unbatched input
    stride, padding = _per_axis(call, at.stride, rank), _per_axis(call, at.padding, rank)
    dilation = [1] * rank if at.dilation is None else _per_axis(call, at.dilation, rank)
    span = [dilation[i] * (weight[2 + i] - 1) for i in range(rank)]
    if at.transposed is not None and _is_transposed(call):  # the weight is [channels in, channels out per group, ...]
        extra, groups = _per_axis(call, at.transposed + 1, rank), call.integer(at.transposed + 2)
        sizes = [(x[2 + i] - 1) * stride[i] - 2 * padding[i] + span[i] + extra[i] + 1 for i in range(rank)]
        return [x[0], weight[1] * groups, *sizes]
    sizes = [(x[2 + i] + 2 * padding[i] - span[i] - 1) // stride[i] + 1 for i in range(rank)]
    return [x[0], weight[0], *sizes]


def _per_axis(call: TracedCall, index: int, rank: int) -> list[int]:
    values = call.integers(index)
    if len(values) not in (1, rank):
        raise NotInTrace(f"{call.op}: argument {index} has {len(values)} values for {rank} dimensions")
    return values * rank if len(values) == 1 else values


def _flop(call: TracedCall) -> float:
    """A window of products per output element; transposed, one per input element."""
    elements = prod(call.shape(0)) if _is_transposed(call) else prod(_output(call))
    return 2 * elements * prod(call.shape(1)[1:])  # weight[1] is channels per group, so groups are counted


def _bytes(call: TracedCall) -> float:
    bias = POSITIONS[call.name].bias
    added = call.optional_nbytes(bias) if bias is not None else 0
    return call.nbytes(0, 1) + added + prod(_output(call)) * call.width(0)


GRADIENT, INPUT, WEIGHT, TRANSPOSED, MASK = 0, 1, 2, 7, 10  # arguments of convolution_backward


def _backward_flop(call: TracedCall) -> float:
    """As much as the forward for each of the gradients of input and weight that is asked for."""
    elements = prod(call.shape(INPUT if call.value(TRANSPOSED) is True else GRADIENT))
    return 2 * elements * prod(call.shape(WEIGHT)[1:]) * sum(call.mask(MASK, 3)[:2])


def _backward_bytes(call: TracedCall) -> float:
    """The output's gradient and what each wanted gradient needs, read once; the wanted gradients, written once."""
    for_input, for_weight, for_bias = call.mask(MASK, 3)
    gradient, weight = call.shape(GRADIENT), call.shape(WEIGHT)
    moved = call.nbytes(GRADIENT)
    if for_input:
        moved += call.nbytes(WEIGHT) + prod(call.shape(INPUT)) * call.width(INPUT)
    if for_weight:
        moved += call.nbytes(INPUT) + prod(weight) * call.width(WEIGHT)
    if for_bias:
        moved += gradient[1 - len(weight)] * call.width(WEIGHT)  # channels, in a batch or not
    return moved


RULES: dict[str, Rule] = {
    **dict.fromkeys(POSITIONS, Rule(_flop, _bytes)),
    "convolution_backward": Rule(_backward_flop, _backward_bytes),
}
