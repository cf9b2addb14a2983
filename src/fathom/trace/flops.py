"""FLOP and bytes of one op call, from the shapes a trace gives; 1 MAC = 2 FLOP.

Torch's own counters miss the backward of some ops, everything under inference mode and attention on a CPU, and need
the program to run again; these formulas need the trace alone. What a trace does not tell: the types of tensors in a
list (taken as 4 bytes), the indices of aten::index and index_put (the whole table is counted), and whether padding
given as a word is "same" or "valid" (taken as "same" where torch allows that).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from fathom.trace.taxonomy import type_of

WIDTH = {"double": 8, "long int": 8, "float": 4, "int": 4, "c10::BFloat16": 2, "c10::Half": 2, "unsigned char": 1}
WIDTH |= {"bool": 1, "signed char": 1, "short int": 2, "long": 8, "c10::complex<float>": 8}
RANK = dict.fromkeys(WIDTH, 1) | {"bool": 0, "c10::complex<float>": 3}  # of types, the higher one is the result's
RANK |= dict.fromkeys(("double", "float", "c10::BFloat16", "c10::Half"), 2)
DEFAULT_WIDTH = 4  # of torch's default type, float
# torch's own numbers for types, as they stand where an op is asked for one: uint8, int8, int16, int32, int64, half,
# float, double, then complex of these three, bool, and far behind bfloat16
ASKED_WIDTH = dict(enumerate((1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1))) | {15: 2}


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
            if text.endswith("."):  # torch writes 0.0 as "0."
                return float(text)
            return json.loads(text.replace("True", "true").replace("False", "false"))
        except ValueError:
            return None

    def kind(self, index: int) -> str:
        """The type of an argument; "" where the trace has none, as for a word."""
        return self.types[index] if index < len(self.types) else ""

    def listed(self, index: int) -> list[list[int]]:
        """The shapes of a list of tensors; [] where there is none."""
        found = self.dims[index] if index < len(self.dims) else []
        return found if found and isinstance(found[0], list) else []

    def nbytes(self, index: int) -> int:
        """Of a tensor argument."""
        return prod(self.shape(index)) * WIDTH.get(self.kind(index), 0)

    def tensors(self) -> list[tuple[list[int], int]]:
        """Every tensor argument, those of lists too, as its shape and its bytes per element."""
        found = []
        for index, dims in enumerate(self.dims):
            if dims and isinstance(dims[0], list):
                found += [(inner, DEFAULT_WIDTH) for inner in dims]
            elif self.kind(index) in WIDTH:
                found.append((dims, WIDTH[self.kind(index)]))
        return found


def _is_shape(entry: Any) -> bool:
    return isinstance(entry, list) and all(isinstance(size, int) for size in entry)


def _are_shapes(entry: Any) -> bool:
    return isinstance(entry, list) and all(map(_is_shape, entry))


def _words(entries: Any) -> list[str]:
    return [entry if isinstance(entry, str) else "" for entry in entries] if isinstance(entries, list) else []


def flop(call: Call) -> float:
    """Of products and convolutions exactly; one per output element of elementwise ops; 0 for movement."""
    if _name(call) in _FORMULAS:
        return float(_by(_FORMULAS, call) or 0)  # 0 of a trace without shapes
    return float(output_elements(call)) if _kind_of(call) in _COUNTED_ONCE else 0.0


def bytes_moved(call: Call) -> float:
    """Inputs read once (of a table, the rows looked up) and the output written once; views and allocations: nothing."""
    if type_of(call.op) in _WEIGHTLESS:
        return 0.0
    read = _by(_READS, call)
    if read is None:
        read = sum(prod(shape) * width for shape, width in call.tensors())
    return float(read + output_elements(call) * output_width(call))


def output_elements(call: Call) -> int:
    """The size of the result: by formula for products and convolutions, else the largest input; of lists, all of it."""
    told = _by(_OUTPUTS, call)
    if told is not None:
        return told
    if _name(call).startswith(_EACH):
        return _listed_elements(call, 0)
    return max((prod(shape) for shape, _ in call.tensors()), default=0)


def output_width(call: Call) -> int:
    """Bytes per element of the result: its own where the op or torch's promotion tells, else the first input's."""
    name, kind, inputs = _name(call), _kind_of(call), call.tensors()
    first = inputs[0][1] if inputs else DEFAULT_WIDTH
    if call.op.endswith("_") or name.startswith(_EACH):  # in place
        return first
    if kind == "Compare" and not name.startswith("bitwise"):
        return WIDTH["bool"]
    if name in _TYPE_ASKED_AT:
        asked = call.value(_TYPE_ASKED_AT[name])
        return ASKED_WIDTH.get(asked, first) if isinstance(asked, int) else first
    return _promoted_width(call, name in _ALWAYS_FLOAT) if kind in _PROMOTED else first


def _promoted_width(call: Call, is_float: bool) -> int:
    """Torch's rule: the highest kind of type wins; a lone number counts only if its kind is above all the tensors'."""
    given = [(bool(dims), call.kind(at)) for at, dims in enumerate(call.dims) if call.kind(at) in WIDTH]
    tensors = [kind for has_size, kind in given if has_size] or [kind for _, kind in given[:1]]
    numbers = [kind for has_size, kind in given if not has_size]
    rank = max((RANK[kind] for kind in tensors), default=2)
    raised = max((RANK[kind] for kind in numbers), default=0)
    if max(rank, raised) < RANK["float"] and is_float:
        return DEFAULT_WIDTH
    if raised > rank:  # Python's own numbers come as double, and give the default type
        return max(DEFAULT_WIDTH if kind == "double" else WIDTH[kind] for kind in numbers if RANK[kind] == raised)
    return max((WIDTH[kind] for kind in tensors if RANK[kind] == rank), default=DEFAULT_WIDTH)


def _name(call: Call) -> str:
    return call.op.removeprefix("aten::").removesuffix("_")


def _kind_of(call: Call) -> str | None:
    """The op type; what is done to each tensor of a list is of the type of what is done to one."""
    return type_of(call.op) or type_of(call.op.replace(_EACH, "", 1))


def _by(rules: Mapping[str, Callable[[Call], int]], call: Call) -> int | None:
    """What the op's rule says; None where there is none, or the trace lacks what it asks for."""
    rule = rules.get(_name(call))
    try:
        return int(rule(call)) if rule else None
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return None


