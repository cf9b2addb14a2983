"""Elementwise ops: one FLOP per output element, whatever the function; inputs are broadcast against each other.

Also the functions of several elementary steps whose inputs are not all alike: softmax, gated units, recurrent cells
and losses.
"""

from __future__ import annotations

from itertools import zip_longest
from math import prod

from fathom.trace.call import DEFAULT_WIDTH, WIDTH, NotInTrace, Shape, TracedCall
from fathom.trace.formulas.rule import Rule, nothing, unknown

FOREACH = "_foreach_"
# how many operands an op has at most: what follows them is an output given by the caller
_TWO = (
    "add sub rsub clamp_min clamp_max mul div true_divide floor_divide remainder fmod pow maximum minimum fmax fmin "
    "eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor masked_fill _prelu_kernel "
    "_add_relu threshold_backward hardtanh_backward leaky_relu_backward elu_backward gelu_backward silu_backward "
    "tanh_backward sigmoid_backward softplus_backward hardsigmoid_backward hardswish_backward mish_backward "
    "hardshrink_backward softshrink_backward rrelu_with_noise_backward logit_backward atan2 hypot logaddexp "
    "logaddexp2 xlogy copysign nextafter heaviside gcd lcm igamma igammac bitwise_left_shift bitwise_right_shift "
    "special_xlog1py special_zeta special_chebyshev_polynomial_t special_chebyshev_polynomial_u "
    "special_chebyshev_polynomial_v special_chebyshev_polynomial_w special_hermite_polynomial_h "
    "special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p "
    "special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u "
    "special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w"
)
_THREE = "addcmul addcdiv lerp where clamp log_sigmoid_backward"
_OPERANDS = dict.fromkeys(_TWO.split(), 2) | dict.fromkeys(_THREE.split(), 3)

# of an elementwise type, but with results of another number, size or width than one for each element: not counted
_UNCOUNTED = "equal isin frexp positive __and __or __xor __lshift __rshift __iand __ior __ixor"
UNCOUNTED = frozenset(_UNCOUNTED.split())

# category of each dtype in torch's type promotion: the highest one wins
_RANK = dict.fromkeys(WIDTH, 2) | {"bool": 0}
_RANK |= {dtype: 1 for dtype in WIDTH if "int" in dtype or "long" in dtype or "char" in dtype or "short" in dtype}
_RANK |= {dtype: 3 for dtype in WIDTH if "complex" in dtype}
_FLOATING = 2
_FLOAT = (
    "div true_divide reciprocal sqrt rsqrt exp exp2 log log2 log10 log1p expm1 logit cos sin tan tanh acos asin "
    "atan atan2 cosh sinh acosh asinh atanh sinc sigmoid erf erfc erfinv lgamma digamma polygamma i0"
)
_BOOL = (
    "eq ne lt le gt ge logical_and logical_or logical_xor logical_not isfinite isnan isinf isposinf isneginf signbit"
)
_ALWAYS_FLOAT, _TO_BOOL = frozenset(_FLOAT.split()), frozenset(_BOOL.split())


def _operands(call: TracedCall) -> list[int]:
    """The tensors that are read, numbers given as tensors among them."""
    tensors = [index for index in range(call.arguments) if call.is_tensor(index)]
    if not tensors:
        raise NotInTrace(f"{call.op}: no tensor")
    return tensors[: _OPERANDS.get(call.name, 1)]


def broadcast(shapes: list[Shape]) -> Shape:
    """The common shape by torch's rules: dimensions are aligned at the end, and one of size 1 is repeated."""
    if shapes.count(shapes[0]) == len(shapes):  # as those of most calls are
        return shapes[0]
    sizes = [set(column) - {1} for column in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)]
    if any(len(size) > 1 for size in sizes):
        raise NotInTrace(f"shapes {shapes} do not fit each other")
    return [size.pop() if size else 1 for size in reversed(sizes)]


def output_elements(call: TracedCall) -> int:
    if call.is_in_place:
        return prod(call.shape(0))
    return prod(broadcast([call.shape(index) for index in _operands(call)]))


