"""FLOP and bytes of one op call, from the shapes in a trace; 1 MAC = 2 FLOP.

Torch's own counters miss the backward of some ops, everything under inference mode and attention on a CPU, and require
running the program again; these formulas need only the trace. A trace lacks the dtypes of tensors in a list (assumed to
have 4 bytes), the indices of aten::index and index_put (the whole table is counted), and string arguments: whether
padding is "same" or "valid" (assumed to be "same" where torch allows it).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from fathom.trace.taxonomy import type_of

WIDTH = {"double": 8, "long int": 8, "float": 4, "int": 4, "c10::BFloat16": 2, "c10::Half": 2, "unsigned char": 1}
WIDTH |= {"bool": 1, "signed char": 1, "short int": 2, "long": 8, "c10::complex<float>": 8}
# category of each dtype in torch's type promotion: the highest one wins
PROMOTION_RANK = dict.fromkeys(WIDTH, 1) | {"bool": 0, "c10::complex<float>": 3}
PROMOTION_RANK |= dict.fromkeys(("double", "float", "c10::BFloat16", "c10::Half"), 2)
DEFAULT_WIDTH = 4  # bytes of torch's default dtype, float32
# bytes by c10::ScalarType number, as a dtype argument appears in a trace: uint8, int8, int16, int32, int64, half,
# float, double, complex of these three, bool, and 15 for bfloat16
SCALAR_TYPE_WIDTH = dict(enumerate((1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1))) | {15: 2}


class TracedCall:
    """The arguments of one op call in a trace: dimensions, dtypes, and the values of non-tensors."""

    def __init__(self, op: str, dims: list[Any], types: list[str], concrete: list[str]) -> None:
        self.op = op
        self.dims, self.types, self.concrete = dims, types, concrete

    @classmethod
    def from_args(cls, op: str, args: Mapping[str, Any]) -> TracedCall:
        """From the args of a trace event; malformed entries are ignored."""
        dims, types, concrete = (args.get(key) for key in ("Input Dims", "Input type", "Concrete Inputs"))
        valid = isinstance(dims, list) and all(_is_shape(entry) or _are_shapes(entry) for entry in dims)
        return cls(op, dims if isinstance(dims, list) and valid else [], _strings(types), _strings(concrete))

    def shape(self, index: int) -> list[int]:
        """The dimensions of a tensor argument; [] if it is not a tensor."""
        found = self.dims[index] if index < len(self.dims) else []
        return found if not found or isinstance(found[0], int) else []

    def value(self, index: int) -> Any:
        """The value of a number, bool or list argument; None if the trace has none."""
        text = self.concrete[index] if index < len(self.concrete) else ""
        try:
            if text.endswith("."):  # torch writes 0.0 as "0."
                return float(text)
            return json.loads(text.replace("True", "true").replace("False", "false"))
        except ValueError:
            return None

    def dtype(self, index: int) -> str:
        """The dtype of an argument; "" if the trace has none, as for a string."""
        return self.types[index] if index < len(self.types) else ""

    def tensor_list(self, index: int) -> list[list[int]]:
        """The shapes of a tensor-list argument; [] if it is not a list of tensors."""
        found = self.dims[index] if index < len(self.dims) else []
        return found if found and isinstance(found[0], list) else []

    def nbytes(self, index: int) -> int:
        """The size of a tensor argument in bytes."""
        return prod(self.shape(index)) * WIDTH.get(self.dtype(index), 0)

    def tensors(self) -> list[tuple[list[int], int]]:
        """Shape and bytes per element of every tensor argument, including those in lists."""
        found = []
        for index, dims in enumerate(self.dims):
            if dims and isinstance(dims[0], list):
                found += [(inner, DEFAULT_WIDTH) for inner in dims]
            elif self.dtype(index) in WIDTH:
                found.append((dims, WIDTH[self.dtype(index)]))
        return found


def _is_shape(entry: Any) -> bool:
    return isinstance(entry, list) and all(isinstance(size, int) for size in entry)


def _are_shapes(entry: Any) -> bool:
    return isinstance(entry, list) and all(map(_is_shape, entry))


def _strings(entries: Any) -> list[str]:
    return [entry if isinstance(entry, str) else "" for entry in entries] if isinstance(entries, list) else []


def flop(call: TracedCall) -> float:
    """Exact for products and convolutions, one per output element of elementwise ops, 0 for data movement."""
    if _name(call) in _FORMULAS:
        return float(_apply(_FORMULAS, call) or 0)  # 0 if the trace has no shapes
    return float(output_elements(call)) if _op_type(call) in _ONE_PER_OUTPUT else 0.0


def bytes_moved(call: TracedCall) -> float:
    """Bytes of inputs read once (of a table, the rows looked up) and of the output written once; 0 for views."""
    if type_of(call.op) in _NO_TRAFFIC:
        return 0.0
    read = _apply(_READS, call)
    if read is None:
        read = sum(prod(shape) * width for shape, width in call.tensors())
    return float(read + output_elements(call) * output_width(call))


def output_elements(call: TracedCall) -> int:
    """Elements of the result: by formula where there is one, else those of the largest input (of a list, all)."""
    known = _apply(_OUTPUTS, call)
    if known is not None:
        return known
    if _name(call).startswith(_FOREACH):
        return _list_elements(call, 0)
    return max((prod(shape) for shape, _ in call.tensors()), default=0)


def output_width(call: TracedCall) -> int:
    """Bytes per element of the result: by op or type promotion where known, else those of the first input."""
    name, kind, inputs = _name(call), _op_type(call), call.tensors()
    first = inputs[0][1] if inputs else DEFAULT_WIDTH
    if call.op.endswith("_") or name.startswith(_FOREACH):  # in place
        return first
    if kind == "Compare" and not name.startswith("bitwise"):
        return WIDTH["bool"]
    if name in _DTYPE_ARGUMENT:
        dtype = call.value(_DTYPE_ARGUMENT[name])
        return SCALAR_TYPE_WIDTH.get(dtype, first) if isinstance(dtype, int) else first
    return _promoted_width(call, name in _ALWAYS_FLOAT) if kind in _PROMOTED else first


def _promoted_width(call: TracedCall, is_float: bool) -> int:
    """Torch's type promotion: the highest category wins; scalars count only if their category is above the tensors'."""
    given = [(bool(dims), call.dtype(at)) for at, dims in enumerate(call.dims) if call.dtype(at) in WIDTH]
    tensors = [kind for has_size, kind in given if has_size] or [kind for _, kind in given[:1]]
    numbers = [kind for has_size, kind in given if not has_size]
    rank = max((PROMOTION_RANK[kind] for kind in tensors), default=2)
    raised = max((PROMOTION_RANK[kind] for kind in numbers), default=0)
    if max(rank, raised) < PROMOTION_RANK["float"] and is_float:
        return DEFAULT_WIDTH
    if raised > rank:  # Python scalars are traced as double, and give the default dtype
        return max(
            DEFAULT_WIDTH if kind == "double" else WIDTH[kind] for kind in numbers if PROMOTION_RANK[kind] == raised
        )
    return max((WIDTH[kind] for kind in tensors if PROMOTION_RANK[kind] == rank), default=DEFAULT_WIDTH)


def _name(call: TracedCall) -> str:
    return call.op.removeprefix("aten::").removesuffix("_")


def _op_type(call: TracedCall) -> str | None:
    """The op type; a foreach op has the type of its single-tensor op."""
    return type_of(call.op) or type_of(call.op.replace(_FOREACH, "", 1))


def _apply(rules: Mapping[str, Callable[[TracedCall], int]], call: TracedCall) -> int | None:
    """The result of the op's rule; None if there is no rule or the trace lacks what it needs."""
    rule = rules.get(_name(call))
    try:
        return int(rule(call)) if rule else None
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return None


