"""Matrix products. A multiply-add is 2 FLOP, a complex one 8; adding a bias or an addend is not counted."""

from __future__ import annotations

from functools import partial
from math import prod

from fathom.trace.call import PACKED_FLOAT4, NotInTrace, Shape, TracedCall
from fathom.trace.formulas.rule import UNKNOWN, Count, Rule, nothing

INT32, BFLOAT16 = 4, 2  # bytes


def _multiply_adds(call: TracedCall, a: int, count: int) -> int:
    """FLOP of so many multiply-adds on elements like those of argument a."""
    dtype = call.dtype(a)
    return count * (8 if "complex" in dtype else 2) * (2 if dtype == PACKED_FLOAT4 else 1)


def _product(call: TracedCall, a: int) -> Shape:
    """The shape of the product of arguments a and a + 1, of matrices or stacks of them, with k at its end."""
    left, right = call.shape(a), call.shape(a + 1)
    if len(left) != len(right) or len(left) < 2 or left[-1] != right[-2]:
        raise NotInTrace(f"{call.op}: {left} and {right} are no matrices to multiply")
    return [*left[:-1], right[-1], left[-1]]


def _matrix_flop(call: TracedCall, a: int) -> float:
    return _multiply_adds(call, a, prod(_product(call, a)))


def _matrix_bytes(call: TracedCall, a: int) -> float:
    """Both matrices and the product; the addend at 0, if there is one, where beta (a + 2) is not 0."""
    addend = call.nbytes(0) if a and call.value(a + 2) != 0 else 0
    return call.nbytes(a, a + 1) + addend + prod(_product(call, a)[:-1]) * call.width(a)


def _summed_bytes(call: TracedCall) -> float:
    """addbmm adds the products of all pairs of matrices to one matrix."""
    _, rows, columns, _ = _product(call, 1)
    addend = call.nbytes(0) if call.value(3) != 0 else 0
    return call.nbytes(1, 2) + addend + rows * columns * call.width(1)


def _vector_flop(call: TracedCall, a: int) -> float:
    """A matrix or a vector at a, times the vector after it."""
    return _multiply_adds(call, a, prod(call.shape(a)))


def _vector_bytes(call: TracedCall, a: int) -> float:
    addend = call.nbytes(0) if a and call.value(a + 2) != 0 else 0
    return call.nbytes(a, a + 1) + addend + prod(call.shape(a)[:-1]) * call.width(a)


def _outer_flop(call: TracedCall) -> float:
    """A product for each element, and with it an addition in addr, which has three tensors."""
    if call.name == "addr":
        return _multiply_adds(call, 1, prod(call.shape(1)) * prod(call.shape(2)))
    return prod(call.shape(0)) * prod(call.shape(1)) * (6 if "complex" in call.dtype(0) else 1)


def _outer_bytes(call: TracedCall) -> float:
    a = 1 if call.name == "addr" else 0
    addend = call.nbytes(0) if a and call.value(3) != 0 else 0
    return call.nbytes(a, a + 1) + addend + prod(call.shape(a)) * prod(call.shape(a + 1)) * call.width(a)


def _linear_flop(call: TracedCall) -> float:
    """x [..., k] times the transposed weight [n, k]."""
    return _multiply_adds(call, 0, prod(call.shape(0)) * _outputs(call))


def _outputs(call: TracedCall) -> int:
    x, weight = call.shape(0), call.shape(1)
    if not x or x[-1] != weight[-1]:
        raise NotInTrace(f"{call.op}: {x} does not fit the weight {weight}")
    return prod(weight[:-1])


def _linear_bytes(call: TracedCall) -> float:
    return call.nbytes(0, 1) + call.optional_nbytes(2) + prod(call.shape(0)[:-1]) * _outputs(call) * call.width(0)


def _matmul_shape(call: TracedCall) -> Shape:
    """The broadcast product of two stacks of matrices or vectors, with k at its end."""
    left, right = call.shape(0), call.shape(1)
    rows, columns = left[-2:-1], right[-1:] if len(right) > 1 else []
    stacks = [left[:-2], right[:-2]]
    rank = max(map(len, stacks))
    padded = [[1] * (rank - len(stack)) + stack for stack in stacks]
    return [*(max(pair) for pair in zip(*padded, strict=True)), *rows, *columns, left[-1]]


def _matmul_flop(call: TracedCall) -> float:
    return _multiply_adds(call, 0, prod(_matmul_shape(call)))


def _matmul_bytes(call: TracedCall) -> float:
    return call.nbytes(0, 1) + prod(_matmul_shape(call)[:-1]) * call.width(0)


def _grouped_shape(call: TracedCall, groups: Shape) -> Shape:
    """The product of a grouped product with k at its end; the groups are taken to cover all rows.

    [g, m, k] x [g, k, n] is a stack. Otherwise the offsets cut what has no g: the rows of [M, k] x [g, k, n], the
    columns of [g, m, k] x [k, N], or k in [m, K] x [K, n], which gives a product per group.
    """
    left, right = call.shape(0), call.shape(1)
    if len(left) == len(right) == 3:
        return _product(call, 0)
    if len(left) == len(right) == 2:
        return [*groups, left[0], right[1], left[1]]
    return [left[-2], right[-1], left[-1]]


def _grouped_flop(call: TracedCall) -> float:
    return _multiply_adds(call, 0, prod(_grouped_shape(call, [])))