def output_width(call: TracedCall) -> int:
    """Bytes per element of the result: the first operand's in place, else by torch's type promotion."""
    if call.is_in_place:
        return call.width(0)
    return WIDTH["bool"] if call.name in _TO_BOOL else _promoted_width(call)


def _promoted_width(call: TracedCall) -> int:
    """The highest category wins; numbers count only if their category is above that of the tensors."""
    given = [(bool(call.shape(index)), call.dtype(index)) for index in _operands(call)]
    if call.name == "where":
        given = given[1:] or given  # the condition has no part in it
    tensors = [kind for has_size, kind in given if has_size] or [kind for _, kind in given[:1]]
    numbers = [kind for has_size, kind in given if not has_size]
    rank = max(_RANK[kind] for kind in tensors)
    raised = max((_RANK[kind] for kind in numbers), default=0)
    if max(rank, raised) < _FLOATING and call.name in _ALWAYS_FLOAT:
        return DEFAULT_WIDTH
    if raised > rank:  # Python numbers are traced as double, and give the default dtype
        widths = [DEFAULT_WIDTH if kind == "double" else WIDTH[kind] for kind in numbers if _RANK[kind] == raised]
        return max(widths)
    return max(WIDTH[kind] for kind in tensors if _RANK[kind] == rank)


def _moved(call: TracedCall) -> float:
    return call.nbytes(*_operands(call)) + output_elements(call) * output_width(call)


ELEMENTWISE = Rule(output_elements, _moved)
SELECTION = Rule(nothing, _moved)  # moves data only


def _rrelu_bytes(call: TracedCall) -> float:
    """(input, noise, ..., 4 training): slopes that are drawn are written."""
    return _moved(call) + (call.nbytes(1) if call.value(4) is True else 0)


# (gradient, input, weight): gradients of both for each element; those of the weight are then summed by another op
_PRELU_GRADIENT = Rule(
    lambda call: 2 * prod(call.shape(1)),
    lambda call: call.nbytes(0, 1, 2) + 2 * prod(call.shape(1)) * call.width(1),
)


def _where_bytes(call: TracedCall) -> float:
    if call.arguments < 3:  # of a condition alone: the indices of what is true
        raise NotInTrace(f"{call.op}: the size of the result depends on the data")
    return _moved(call)


def _foreach_bytes(call: TracedCall) -> float:
    """Every list is read, a number given as a tensor too, and as much as the first list is written."""
    lists = [index for index in range(call.arguments) if call.has_shapes(index)]
    numbers = [index for index in range(call.arguments) if call.is_tensor(index)]
    return call.list_bytes(0, *lists) + call.nbytes(*numbers)


FOREACH_ELEMENTWISE = Rule(lambda call: call.list_elements(0), _foreach_bytes)


def _softmax_width(call: TracedCall) -> int:
    """Argument 2 is the dtype of the result, or whether half becomes float (in the ops beginning with "_")."""
    if call.name.startswith("_"):
        return DEFAULT_WIDTH if call.arguments > 2 and call.value(2) is True else call.width(0)
    return call.dtype_width(2, call.width(0))


def _softmax_bytes(call: TracedCall) -> float:
    return call.nbytes(0) + prod(call.shape(0)) * _softmax_width(call)


# per element: maximum, difference, exponential, sum, and a quotient or (log-softmax) another difference
_SOFTMAX = Rule(lambda call: 5 * prod(call.shape(0)), _softmax_bytes)
_MASKED_SOFTMAX = Rule(
    lambda call: 5 * prod(call.shape(0)), lambda call: call.nbytes(0, 1) + prod(call.shape(0)) * call.width(0)
)
# per element: y (g - sum(g y)), or for log-softmax g - exp(y) sum(g): four steps
_SOFTMAX_GRADIENT = Rule(
    lambda call: 4 * prod(call.shape(0)),
    lambda call: call.nbytes(0, 1) + prod(call.shape(0)) * call.dtype_width(3, call.width(0)),
)


