"""FLOP and bytes of one op call, from the shapes a trace gives; 1 MAC = 2 FLOP.

Torch's own counters miss the backward of some ops, everything under inference mode and attention on a CPU, and need
the program to run again; these formulas need the trace alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from fathom.taxonomy import type_of

WIDTH = {"double": 8, "long int": 8, "float": 4, "int": 4, "c10::BFloat16": 2, "c10::Half": 2, "unsigned char": 1}
WIDTH |= {"bool": 1, "signed char": 1, "short int": 2, "long": 8, "c10::complex<float>": 8}


class Call:
    """One op's inputs as the trace wrote them: dimensions, types, and the values of what is no tensor."""

    def __init__(self, op: str, dims: list[Any], types: list[str], concrete: list[str]) -> None:
        self.op = op
        self.dims, self.types, self.concrete = dims, types, concrete

    @classmethod
    def traced(cls, op: str, args: Mapping[str, Any]) -> Call:
        """From an event's args; what is not as torch writes it counts as not given."""
        dims, types, concrete = (args.get(key) for key in ("Input Dims", "Input type", "Concrete Inputs"))
        sound = isinstance(dims, list) and all(_is_shape(entry) or _are_shapes(entry) for entry in dims)
        return cls(op, dims if isinstance(dims, list) and sound else [], _words(types), _words(concrete))

    def shape(self, index: int) -> list[int]:
        """The dimensions of a tensor argument; [] where there is none."""
        found = self.dims[index] if index < len(self.dims) else []
        return found if not found or isinstance(found[0], int) else []

    def value(self, index: int) -> Any:
        """A number, switch or list given as an argument; None where the trace has none."""
        text = self.concrete[index] if index < len(self.concrete) else ""
        try:
            return json.loads(text.replace("True", "true").replace("False", "false"))
        except ValueError:
            return None

    def tensors(self) -> list[tuple[list[int], int]]:
        """Every tensor argument, those of lists too, as its shape and its bytes per element."""
        found = []
        for index, dims in enumerate(self.dims):
            kind = self.types[index] if index < len(self.types) else ""
            if dims and isinstance(dims[0], list):
                found += [(inner, 4) for inner in dims]
            elif kind in WIDTH:
                found.append((dims, WIDTH[kind]))
        return found


def _is_shape(entry: Any) -> bool:
    return isinstance(entry, list) and all(isinstance(size, int) for size in entry)


def _are_shapes(entry: Any) -> bool:
    return isinstance(entry, list) and all(map(_is_shape, entry))


def _words(entries: Any) -> list[str]:
    return [entry if isinstance(entry, str) else "" for entry in entries] if isinstance(entries, list) else []


def flop(call: Call) -> float:
    """Of products and convolutions exactly; one per output element of elementwise ops; 0 for movement."""
    formula = _FORMULAS.get(call.op.removeprefix("aten::").removesuffix("_"))
    if formula is not None:
        try:
            return float(formula(call))
        except IndexError:  # a trace without shapes
            return 0.0
    return float(output_elements(call)) if type_of(call.op) in _COUNTED_ONCE else 0.0


def bytes_moved(call: Call) -> float:
    """Inputs read once and the output written once; views and allocations move nothing."""
    if type_of(call.op) in _WEIGHTLESS:
        return 0.0
    inputs = call.tensors()
    read = sum(prod(shape) * width for shape, width in inputs)
    width = inputs[0][1] if inputs else 4
    return float(read + output_elements(call) * width)


def output_elements(call: Call) -> int:
    """The size of the result: by formula for products and convolutions, else the largest input."""
    rule = _OUTPUTS.get(call.op.removeprefix("aten::").removesuffix("_"))
    if rule is not None:
        try:
            return rule(call)
        except IndexError:
            return 0
    return max((prod(shape) for shape, _ in call.tensors()), default=0)


def _mm(call: Call) -> int:
    a, b = call.shape(0), call.shape(1)
    return 2 * prod(a) * b[-1] if a and b else 0


def _mv(call: Call) -> int:
    return 2 * prod(call.shape(0))


def _addmm(call: Call) -> int:
    a, b = call.shape(1), call.shape(2)
    return 2 * prod(a) * b[-1] if a and b else 0


def _conv_output(call: Call, weight_at: int = 1, first: int = 3) -> list[int]:
    """Output dimensions of a convolution whose stride, padding and dilation start at argument `first`."""
    x, weight = call.shape(0), call.shape(weight_at)
    if not x or not weight:
        return []
    rank = len(weight) - 2
    stride, padding, dilation = (_per_axis(call.value(first + i), rank, d) for i, d in enumerate((1, 0, 1)))
    spatial = [
        (x[2 + i] + 2 * padding[i] - dilation[i] * (weight[2 + i] - 1) - 1) // stride[i] + 1 for i in range(rank)
    ]
    return [x[0], weight[0], *spatial]


