"""Recurrent layers that a library computes in one op: the FLOP of their matrix products.

The workspace that a training pass keeps for its backward pass has a size of the library's own, and is not counted.
"""

from __future__ import annotations

from math import prod

from fathom.trace.call import NotInTrace, TracedCall
from fathom.trace.formulas.rule import Rule


def _onednn_flop(call: TracedCall) -> float:
    """One direction of one layer: input [T, B, I], weights [4H, I] and [4H, H]."""
    return 2 * prod(call.shape(0)[:-1]) * (prod(call.shape(1)) + prod(call.shape(2)))


def _onednn_bytes(call: TracedCall) -> float:
    """Input, four weights and biases, two states; the output at each step and both states."""
    time, batch, _ = call.shape(0)
    hidden = call.shape(2)[-1]
    return call.nbytes(*range(7)) + (time + 2) * batch * hidden * call.width(0)


def _onednn_backward_bytes(call: TracedCall) -> float:
    """All of it again with the outputs (7 to 9) and their gradients (10 to 12); gradients of the first seven."""
    written = sum(prod(call.shape(index)) * call.width(index) for index in range(7))
    return call.nbytes(*range(10)) + call.optional_nbytes(10, 11, 12) + written


def _cudnn_flop(call: TracedCall) -> float:
    """All layers: input [T, B, I] (or packed [rows, I]) and the list of weights, of which matrices multiply."""
    return 2 * prod(call.shape(0)[:-1]) * sum(prod(shape) for shape in call.shapes(1) if len(shape) == 2)


def _cudnn_weights(call: TracedCall) -> int:
    """Elements of the weights, which also lie in one buffer (3), where it was made."""
    return call.list_elements(1)


def _cudnn_bytes(call: TracedCall) -> float:
    """(input, weights, ..., 4 and 5 states, 7 hidden size, 8 projection, 13 bidirectional)"""
    rows, width = prod(call.shape(0)[:-1]), call.width(0)
    hidden = (call.integer(8) or call.integer(7)) * (2 if call.value(13) is True else 1)
    states = call.nbytes(4) + call.optional_nbytes(5)
    return call.nbytes(0) + _cudnn_weights(call) * width + 2 * states + rows * hidden * width


def _cudnn_backward_bytes(call: TracedCall) -> float:
    """(input, weights, ..., 4 and 5 states, 6 output, 7 to 9 gradients, ..., 21 which gradients are asked for)"""
    wanted, width = call.mask(21, 4), call.width(0)
    sizes = [prod(call.shape(0)), prod(call.shape(4)), 0, _cudnn_weights(call)]
    if call.is_tensor(5):
        sizes[2] = prod(call.shape(5))
    written = sum(size for size, asked in zip(sizes, wanted, strict=True) if asked) * width
    return call.nbytes(0, 4, 6) + call.optional_nbytes(5, 7, 8, 9) + _cudnn_weights(call) * width + written


def _cudnn_backward_flop(call: TracedCall) -> float:
    """As much as the forward for what goes back through time, and again for the weights' gradients."""
    wanted = call.mask(21, 4)
    if not any(wanted):
        raise NotInTrace(f"{call.op}: no gradient")
    return _cudnn_flop(call) * (2 if wanted[3] else 1)


RULES: dict[str, Rule] = {
    "mkldnn_rnn_layer": Rule(_onednn_flop, _onednn_bytes),
    "mkldnn_rnn_layer_backward": Rule(lambda call: 2 * _onednn_flop(call), _onednn_backward_bytes),
    "_cudnn_rnn": Rule(_cudnn_flop, _cudnn_bytes),
    "_cudnn_rnn_backward": Rule(_cudnn_backward_flop, _cudnn_backward_bytes),
}