def _listed_elements(call: Call, *indices: int) -> int:
    return sum(prod(shape) for index in indices for shape in call.listed(index))


def _mm(call: Call) -> int:
    a, b = call.shape(0), call.shape(1)
    return 2 * prod(a) * b[-1] if a and b else 0


def _mv(call: Call) -> int:
    return 2 * prod(call.shape(0))


def _addmm(call: Call) -> int:
    a, b = call.shape(1), call.shape(2)
    return 2 * prod(a) * b[-1] if a and b else 0


def _conv_output(call: Call) -> int:
    """Output elements of a convolution; its stride, padding and dilation are arguments 3 to 5."""
    x, weight = call.shape(0), call.shape(1)
    if not x or not weight:
        return 0
    x = x if len(x) == len(weight) else [1, *x]  # without a batch
    rank = len(weight) - 2
    stride, padding, dilation = (_per_axis(call.value(3 + i), rank, d) for i, d in enumerate((1, 0, 1)))
    reach = [dilation[i] * (weight[2 + i] - 1) for i in range(rank)]
    if _is_transposed(call):  # then the weight is [channels in, channels out per group, ...]
        extra, groups = _per_axis(call.value(7), rank, 0), int(call.value(8) or 1)
        sizes = [(x[2 + i] - 1) * stride[i] - 2 * padding[i] + reach[i] + extra[i] + 1 for i in range(rank)]
        return prod([x[0], weight[1] * groups, *sizes])
    if _is_padded_by_word(call) and set(stride) == {1}:  # "same" is for this stride only
        sizes = x[2:]
    else:
        sizes = [(x[2 + i] + 2 * padding[i] - reach[i] - 1) // stride[i] + 1 for i in range(rank)]
    return prod([x[0], weight[0], *sizes])


def _is_transposed(call: Call) -> bool:
    return call.value(6) is True  # in aten::conv2d and its like, the number of groups stands there


def _is_padded_by_word(call: Call) -> bool:
    """The trace leaves words out: neither value nor type, where the arguments around it have both."""
    return len(call.concrete) > 4 and call.concrete[4] == "" and call.kind(3) != "" and call.kind(4) == ""


def _per_axis(value: Any, rank: int, default: int) -> list[int]:
    values = [default] if not isinstance(value, list) or not value else value
    return [int(v) for v in (values * rank)[:rank]] if len(values) == 1 else [int(v) for v in values]


def _conv(call: Call) -> int:
    """Every output element is a window's product; transposed, every input element is spread over a window."""
    x, weight = call.shape(0), call.shape(1)
    if not x or not weight:
        return 0
    elements = prod(x) if _is_transposed(call) else _conv_output(call)
    return 2 * elements * prod(weight[1:])  # weight[1] is channels per group, so groups are counted


def _conv_backward(call: Call) -> int:
    """For each of the two gradients asked for, as much as the forward product."""
    grad, x, weight = call.shape(0), call.shape(1), call.shape(2)
    if not grad or not weight:
        return 0
    elements = prod(x) if call.value(7) is True else prod(grad)  # transposed
    return 2 * elements * prod(weight[1:]) * _gradients_asked(call)


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


def _fused_sgd(call: Call) -> int:
    """Per element 2 (rate x gradient, subtracted), +2 with weight decay, +3 with momentum, +2 if that is Nesterov's."""
    decay, nesterov, is_first = call.value(3), call.value(7), call.value(9)
    each = 2 + (2 if decay else 0)
    if call.listed(2):  # there are buffers
        # momentum x buffer + (1 - dampening) x gradient; the first step takes the gradient as it is
        each += (0 if is_first else 3) + (2 if nesterov else 0)
    return each * _listed_elements(call, 0)


def _fused_adam(call: Call) -> int:
    """Per element 13, +1 for AMSGrad's maximum, +2 for weight decay added to the gradient.

    3 for the mean, 4 for the mean square, 3 for its corrected root plus epsilon, 3 for rate x mean / root, subtracted.
    """
    each = 13 + (1 if call.listed(4) else 0) + (2 if call.value(9) else 0)
    return each * _listed_elements(call, 0)


def _fused_adamw(call: Call) -> int:
    """As Adam, but weight decay is one multiplication of the weight."""
    return _fused_adam(call) - (_listed_elements(call, 0) if call.value(9) else 0)


def _fused_adagrad(call: Call) -> int:
    """Per element 7, +2 with weight decay.

    2 for the sum of squares, 5 for rate x gradient / (root + epsilon), subtracted.
    """
    return (7 + (2 if call.value(6) else 0)) * _listed_elements(call, 0)


def _index_selected(call: Call) -> int:
    """The table with the dimension looked up in as long as the index."""
    sizes = list(call.shape(0))
    sizes[call.value(1)] = prod(call.shape(2))
    return prod(sizes)


def _embedding_gradient(call: Call) -> int:
    """All of the table's gradient is written, unless it is sparse: then a row for each index."""
    rows = prod(call.shape(1)) if call.value(5) is True else call.value(2)
    return int(rows * call.shape(0)[-1])


def _rows_read(elements: Callable[[Call], int], index_at: int) -> Callable[[Call], int]:
    """Of a look-up: of the table as much as comes out, and the indices."""
    return lambda call: elements(call) * WIDTH[call.kind(0)] + call.nbytes(index_at)


_FORMULAS: dict[str, Callable[[Call], int]] = {
    "mm": _mm,
    "bmm": _mm,
    "mv": _mv,
    "dot": _mv,
    "addmm": _addmm,
    "_addmm_activation": _addmm,
    "baddbmm": _addmm,
    "addmv": lambda call: 2 * prod(call.shape(1)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution", "_convolution"), _conv),
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
    "_fused_sgd": _fused_sgd,
    "_fused_adam": _fused_adam,
    "_fused_adamw": _fused_adamw,
    "_fused_adagrad": _fused_adagrad,
}

_OUTPUTS: dict[str, Callable[[Call], int]] = {
    "mm": lambda call: call.shape(0)[0] * call.shape(1)[-1],
    "bmm": lambda call: prod(call.shape(0)[:-1]) * call.shape(1)[-1],
    "addmm": lambda call: call.shape(1)[0] * call.shape(2)[-1],
    "baddbmm": lambda call: prod(call.shape(1)[:-1]) * call.shape(2)[-1],
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution", "_convolution"), _conv_output),
    "embedding": lambda call: prod(call.shape(1)) * call.shape(0)[-1],
    "index_select": _index_selected,
    "gather": lambda call: prod(call.shape(2)),
    "take": lambda call: prod(call.shape(1)),
    "embedding_backward": _embedding_gradient,
    "embedding_dense_backward": _embedding_gradient,
    "index_select_backward": lambda call: prod(call.value(1)),
    "gather_backward": lambda call: prod(call.shape(1)),
    "cat": lambda call: _listed_elements(call, 0),
    "stack": lambda call: _listed_elements(call, 0),
    # weights and what is kept beside them; gradients and step numbers are only read
    "_fused_sgd": lambda call: _listed_elements(call, 0, 2),
    "_fused_adam": lambda call: _listed_elements(call, 0, 2, 3, 4),
    "_fused_adamw": lambda call: _listed_elements(call, 0, 2, 3, 4),
    "_fused_adagrad": lambda call: _listed_elements(call, 0, 2),
    "sum": lambda call: 0,
    "mean": lambda call: 0,
    "argmax": lambda call: 0,
    "fill": lambda call: 0,
    "zero": lambda call: 0,
}

# bytes read, where that is not all of the inputs
_READS: dict[str, Callable[[Call], int]] = {
    "embedding": _rows_read(_OUTPUTS["embedding"], 1),
    "index_select": _rows_read(_OUTPUTS["index_select"], 2),
    "gather": _rows_read(_OUTPUTS["gather"], 2),
    "take": _rows_read(_OUTPUTS["take"], 1),
    "gather_backward": lambda call: call.nbytes(0) + call.nbytes(3),
    "copy": lambda call: call.nbytes(1),  # the first is what is written
}

_EACH = "_foreach_"
_PROMOTED = {"Add", "Sub", "Mul", "Div", "Pow", "Relu", "ReluGrad", "Tanh", "Neg", "Compare", "Select"}
_ALWAYS_FLOAT = {"div", "true_divide", "reciprocal", "sqrt", "rsqrt", "exp", "log", "log1p", "expm1", "cos", "sin"}
_ALWAYS_FLOAT |= {"tanh", "sigmoid"}
_TYPE_ASKED_AT = {"_to_copy": 1, "softmax": 2, "log_softmax": 2}  # which argument says the type of the result
_COUNTED_ONCE = {"Add", "Sub", "Mul", "Div", "Pow", "Softmax", "Relu", "ReluGrad", "Tanh", "LSTMCell", "Neg", "Compare"}
_COUNTED_ONCE |= {"CrossEntropy", "MaxPool", "AvgPool", "BatchNorm", "BatchNormGrad", "Sum", "Max"}
_WEIGHTLESS = {"Transpose", "Tile", "Reshape", "Shape", "Allocate"}
