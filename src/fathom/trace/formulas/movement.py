"""Data movement and random numbers: no FLOP; what is read and what is written.

Views, allocations and questions about a tensor move nothing. Random numbers are made by integer arithmetic.
"""

from __future__ import annotations

from math import ceil, prod

from fathom.trace.call import DEFAULT_WIDTH, INT64, WIDTH, NotInTrace, TracedCall
from fathom.trace.formulas.rule import NOTHING, Count, Rule, nothing, unknown


def _moves(count: Count) -> Rule:
    return Rule(nothing, count)


def _copied(call: TracedCall) -> float:
    """The input is read, and an output of its shape written; an expanded input is written out in full."""
    return call.nbytes(0) + prod(call.shape(0)) * call.width(0)


def _converted(call: TracedCall) -> float:
    """(input, dtype, ...)"""
    return call.nbytes(0) + prod(call.shape(0)) * call.dtype_width(1, call.width(0))


def _copied_into(call: TracedCall) -> float:
    """(destination, source)"""
    return call.nbytes(1) + prod(call.shape(0)) * call.width(0)


def _filled(call: TracedCall) -> float:
    return call.nbytes(0)


def _created(size: int, dtype: int, default: int = DEFAULT_WIDTH) -> Rule:
    """A new tensor of the size in one argument and the dtype in another."""
    return _moves(lambda call: prod(call.integers(size)) * call.dtype_width(dtype, default))


def _created_like(dtype: int, size: int | None = None) -> Rule:
    """A new tensor with the shape of argument 0, or the size given, and its dtype unless one is given."""

    def count(call: TracedCall) -> float:
        elements = prod(call.shape(0)) if size is None else prod(call.integers(size))
        return elements * call.dtype_width(dtype, call.width(0))

    return _moves(count)


def _range_bytes(call: TracedCall) -> float:
    """(end, 4 options), (start, end, 4 options), (start, end, step, 4 options), or (start, end, step, result)."""
    given = 3 if call.is_tensor(3) else call.arguments - 4
    if given not in (1, 2, 3):
        raise NotInTrace(f"{call.op}: {call.arguments} arguments")
    values = [call.number(index) for index in range(given)]
    start, end, step = (0, values[0], 1) if given == 1 else (*values, 1)[:3]
    whole = all(isinstance(value, int) for value in values)
    width = call.width(3) if call.is_tensor(3) else call.dtype_width(given, INT64 if whole else DEFAULT_WIDTH)
    return max(0, ceil((end - start) / step)) * width


def _square_bytes(call: TracedCall) -> float:
    """eye(n, 4 options) or eye(n, m, 4 options)"""
    second = call.integer(1) if call.arguments > 5 else call.integer(0)
    return call.integer(0) * second * call.dtype_width(call.arguments - 4, DEFAULT_WIDTH)


def _repeated(call: TracedCall) -> float:
    """(input, repeats of each dimension)"""
    return call.nbytes(0) + prod(call.shape(0)) * prod(call.integers(1)) * call.width(0)


def _interleaved(call: TracedCall) -> float:
    """(input, repeats, dimension, output size): repeats may be a tensor, whose values are not in a trace.

    Of (repeats, output size) the result are the places to repeat.
    """
    if call.arguments == 2:
        return call.nbytes(0) + call.integer(1) * call.width(0)
    return call.nbytes(0) + prod(call.shape(0)) * call.integer(1) * call.width(0)