def _scaled_bytes(scales: Count, bias: int, dtype: int, default: int | None = None) -> Count:
    """An operand each, their scales, a bias where there is one, and the product in its own dtype."""

    def count(call: TracedCall) -> float:
        written = prod(_product(call, 0)[:-1]) * call.dtype_width(dtype, default or call.width(0))
        return call.nbytes(0, 1) + scales(call) + call.optional_nbytes(bias) + written

    return count


def _grouped_bytes(scales: Count, offsets: int, dtype: int, default: int | None = None) -> Count:
    """As a scaled product, with the offsets of the groups (a bias follows them)."""

    def count(call: TracedCall) -> float:
        groups = call.shape(offsets) if call.is_tensor(offsets) else []
        written = prod(_grouped_shape(call, groups)[:-1]) * call.dtype_width(dtype, default or call.width(0))
        return call.nbytes(0, 1) + scales(call) + call.optional_nbytes(offsets, offsets + 1) + written

    return count


def _scale_tensors(call: TracedCall) -> float:
    return call.nbytes(2, 3)


def _scale_lists(call: TracedCall) -> float:
    """Of version 2: lists, whose dtype depends on the recipe and is not in the trace."""
    raise NotInTrace(f"{call.op}: no dtype of the scales")


def _int4_flop(call: TracedCall) -> float:
    """The packed weight's own shape depends on the packing; the scales are [k / group, n, 2]."""
    return _multiply_adds(call, 0, prod(call.shape(0)) * call.shape(3)[1])


def _int4_bytes(call: TracedCall) -> float:
    return call.nbytes(0, 1, 3) + call.shape(0)[0] * call.shape(3)[1] * call.width(0)


def _trilinear_parts(call: TracedCall) -> tuple[list[set[int]], list[int], set[int]]:
    """(a, b, c, where each is expanded, sums): which dimensions each has, their sizes, and what is summed over."""
    expanded, summed = [call.integers(at) for at in (3, 4, 5)], set(call.integers(6))
    shapes = []
    for at, gone in enumerate(expanded):
        shapes.append(call.shape(at))
        for dim in sorted(gone):
            shapes[at].insert(dim, 1)
    axes = range(len(shapes[0]))
    return [set(axes) - set(gone) for gone in expanded], [max(shape[axis] for shape in shapes) for axis in axes], summed


def _trilinear_flop(call: TracedCall) -> float:
    """Two products, as torch computes it: of a and b, summed over what c does not have, then with c."""
    (a, b, c), sizes, summed = _trilinear_parts(call)
    last = ((a | b) - (summed - c)) | c
    return _multiply_adds(call, 0, sum(prod(sizes[axis] for axis in each) for each in (a | b, last)))


def _trilinear_bytes(call: TracedCall) -> float:
    _, sizes, summed = _trilinear_parts(call)
    written = prod(size for axis, size in enumerate(sizes) if axis not in summed)
    return call.nbytes(0, 1, 2) + written * call.width(0)


def _matrix_rule(a: int) -> Rule:
    """Matrices at a and a + 1; with a = 1 an addend is at 0 and beta at 3."""
    return Rule(partial(_matrix_flop, a=a), partial(_matrix_bytes, a=a))


def _vector_rule(a: int) -> Rule:
    return Rule(partial(_vector_flop, a=a), partial(_vector_bytes, a=a))


_LINEAR = Rule(_linear_flop, _linear_bytes)

RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "bmm"), _matrix_rule(0)),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), _matrix_rule(1)),
    "addbmm": Rule(partial(_matrix_flop, a=1), _summed_bytes),
    **dict.fromkeys(("mv", "dot", "vdot"), _vector_rule(0)),
    "addmv": _vector_rule(1),
    **dict.fromkeys(("outer", "ger", "addr"), Rule(_outer_flop, _outer_bytes)),
    **dict.fromkeys(("linear", "mkldnn_linear"), _LINEAR),
    "matmul": Rule(_matmul_flop, _matmul_bytes),
    "_trilinear": Rule(_trilinear_flop, _trilinear_bytes),
    "_int_mm": Rule(partial(_matrix_flop, a=0), lambda call: call.nbytes(0, 1) + prod(_product(call, 0)[:-1]) * INT32),
    "_scaled_mm": Rule(partial(_matrix_flop, a=0), _scaled_bytes(_scale_tensors, bias=4, dtype=6)),
    "_scaled_mm_v2": Rule(partial(_matrix_flop, a=0), _scaled_bytes(_scale_lists, bias=8, dtype=9)),
    "_grouped_mm": Rule(_grouped_flop, _grouped_bytes(nothing, offsets=2, dtype=4)),
    "_scaled_grouped_mm": Rule(_grouped_flop, _grouped_bytes(_scale_tensors, 4, dtype=7, default=BFLOAT16)),
    "_scaled_grouped_mm_v2": Rule(_grouped_flop, _grouped_bytes(_scale_lists, 8, dtype=10, default=BFLOAT16)),
    **dict.fromkeys(("_weight_int4pack_mm", "_weight_int4pack_mm_for_cpu"), Rule(_int4_flop, _int4_bytes)),
    "_weight_int8pack_mm": Rule(_linear_flop, _linear_bytes),
    # the number of non-zeros is not in a trace
    **dict.fromkeys(
        ("_sparse_mm", "_sparse_addmm", "_sparse_sparse_matmul", "_sparse_mm_reduce_impl", "sparse_sampled_addmm"),
        UNKNOWN,
    ),
    **dict.fromkeys((f"_sparse_semi_structured_{kind}" for kind in ("mm", "addmm", "linear")), UNKNOWN),
    "_cslt_sparse_mm": UNKNOWN,
}