def _per_axis(value: Any, rank: int, default: int) -> list[int]:
    values = [default] if not isinstance(value, list) or not value else value
    return [int(v) for v in (values * rank)[:rank]] if len(values) == 1 else [int(v) for v in values]


def _conv(call: Call) -> int:
    out, weight = _conv_output(call), call.shape(1)
    return 2 * prod(out) * prod(weight[1:]) if out else 0  # weight[1] is channels per group, so groups are counted


def _conv_backward(call: Call) -> int:
    """Gradient out x weight for each of the two gradients asked for, each as large as the forward product."""
    grad, weight = call.shape(0), call.shape(2)
    asked = _gradients_asked(call)
    return 2 * prod(grad) * prod(weight[1:]) * asked if grad and weight else 0


def _gradients_asked(call: Call) -> int:
    mask = call.value(10)
    return sum(bool(wanted) for wanted in mask[:2]) if isinstance(mask, list) else 2


def _attention(call: Call) -> int:
    query, key, value = call.shape(0), call.shape(1), call.shape(2)
    if not (query and key and value):
        return 0
    return 2 * prod(query) * key[-2] + 2 * prod(query[:-1]) * key[-2] * value[-1]


def _attention_backward(call: Call) -> int:
    """Scores again, then the gradients of value, of the scores, of query and of key: five products for two."""
    query, key, value = call.shape(1), call.shape(2), call.shape(3)
    if not (query and key and value):
        return 0
    scores, values = 2 * prod(query) * key[-2], 2 * prod(query[:-1]) * key[-2] * value[-1]
    return 3 * scores + 2 * values


def _rnn_layer(call: Call) -> int:
    """One direction of one LSTM layer (oneDNN): input [T, B, I], weights [4H, I] and [4H, H]."""
    x, w_input, w_hidden = call.shape(0), call.shape(1), call.shape(2)
    return 2 * x[0] * x[1] * (prod(w_input) + prod(w_hidden)) if x and w_input and w_hidden else 0


def _rnn_stack(call: Call) -> int:
    """cuDNN's RNN: input [T, B, I] and the list of its weight matrices."""
    x = call.shape(0)
    weights = call.dims[1] if len(call.dims) > 1 else []
    matrices = [prod(shape) for shape in weights if isinstance(shape, list) and len(shape) == 2]
    return 2 * x[0] * x[1] * sum(matrices) if x else 0


_FORMULAS: dict[str, Callable[[Call], int]] = {
    "mm": _mm,
    "bmm": _mm,
    "mv": _mv,
    "dot": _mv,
    "addmm": _addmm,
    "_addmm_activation": _addmm,
    "baddbmm": _addmm,
    "addmv": lambda call: 2 * prod(call.shape(1)),
    "conv2d": _conv,
    "conv1d": _conv,
    "convolution": _conv,
    "convolution_backward": _conv_backward,
    "mkldnn_rnn_layer": _rnn_layer,
    "mkldnn_rnn_layer_backward": lambda call: 2 * _rnn_layer(call),
    "_cudnn_rnn": _rnn_stack,
    "_cudnn_rnn_backward": lambda call: 2 * _rnn_stack(call),
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention_backward": _attention_backward,
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
}

_OUTPUTS: dict[str, Callable[[Call], int]] = {
    "mm": lambda call: call.shape(0)[0] * call.shape(1)[-1],
    "bmm": lambda call: prod(call.shape(0)[:-1]) * call.shape(1)[-1],
    "addmm": lambda call: call.shape(1)[0] * call.shape(2)[-1],
    "baddbmm": lambda call: prod(call.shape(1)[:-1]) * call.shape(2)[-1],
    "conv2d": lambda call: prod(_conv_output(call)),
    "convolution": lambda call: prod(_conv_output(call)),
    "sum": lambda call: 0,
    "mean": lambda call: 0,
    "argmax": lambda call: 0,
    "fill": lambda call: 0,
    "zero": lambda call: 0,
}

_COUNTED_ONCE = {"Add", "Sub", "Mul", "Div", "Pow", "Softmax", "Relu", "ReluGrad", "Tanh", "LSTMCell", "Neg", "Compare"}
_COUNTED_ONCE |= {"CrossEntropy", "MaxPool", "AvgPool", "BatchNorm", "BatchNormGrad", "Sum", "Max"}
_WEIGHTLESS = {"Transpose", "Tile", "Reshape", "Shape", "Allocate"}