def _padded(call: TracedCall) -> float:
    """(input, padding): pairs of before and after, from the last dimension on."""
    sizes, pads = call.shape(0), call.integers(1)
    for pair in range(len(pads) // 2):
        sizes[-1 - pair] += pads[2 * pair] + pads[2 * pair + 1]
    return call.nbytes(0) + prod(sizes) * call.width(0)


def _padding_gradient(call: TracedCall) -> float:
    """(gradient, input, ...): of the input only the size is used."""
    return call.nbytes(0) + prod(call.shape(1)) * call.width(0)


def _diagonal_matrices(call: TracedCall) -> float:
    """(diagonals, offset, ...): square matrices whose sides are longer by the offset."""
    *batch, length = call.shape(0)
    return call.nbytes(0) + prod(batch) * (length + abs(call.integer(1))) ** 2 * call.width(0)


def _joined(call: TracedCall) -> float:
    return 2 * call.list_bytes(0)


def _integers_bytes(call: TracedCall) -> float:
    """randint(high, size, dtype) or (low, high, size, dtype): the dtype follows the size, the only list."""
    size = 1 if isinstance(call.value(1), list) else 2
    return prod(call.integers(size)) * call.dtype_width(size + 1, INT64)


def _integers_like_bytes(call: TracedCall) -> float:
    """randint_like(input, high, dtype) or (input, low, high, dtype), each with four more options"""
    at = 2 if call.arguments <= 7 else 3
    return prod(call.shape(0)) * call.dtype_width(at, call.width(0))


def _in_place_random(call: TracedCall) -> float:
    """Written over; a probability given as a tensor is read."""
    probability = call.nbytes(1) if call.is_tensor(1) else 0
    return prod(call.shape(0)) * call.width(0) + probability


def _bernoulli_bytes(call: TracedCall) -> float:
    return _in_place_random(call) if call.is_in_place else _copied(call)


def _drawn_bytes(call: TracedCall) -> float:
    """multinomial(weights, samples): indices."""
    return call.nbytes(0) + prod(call.shape(0)[:-1]) * call.integer(1) * INT64


def _dropout_bytes(call: TracedCall) -> float:
    return _copied(call) + prod(call.shape(0)) * WIDTH["bool"]


def _foreach_copied(call: TracedCall) -> float:
    return call.list_bytes(0, 1)


_VIEWS = (
    "transpose t permute swapaxes numpy_T movedim adjoint expand expand_as broadcast_to view _reshape_alias "
    "_unsafe_view squeeze unsqueeze as_strided view_as detach alias select slice narrow split chunk unbind "
    "split_with_sizes unsafe_split unsafe_chunk lift_fresh unfold unflatten diagonal view_as_real "
    "view_as_complex size stride numel sym_size result_type item _local_scalar_dense is_nonzero _fused_sdp_choice "
    "cudnn_is_acceptable _use_cudnn_ctc_loss empty empty_like empty_strided new_empty new_empty_strided resize "
    "_indices _values is_coalesced _sparse_coo_tensor_with_dims_and_tensors "
    "resize_as record_stream set_data set is_pinned broadcast_tensors to type_as resolve_conj resolve_neg dropout "
    "_conj _neg_view empty_permuted _efficientzerotensor is_same_size _has_same_storage_numel promote_types "
    # without an op inside that copies, these two are views, too
    "reshape flatten"
)
_COPIES = "clone contiguous flip roll _pin_memory tril triu _copy_from"

Rules = dict[str, Rule]
_CREATED: Rules = {**dict.fromkeys(("zeros", "ones", "rand", "randn"), _created(0, 1)), "full": _created(0, 2)}
_CREATED |= {"scalar_tensor": Rule(nothing, lambda call: call.dtype_width(1, DEFAULT_WIDTH))}
_CREATED |= dict.fromkeys(("zeros_like", "ones_like", "rand_like", "randn_like"), _created_like(1))
_CREATED |= {"full_like": _created_like(2), "new_full": _created_like(3, size=1)}
_CREATED |= dict.fromkeys(("new_zeros", "new_ones"), _created_like(2, size=1))
_PADDED = [f"{kind}_pad{rank}d" for kind in ("reflection", "replication") for rank in (1, 2, 3)]
_RANDOM: Rules = dict.fromkeys(
    ("normal", "uniform", "random", "exponential", "geometric", "cauchy", "log_normal"), _moves(_in_place_random)
)

RULES: Rules = {
    **dict.fromkeys(_VIEWS.split(), NOTHING),
    **dict.fromkeys(_COPIES.split(), _moves(_copied)),
    "_reshape_copy": _moves(_copied),
    "_to_copy": _moves(_converted),
    "copy": _moves(_copied_into),
    **dict.fromkeys(("zero", "fill"), _moves(_filled)),
    **_CREATED,
    "arange": _moves(_range_bytes),
    "eye": _moves(_square_bytes),
    **dict.fromkeys(("repeat", "tile"), _moves(_repeated)),
    "repeat_interleave": _moves(_interleaved),
    **dict.fromkeys(("pad", "constant_pad_nd", *_PADDED), _moves(_padded)),
    # each gradient is added to that of what was copied
    **dict.fromkeys(
        [f"{name}_backward" for name in _PADDED], Rule(lambda call: prod(call.shape(0)), _padding_gradient)
    ),
    "linspace": _moves(lambda call: call.integer(2) * call.dtype_width(3, DEFAULT_WIDTH)),
    "diag_embed": _moves(_diagonal_matrices),
    **dict.fromkeys(("cat", "stack", "concat", "hstack", "vstack", "dstack"), _moves(_joined)),
    # what is selected depends on the data
    **dict.fromkeys(("masked_select", "masked_scatter", "nonzero"), _moves(unknown)),
    "_foreach_zero": _moves(lambda call: call.list_bytes(0)),
    "_foreach_copy": _moves(_foreach_copied),
    **_RANDOM,
    "randint": _moves(_integers_bytes),
    "randint_like": _moves(_integers_like_bytes),
    "randperm": _moves(lambda call: call.integer(0) * call.dtype_width(1, INT64)),
    "multinomial": _moves(_drawn_bytes),
    "bernoulli": _moves(_bernoulli_bytes),
    # a product for each element; the mask is a result, too
    **dict.fromkeys(("native_dropout", "_fused_dropout"), Rule(lambda call: prod(call.shape(0)), _dropout_bytes)),
    "native_dropout_backward": Rule(
        lambda call: prod(call.shape(0)), lambda call: call.nbytes(0, 1) + prod(call.shape(0)) * call.width(0)
    ),
}
