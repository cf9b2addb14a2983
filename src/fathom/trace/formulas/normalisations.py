"""Normalisations: FLOP per element by the elementary steps of their definitions.

Forward, in training: mean 1, variance 3 (difference, square, sum), normalise 2 (difference, scale), and 1 each for
weight and bias. Batch normalisation in inference is a scale and a shift. RMS normalisation: square, sum, scale, and 1
for the weight.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from fathom.trace.call import DEFAULT_WIDTH, NotInTrace, TracedCall
from fathom.trace.formulas.rule import Rule

RUNNING = (3, 4)  # where batch normalisation has the running mean and variance


class Forward(NamedTuple):
    """Where an op has its weight (a bias follows) and what it computes."""

    weight: int
    steps: int
    has_bias: bool = True


def _scaled(call: TracedCall, at: Forward) -> int:
    """How many of weight and bias there are."""
    return sum(call.is_tensor(index) for index in range(at.weight, at.weight + 1 + at.has_bias))


def _affine_bytes(call: TracedCall, at: Forward) -> int:
    return call.optional_nbytes(*range(at.weight, at.weight + 1 + at.has_bias))


def _statistics_width(call: TracedCall, x: int = 0) -> int:
    """Of a mean or a scale: half precision has them in float."""
    return max(DEFAULT_WIDTH, call.width(x))


def _by_row(at: Forward, results: int) -> Rule:
    """(input, normalized shape, weight ...): so many statistics of each row are results, too."""

    def moved(call: TracedCall) -> float:
        elements, row = prod(call.shape(0)), prod(call.integers(1))
        statistics = results * (elements // max(1, row)) * _statistics_width(call)
        return call.nbytes(0) + _affine_bytes(call, at) + elements * call.width(0) + statistics

    return Rule(lambda call: prod(call.shape(0)) * (at.steps + _scaled(call, at)), moved)


def _group_bytes(call: TracedCall) -> float:
    """(input, weight, bias, N, C, HxW, groups, epsilon): mean and scale of each group are results, too."""
    statistics = 2 * call.integer(3) * call.integer(6) * _statistics_width(call)
    return call.nbytes(0) + call.optional_nbytes(1, 2) + prod(call.shape(0)) * call.width(0) + statistics


_GROUP = Rule(lambda call: prod(call.shape(0)) * (6 + _scaled(call, Forward(1, 6))), _group_bytes)


def _is_training(call: TracedCall) -> bool:
    """(input, weight, bias, running mean, running variance, training, ...); with_update ops always train."""
    if "with_update" in call.name:
        return True
    found = call.value(5 if call.arguments > 6 else 3)  # without running statistics there are six arguments
    if not isinstance(found, bool):
        raise NotInTrace(f"{call.op}: not known whether it trains")
    return found


def _batch_flop(call: TracedCall) -> float:
    steps = 6 + _scaled(call, Forward(1, 6)) if _is_training(call) else 2
    return prod(call.shape(0)) * steps


def _batch_bytes(call: TracedCall) -> float:
    """Running statistics are read, and in training written; mean and scale of each channel are results of training."""
    running = call.optional_nbytes(3, 4) if call.arguments > 6 else 0
    moved = call.nbytes(0) + call.optional_nbytes(1, 2) + running + prod(call.shape(0)) * call.width(0)
    if _is_training(call):
        moved += running + 2 * call.shape(0)[1] * _statistics_width(call)
    return moved


class Backward(NamedTuple):
    """Where the backward op has its arguments, and its steps per element."""

    gradient: int
    x: int
    weight: int
    statistics: tuple[int, ...]
    mask: int | None  # which of the gradients of input, weight and bias are asked for; None: all
    gradients: int = 3
    normalise: int = 2  # the normalised input again: difference and scale
    trains: int | None = None


def _wanted(call: TracedCall, at: Backward) -> list[bool]:
    asked = [True] * at.gradients if at.mask is None else call.mask(at.mask, at.gradients)
    return [*asked, False][:3]


def _backward_flop(call: TracedCall, at: Backward) -> float:
    """The steps of each gradient that is asked for.

    Weight: product and sum, 2. Bias: sum, 1. Input: 1 for the weight, then the mean (1, not in RMS normalisation) and
    the mean with the normalised input (2), and what they give together (4, or 3); in inference a scale alone.
    """
    for_input, for_weight, for_bias = _wanted(call, at)
    trains = at.trains is None or call.value(at.trains) is True
    steps = 2 * for_weight + for_bias
    if for_input:
        steps += call.is_tensor(at.weight) + ((7 if at.normalise == 2 else 5) if trains else 1)
    if for_weight or (for_input and trains):
        steps += at.normalise
    return prod(call.shape(at.x)) * steps


def _backward_bytes(call: TracedCall, at: Backward) -> float:
    for_input, for_weight, for_bias = _wanted(call, at)
    per_channel = prod(call.shape(at.weight)) * call.width(at.weight) if call.is_tensor(at.weight) else 0
    written = for_input * prod(call.shape(at.x)) * call.width(at.x) + (for_weight + for_bias) * per_channel
    trains = at.trains is None or call.value(at.trains) is True
    statistics = at.statistics if trains else RUNNING
    read = call.nbytes(at.gradient, at.x) + call.optional_nbytes(at.weight, *statistics)
    return read + written


def _backward(at: Backward) -> Rule:
    return Rule(lambda call: _backward_flop(call, at), lambda call: _backward_bytes(call, at))


_LAYER, _RMS = Forward(2, steps=6), Forward(2, steps=3, has_bias=False)
_BATCH = (
    "batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit _batch_norm_with_update"
)

# a weight over its norms, times g: squares 1, their sum 1, the scale 1, and for each norm a root and a division; back:
# the gradient of g as a sum of products 2 and a division for each, the direction taken out 2, the scale 1 and two each
_WEIGHT = Rule(
    lambda call: 3 * prod(call.shape(0)) + 2 * prod(call.shape(1)),
    lambda call: 2 * call.nbytes(0) + call.nbytes(1) + prod(call.shape(1)) * max(call.width(0), DEFAULT_WIDTH),
)
_WEIGHT_BACKWARD = Rule(
    lambda call: 5 * prod(call.shape(1)) + 3 * prod(call.shape(2)),
    lambda call: call.nbytes(0, 1, 2, 3) + call.nbytes(1, 2),
)

RULES: dict[str, Rule] = {
    "_weight_norm": _WEIGHT,
    "_weight_norm_interface": _WEIGHT,
    "_weight_norm_interface_backward": _WEIGHT_BACKWARD,
    "layer_norm": _by_row(_LAYER, results=0),
    "native_layer_norm": _by_row(_LAYER, results=2),
    "rms_norm": _by_row(_RMS, results=0),
    "_fused_rms_norm": _by_row(_RMS, results=1),
    "native_group_norm": _GROUP,
    **dict.fromkeys(_BATCH.split(), Rule(_batch_flop, _batch_bytes)),
    "native_layer_norm_backward": _backward(Backward(0, 1, 5, (3, 4), mask=7)),
    "_fused_rms_norm_backward": _backward(Backward(0, 1, 4, (3,), mask=5, gradients=2, normalise=1)),
    "native_group_norm_backward": _backward(Backward(0, 1, 4, (2, 3), mask=9)),
    "native_batch_norm_backward": _backward(Backward(0, 1, 2, (5, 6), mask=9, trains=7)),
    "batch_norm_backward": _backward(Backward(0, 1, 2, (5, 6), mask=9, trains=7)),
    "cudnn_batch_norm_backward": _backward(Backward(1, 0, 2, (5, 6), mask=None)),
}