def _list_elements(call: TracedCall, *indices: int) -> int:
    return sum(prod(shape) for index in indices for shape in call.tensor_list(index))


def _mm(call: TracedCall) -> int:
    a, b = call.shape(0), call.shape(1)
    return 2 * prod(a) * b[-1] if a and b else 0


def _mv(call: TracedCall) -> int:
    return 2 * prod(call.shape(0))


def _addmm(call: TracedCall) -> int:
    a, b = call.shape(1), call.shape(2)
    return 2 * prod(a) * b[-1] if a and b else 0


def _conv_output(call: TracedCall) -> int:
    """Output elements of a convolution; its stride, padding and dilation are arguments 3 to 5."""
    x, weight = call.shape(0), call.shape(1)
    if not x or not weight:
        return 0
    x = x if len(x) == len(weight) else [1, *x]  # unbatched input
    rank = len(weight) - 2
    stride, padding, dilation = (_per_axis(call.value(3 + i), rank, d) for i, d in enumerate((1, 0, 1)))
    span = [dilation[i] * (weight[2 + i] - 1) for i in range(rank)]
    if _is_transposed(call):  # then the weight is [channels in, channels out per group, ...]
        extra, groups = _per_axis(call.value(7), rank, 0), int(call.value(8) or 1)
        sizes = [(x[2 + i] - 1) * stride[i] - 2 * padding[i] + span[i] + extra[i] + 1 for i in range(rank)]
        return prod([x[0], weight[1] * groups, *sizes])
    if _has_string_padding(call) and set(stride) == {1}:  # torch allows "same" for stride 1 only
        sizes = x[2:]
    else:
        sizes = [(x[2 + i] + 2 * padding[i] - span[i] - 1) // stride[i] + 1 for i in range(rank)]
    return prod([x[0], weight[0], *sizes])


def _is_transposed(call: TracedCall) -> bool:
    return call.value(6) is True  # in aten::conv2d and the like argument 6 is the number of groups


def _has_string_padding(call: TracedCall) -> bool:
    """String arguments have neither value nor dtype in a trace, while their neighbours have both."""
    return len(call.concrete) > 4 and call.concrete[4] == "" and call.dtype(3) != "" and call.dtype(4) == ""


def _per_axis(value: Any, rank: int, default: int) -> list[int]:
    values = [default] if not isinstance(value, list) or not value else value
    return [int(v) for v in (values * rank)[:rank]] if len(values) == 1 else [int(v) for v in values]


def _conv(call: TracedCall) -> int:
    """One dot product over the window per output element; transposed, one window of products per input element."""
    x, weight = call.shape(0), call.shape(1)
    if not x or not weight:
        return 0
    elements = prod(x) if _is_transposed(call) else _conv_output(call)
    return 2 * elements * prod(weight[1:])  # weight[1] is channels per group, so groups are counted


def _conv_backward(call: TracedCall) -> int:
    """As much as the forward for each of the two gradients that is computed."""
    grad, x, weight = call.shape(0), call.shape(1), call.shape(2)
    if not grad or not weight:
        return 0
    elements = prod(x) if call.value(7) is True else prod(grad)  # transposed
    return 2 * elements * prod(weight[1:]) * _gradients_computed(call)


def _gradients_computed(call: TracedCall) -> int:
    mask = call.value(10)
    return sum(bool(wanted) for wanted in mask[:2]) if isinstance(mask, list) else 2


def _attention(call: TracedCall) -> int:
    query, key, value = call.shape(0), call.shape(1), call.shape(2)
    if not (query and key and value):
        return 0
    return 2 * prod(query) * key[-2] + 2 * prod(query[:-1]) * key[-2] * value[-1]


def _attention_backward(call: TracedCall) -> int:
    """Scores again, then the gradients of value, scores, query and key: five products, where forward has two."""
    query, key, value = call.shape(1), call.shape(2), call.shape(3)
    if not (query and key and value):
        return 0
    scores, values = 2 * prod(query) * key[-2], 2 * prod(query[:-1]) * key[-2] * value[-1]
    return 3 * scores + 2 * values


def _rnn_layer(call: TracedCall) -> int:
    """One direction of one LSTM layer (oneDNN): input [T, B, I], weights [4H, I] and [4H, H]."""
    x, w_input, w_hidden = call.shape(0), call.shape(1), call.shape(2)
    return 2 * x[0] * x[1] * (prod(w_input) + prod(w_hidden)) if x and w_input and w_hidden else 0


def _rnn_stack(call: TracedCall) -> int:
    """cuDNN's RNN: input [T, B, I] and the list of its weight matrices."""
    x = call.shape(0)
    weights = call.dims[1] if len(call.dims) > 1 else []
    matrices = [prod(shape) for shape in weights if isinstance(shape, list) and len(shape) == 2]
    return 2 * x[0] * x[1] * sum(matrices) if x else 0


def _fused_sgd(call: TracedCall) -> int:
    """Per element 2 (rate x gradient, subtracted), +2 with weight decay, +3 with momentum, +2 if that is Nesterov's."""
    decay, nesterov, is_first = call.value(3), call.value(7), call.value(9)
    per_element = 2 + (2 if decay else 0)
    if call.tensor_list(2):  # momentum buffers
        # momentum x buffer + (1 - dampening) x gradient; the first step copies the gradient
        per_element += (0 if is_first else 3) + (2 if nesterov else 0)
    return per_element * _list_elements(call, 0)


def _fused_adam(call: TracedCall) -> int:
    """Per element 13, +1 for AMSGrad's maximum, +2 for weight decay added to the gradient.

    3 for the mean, 4 for the mean square, 3 for its corrected root plus epsilon, 3 for rate x mean / root, subtracted.
    """
    per_element = 13 + (1 if call.tensor_list(4) else 0) + (2 if call.value(9) else 0)
    return per_element * _list_elements(call, 0)


def _fused_adamw(call: TracedCall) -> int:
    """As Adam, but weight decay is one multiplication of the weight."""
    return _fused_adam(call) - (_list_elements(call, 0) if call.value(9) else 0)


def _fused_adagrad(call: TracedCall) -> int:
    """Per element 7, +2 with weight decay.

    2 for the sum of squares, 5 for rate x gradient / (root + epsilon), subtracted.
    """
    return (7 + (2 if call.value(6) else 0)) * _list_elements(call, 0)


def _index_selected(call: TracedCall) -> int:
    """The table, with the indexed dimension as long as the index."""
    sizes = list(call.shape(0))
    sizes[call.value(1)] = prod(call.shape(2))
    return prod(sizes)


def _embedding_gradient(call: TracedCall) -> int:
    """The whole gradient of the table is written; if it is sparse, one row per index."""
    rows = prod(call.shape(1)) if call.value(5) is True else call.value(2)
    return int(rows * call.shape(0)[-1])


def _lookup_reads(elements: Callable[[TracedCall], int], index_at: int) -> Callable[[TracedCall], int]:
    """Bytes read by a look-up: as much of the table as is returned, and the indices."""
    return lambda call: elements(call) * WIDTH[call.dtype(0)] + call.nbytes(index_at)


_FORMULAS: dict[str, Callable[[TracedCall], int]] = {
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

_OUTPUTS: dict[str, Callable[[TracedCall], int]] = {
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
    "cat": lambda call: _list_elements(call, 0),
    "stack": lambda call: _list_elements(call, 0),
    # weights and optimizer state; gradients and step counts are only read
    "_fused_sgd": lambda call: _list_elements(call, 0, 2),
    "_fused_adam": lambda call: _list_elements(call, 0, 2, 3, 4),
    "_fused_adamw": lambda call: _list_elements(call, 0, 2, 3, 4),
    "_fused_adagrad": lambda call: _list_elements(call, 0, 2),
    "sum": lambda call: 0,
    "mean": lambda call: 0,
    "argmax": lambda call: 0,
    "fill": lambda call: 0,
    "zero": lambda call: 0,
}

# bytes read, where that is not all of the inputs
_READS: dict[str, Callable[[TracedCall], int]] = {
    "embedding": _lookup_reads(_OUTPUTS["embedding"], 1),
    "index_select": _lookup_reads(_OUTPUTS["index_select"], 2),
    "gather": _lookup_reads(_OUTPUTS["gather"], 2),
    "take": _lookup_reads(_OUTPUTS["take"], 1),
    "gather_backward": lambda call: call.nbytes(0) + call.nbytes(3),
    "copy": lambda call: call.nbytes(1),  # argument 0 is the destination
}

_FOREACH = "_foreach_"
_PROMOTED = {"Add", "Sub", "Mul", "Div", "Pow", "Relu", "ReluGrad", "Tanh", "Neg", "Compare", "Select"}
_ALWAYS_FLOAT = {"div", "true_divide", "reciprocal", "sqrt", "rsqrt", "exp", "log", "log1p", "expm1", "cos", "sin"}
_ALWAYS_FLOAT |= {"tanh", "sigmoid"}
_DTYPE_ARGUMENT = {"_to_copy": 1, "softmax": 2, "log_softmax": 2}  # index of the dtype argument
_ONE_PER_OUTPUT = {"Add", "Sub", "Mul", "Div", "Pow", "Softmax", "Relu", "ReluGrad", "Tanh", "LSTMCell", "Neg"}
_ONE_PER_OUTPUT |= {"Compare", "CrossEntropy", "MaxPool", "AvgPool", "BatchNorm", "BatchNormGrad", "Sum", "Max"}
_NO_TRAFFIC = {"Transpose", "Tile", "Reshape", "Shape", "Allocate"}