# half of the input is multiplied by the sigmoid of the other half
_GLU = Rule(lambda call: prod(call.shape(0)), lambda call: call.nbytes(0) + prod(call.shape(0)) // 2 * call.width(0))
# (gradient, input): an element of the input's gradient each
_GLU_GRADIENT = Rule(
    lambda call: prod(call.shape(1)), lambda call: call.nbytes(0, 1) + prod(call.shape(1)) * call.width(1)
)


def _cell(state: int, steps: int, bias_steps: int, outputs: int) -> Rule:
    """A recurrent cell between its products (input gates, hidden gates, state, two biases): steps per hidden unit."""

    def flop(call: TracedCall) -> float:
        return prod(call.shape(state)) * (steps + (bias_steps if call.is_tensor(3) else 0))

    def moved(call: TracedCall) -> float:
        return call.nbytes(0, 1, 2) + call.optional_nbytes(3, 4) + outputs * prod(call.shape(state)) * call.width(state)

    return Rule(flop, moved)


def _lstm_gradient_bytes(call: TracedCall) -> float:
    """(gradients of h and c, c before and after, gates): gradients of the four gates and of c are written."""
    written = prod(call.shape(4)) + prod(call.shape(2))
    return call.optional_nbytes(0, 1) + call.nbytes(2, 3, 4) + written * call.width(4)


# LSTM: sums of 4 gates, 4 functions, f c + i g (3), o tanh(c) (2); writes h, c and the 4 gates
_LSTM_CELL = _cell(2, steps=13, bias_steps=8, outputs=6)
# dc 6, of o, i, f and g 4 each, of c before 1
_LSTM_CELL_GRADIENT = Rule(lambda call: 23 * prod(call.shape(2)), _lstm_gradient_bytes)
# GRU: r 2, z 2, n = tanh(i + r h) 3, n + z (h - n) 3; writes h and a workspace of 5
_GRU_CELL = _cell(2, steps=10, bias_steps=6, outputs=6)
# (gradient of h, workspace of 5): of z 5, n 5, r 4, h's gate 1, h 1; writes 3 gates twice, and h
_GRU_CELL_GRADIENT = Rule(
    lambda call: 16 * prod(call.shape(0)), lambda call: call.nbytes(0, 1) + 7 * prod(call.shape(0)) * call.width(0)
)


def _loss(reduction: int) -> Rule:
    """(input, target, weights ..., reduction): one per element, and another one where they are summed up."""

    def flop(call: TracedCall) -> float:
        return prod(call.shape(0)) * (1 if call.integer(reduction) == 0 else 2)

    def moved(call: TracedCall) -> float:
        written = prod(call.shape(0)) if call.integer(reduction) == 0 else 1
        return call.nbytes(0, 1) + call.optional_nbytes(*range(2, reduction)) + written * call.width(0)

    return Rule(flop, moved)


# (gradient, input, target, weight)
_LOSS_GRADIENT = Rule(
    lambda call: prod(call.shape(1)),
    lambda call: call.nbytes(*range(4 if call.is_tensor(3) else 3)) + prod(call.shape(1)) * call.width(1),
)


def _by_class_bytes(call: TracedCall) -> float:
    """(input, target, power, margin, weight, reduction)"""
    written = _samples(call, 0) if call.integer(5) == 0 else 1
    return call.nbytes(0, 1) + call.optional_nbytes(4) + written * call.width(0)


def _labels_bytes(call: TracedCall) -> float:
    """(input, labels, reduction): which classes are labels is a result, too."""
    written = _samples(call, 0) if call.integer(2) == 0 else 1
    return 2 * call.nbytes(0) + call.nbytes(1) + written * call.width(0)


# one for each class, which are summed up whatever the reduction
_BY_CLASS = Rule(lambda call: 2 * prod(call.shape(0)), _by_class_bytes)
_BY_CLASS_GRADIENT = Rule(  # (gradient, input, target, power, margin, weight, ...)
    lambda call: prod(call.shape(1)),
    lambda call: call.nbytes(0, 1, 2) + call.optional_nbytes(5) + prod(call.shape(1)) * call.width(1),
)
# every label is compared with every other class: how many there are is in the data
_LABELS = Rule(unknown, _labels_bytes)
_LABELS_GRADIENT = Rule(  # (gradient, input, labels, reduction, which are labels)
    unknown, lambda call: call.nbytes(0, 1, 2, 4) + prod(call.shape(1)) * call.width(1)
)


def _samples(call: TracedCall, logits: int) -> int:
    """How many targets there are for the logits [samples, classes, ...]."""
    shape = call.shape(logits)
    return prod(shape) // max(1, shape[1] if len(shape) > 1 else shape[0])


def _cross_entropy_bytes(call: TracedCall) -> float:
    written = _samples(call, 0) if call.integer(3) == 0 else 1
    return call.nbytes(0, 1) + call.optional_nbytes(2) + written * call.width(0)


def _nll_bytes(call: TracedCall) -> float:
    """One logarithm per target is looked up; the loss and the sum of weights are written."""
    samples = _samples(call, 0)
    written = samples if call.integer(3) == 0 else 1
    return call.nbytes(1) + call.optional_nbytes(2) + (samples + written + 1) * call.width(0)


def _nll_gradient_bytes(call: TracedCall) -> float:
    """(gradient, input, target, weight, ..., sum of weights): of the input only the size is used."""
    return call.nbytes(0, 2, 6) + call.optional_nbytes(3) + prod(call.shape(1)) * call.width(1)


_CROSS_ENTROPY = Rule(lambda call: 5 * prod(call.shape(0)) + _samples(call, 0), _cross_entropy_bytes)
_NLL = Rule(lambda call: _samples(call, 0) * (2 if call.is_tensor(2) else 1), _nll_bytes)
_NLL_GRADIENT = Rule(lambda call: _samples(call, 1), _nll_gradient_bytes)


def _ctc_bytes(call: TracedCall) -> float:
    """Log-probabilities [time, batch, classes] and labels are read, a loss per sequence is written."""
    return call.nbytes(0, 1) + call.shape(0)[-2] * call.width(0)


def _not_known(call: TracedCall) -> float:
    raise NotInTrace(f"{call.op}: the lengths of sequences are not in a trace")


RULES: dict[str, Rule] = {
    **dict.fromkeys(("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax"), _SOFTMAX),
    "_masked_softmax": _MASKED_SOFTMAX,
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _SOFTMAX_GRADIENT),
    "glu": _GLU,
    "glu_backward": _GLU_GRADIENT,
    "_thnn_fused_lstm_cell": _LSTM_CELL,
    **dict.fromkeys(("_thnn_fused_lstm_cell_backward", "_thnn_fused_lstm_cell_backward_impl"), _LSTM_CELL_GRADIENT),
    "_thnn_fused_gru_cell": _GRU_CELL,
    "_thnn_fused_gru_cell_backward": _GRU_CELL_GRADIENT,
    **dict.fromkeys(("mse_loss", "huber_loss", "smooth_l1_loss", "kl_div", "soft_margin_loss"), _loss(reduction=2)),
    "binary_cross_entropy": _loss(reduction=3),
    "binary_cross_entropy_with_logits": _loss(reduction=4),
    **dict.fromkeys(
        ("mse_loss_backward", "huber_loss_backward", "smooth_l1_loss_backward", "binary_cross_entropy_backward"),
        _LOSS_GRADIENT,
    ),
    "soft_margin_loss_backward": _LOSS_GRADIENT,
    "multi_margin_loss": _BY_CLASS,
    "multi_margin_loss_backward": _BY_CLASS_GRADIENT,
    "multilabel_margin_loss_forward": _LABELS,
    "multilabel_margin_loss_backward": _LABELS_GRADIENT,
    "cross_entropy_loss": _CROSS_ENTROPY,
    **dict.fromkeys(("nll_loss", "nll_loss_nd", "nll_loss_forward", "nll_loss2d_forward"), _NLL),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _NLL_GRADIENT),
    **dict.fromkeys(("ctc_loss", "_ctc_loss", "_cudnn_ctc_loss"), Rule(_not_known, _ctc_bytes)),
    "_ctc_loss_backward": Rule(
        _not_known, lambda call: call.nbytes(0, 1, 2, 5, 6) + prod(call.shape(1)) * call.width(1)
    ),
    "masked_fill": SELECTION,
    "where": Rule(nothing, _where_bytes),
    "nan_to_num": ELEMENTWISE,
    "rrelu_with_noise": Rule(output_elements, _rrelu_bytes),
    "_prelu_kernel_backward": _PRELU_GRADIENT,
}
