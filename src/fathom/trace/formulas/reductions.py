"""Reductions: one FLOP per input element for each elementary step; what is written has the reduced shape.

A sum, a mean, a maximum or a comparison takes one step, a norm two (power, sum), a variance four (mean, difference,
square, sum), logsumexp four (maximum, difference, exponential, sum).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from fathom.trace.call import DEFAULT_WIDTH, INT64, WIDTH, NotInTrace, Shape, TracedCall
from fathom.trace.formulas.elementwise import broadcast
from fathom.trace.formulas.rule import Rule, unknown

_WHOLE = {"bool", "long int", "long", "int", "short int", "signed char", "unsigned char"}


def reduced(call: TracedCall, dim: int | None) -> Shape:
    """The input's shape without the dimensions of argument `dim`; [] where all are reduced (None or no dimension)."""
    shape = call.shape(0)
    given = None if dim is None else call.value(dim)
    dims = [given] if type(given) is int else given
    if dims is None or dims == []:
        return []
    if not isinstance(dims, list) or not all(type(each) is int for each in dims):
        raise NotInTrace(f"{call.op}: argument {dim} is no dimension")
    gone = {each % len(shape) for each in dims} if shape else set()
    return [size for axis, size in enumerate(shape) if axis not in gone]


def _rule(
    steps: int,
    dim: Callable[[TracedCall], int | None],
    width: Callable[[TracedCall], int],
    indices: Callable[[TracedCall], bool] = lambda _: False,
    results: int = 1,
) -> Rule:
    """A reduction of so many steps; dim finds the argument with the dimensions, indices says if they are written."""

    def moved(call: TracedCall) -> float:
        each = results * width(call) + (INT64 if indices(call) else 0)
        return call.nbytes(0) + prod(reduced(call, dim(call))) * each

    return Rule(lambda call: steps * prod(call.shape(0)), moved)


def _first(call: TracedCall) -> int | None:
    """(input, dimensions, ...), or without them (input), (input, option) or (input, option, result)."""
    return 1 if call.arguments > 2 and not call.is_tensor(2) else None


def _always(call: TracedCall) -> int:
    """(input, dimensions) in every overload."""
    return 1


def _if_any(call: TracedCall) -> int | None:
    return 1 if call.arguments > 1 else None


def _of_norm(call: TracedCall) -> int | None:
    """(input, p, dimensions, ...), or without them (input, p), (input, p, dtype) or (input, p, dtype, result)."""
    return 2 if call.arguments > 3 and not call.is_tensor(3) else None


def _own(call: TracedCall) -> int:
    return call.width(0)


def _to_bool(_: TracedCall) -> int:
    return WIDTH["bool"]


def _to_index(_: TracedCall) -> int:
    return INT64


def _sum_width(call: TracedCall) -> int:
    """(input, dtype) or (input, dimensions, keepdim, dtype): a sum of whole numbers is int64."""
    if call.is_tensor(2):
        return call.width(2)
    usual = INT64 if call.dtype(0) in _WHOLE else call.width(0)
    return call.dtype_width(1 if call.arguments == 2 else 3, usual)


def _running_width(call: TracedCall) -> int:
    return call.dtype_width(2, INT64 if call.dtype(0) in _WHOLE else call.width(0))


def _norm_width(call: TracedCall) -> int:
    return call.dtype_width(4, call.width(0))


def _extremum(call: TracedCall) -> Rule:
    """max and min: of two tensors elementwise, along a dimension with indices, or of all elements."""
    return ELEMENTWISE_PAIR if call.is_tensor(1) else _EXTREMUM


_EXTREMUM = _rule(1, _first, _own, indices=lambda call: call.arguments > 2)


def _pair_bytes(call: TracedCall) -> float:
    return call.nbytes(0, 1) + _pair(call) * call.width(0)


def _pair(call: TracedCall) -> int:
    return prod(broadcast([call.shape(0), call.shape(1)]))


ELEMENTWISE_PAIR = Rule(_pair, _pair_bytes)


def _running(steps: int, indices: bool = False) -> Rule:
    """A result for each element."""

    def moved(call: TracedCall) -> float:
        width = call.width(0) + INT64 if indices else _running_width(call)
        return call.nbytes(0) + prod(call.shape(0)) * width

    return Rule(lambda call: steps * prod(call.shape(0)), moved)


def _sorted_bytes(call: TracedCall) -> float:
    return call.nbytes(0) + prod(call.shape(0)) * (call.width(0) + INT64)


def _topk_bytes(call: TracedCall) -> float:
    """(input, k, dimension, ...): k values and indices."""
    rows = prod(reduced(call, 2))
    return call.nbytes(0) + rows * call.integer(1) * (call.width(0) + INT64)


def _kth_bytes(call: TracedCall) -> float:
    return call.nbytes(0) + prod(reduced(call, 2)) * (call.width(0) + INT64)


def _search_bytes(call: TracedCall) -> float:
    return call.nbytes(0, 1) + prod(call.shape(1)) * (WIDTH["int"] if call.value(2) is True else INT64)


def _foreach_reduction(steps: int) -> Rule:
    """A number of each tensor."""
    return Rule(
        lambda call: steps * call.list_elements(0),
        lambda call: call.list_bytes(0) + len(call.shapes(0)) * (call.list_width or DEFAULT_WIDTH),
    )


RULES: dict[str, Rule] = {
    **dict.fromkeys(("sum", "nansum", "mean", "prod"), _rule(1, _first, _sum_width)),
    **dict.fromkeys(("amax", "amin"), _rule(1, _always, _own)),
    "aminmax": _rule(1, _always, _own, results=2),
    **dict.fromkeys(("argmax", "argmin"), _rule(1, _always, _to_index)),
    **dict.fromkeys(("any", "all"), _rule(1, _if_any, _to_bool)),
    "count_nonzero": _rule(1, _always, _to_index),
    **dict.fromkeys(("var", "std"), _rule(4, _first, _own)),
    **dict.fromkeys(("var_mean", "std_mean"), _rule(4, _first, _own, results=2)),
    "logsumexp": _rule(4, _always, _own),
    **dict.fromkeys(("norm", "linalg_vector_norm"), _rule(2, _of_norm, _norm_width)),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), _running(1)),
    **dict.fromkeys(("cummax", "cummin"), _running(1, indices=True)),
    # how many comparisons sorting takes depends on the algorithm and the data
    **dict.fromkeys(("sort", "msort", "argsort"), Rule(unknown, _sorted_bytes)),
    "topk": Rule(unknown, _topk_bytes),
    "kthvalue": Rule(unknown, _kth_bytes),
    **dict.fromkeys(("median", "nanmedian"), Rule(unknown, _EXTREMUM.bytes)),
    "searchsorted": Rule(unknown, _search_bytes),
    "bucketize": Rule(unknown, lambda call: call.nbytes(0, 1) + prod(call.shape(0)) * INT64),
    "_foreach_norm": _foreach_reduction(2),
    "_foreach_max": _foreach_reduction(1),
}
for _name in ("max", "min"):
    RULES[_name] = Rule(lambda call: _extremum(call).flop(call), lambda call: _extremum(call).bytes(call))
