"""Look-ups and what goes back into a table: of the table, as much is read or written as is looked up.

An addition into a table is one FLOP per element. The indices of aten::index and index_put are not in a trace, but known
where a step is simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from math import prod

from fathom.trace.call import NotInTrace, TracedCall
from fathom.trace.formulas.elementwise import broadcast
from fathom.trace.formulas.rule import Rule, nothing

Elements = Callable[[TracedCall], int]


def _looked_up(elements: Elements, index: int) -> Rule:
    """So many elements of the table at 0 are read, with the indices, and written."""
    return Rule(nothing, lambda call: 2 * elements(call) * call.width(0) + call.nbytes(index))


def _selected(call: TracedCall) -> int:
    """(table, dimension, index): the table with this dimension as long as the index."""
    sizes = call.shape(0)
    sizes[call.integer(1)] = prod(call.shape(2))
    return prod(sizes)


def _into(elements: Elements, sources: tuple[int, ...], *, adds: bool) -> Rule:
    """(table, dimension, index, source): in place, elements of the table are written, and read if they are added to.

    Otherwise the whole table is read and written.
    """

    def moved(call: TracedCall) -> float:
        read = call.nbytes(2) + sum(call.nbytes(source) for source in sources if call.is_tensor(source))
        if call.is_in_place:
            return read + elements(call) * call.width(0) * (2 if adds else 1)
        return read + call.nbytes(0) + prod(call.shape(0)) * call.width(0)

    return Rule(lambda call: elements(call) if adds else 0, moved)


def _chosen(call: TracedCall) -> int:
    """(table, indices): an element of the other dimensions for each of the indices, broadcast."""
    indices = call.optional_shapes(1)
    kept = [size for size, index in zip_longest(call.shape(0), indices) if index is None]
    return prod(broadcast([each for each in indices if each is not None])) * prod(kept)


def _indices_bytes(call: TracedCall) -> int:
    if call.list_width is None:
        raise NotInTrace(f"{call.op}: no dtype of the indices")
    return sum(prod(each) for each in call.optional_shapes(1) if each is not None) * call.list_width


def _adds(call: TracedCall) -> bool:
    """index_put(table, indices, values, accumulate)"""
    return call.value(3) is True


def _put_bytes(call: TracedCall) -> float:
    read = _indices_bytes(call) + call.nbytes(2)
    if call.is_in_place:
        return read + _chosen(call) * call.width(0) * (2 if _adds(call) else 1)
    return read + call.nbytes(0) + prod(call.shape(0)) * call.width(0)


def _indexed(call: TracedCall) -> int:
    return prod(call.shape(2))


def _scatter_flop(call: TracedCall) -> float:
    """scatter(table, dimension, index, source or value), or with a reduction as argument 4, which is a word."""
    return _indexed(call) if call.arguments > 4 and not call.is_tensor(4) else 0


def _back(elements: Elements, index: int, written: Elements) -> Rule:
    """(gradient, ...): read with the indices; the gradient of the whole table is written."""
    return Rule(elements, lambda call: call.nbytes(0, index) + written(call) * call.width(0))


def _gradient(call: TracedCall) -> int:
    return prod(call.shape(0))


def _size_given(call: TracedCall) -> int:
    return prod(call.integers(1))


def _is_sparse(call: TracedCall) -> bool:
    return call.name == "embedding_backward" and call.value(5) is True


def _embedding_gradient(call: TracedCall) -> int:
    """(gradient, indices, rows of the table, ...): the whole table, or if it is sparse a row per index."""
    rows = prod(call.shape(1)) if _is_sparse(call) else call.integer(2)
    return rows * call.shape(0)[-1]


def _bag_size(call: TracedCall) -> int:
    return prod(call.shape(1)) * call.shape(0)[-1]


def _bags(call: TracedCall) -> int:
    """Elements of the result; the last offset may be the end of the last bag."""
    return (prod(call.shape(2)) - (call.value(7) is True)) * call.shape(0)[1]


SUM, MEAN = 0, 1  # modes of an embedding bag; the third is the maximum


def _bag_flop(call: TracedCall) -> float:
    """One per element looked up, another for its weight, and one per result of a mean."""
    weighted = call.is_tensor(6)
    return _bag_size(call) * (2 if weighted else 1) + (_bags(call) if call.integer(4) == MEAN else 0)


def _bag_bytes(call: TracedCall) -> float:
    """Which row went into which bag is a result, too, that is not counted."""
    read = _bag_size(call) * call.width(0) + call.nbytes(1, 2) + call.optional_nbytes(6)
    return read + _bags(call) * call.width(0)


def _bag_gradient(bags: int, rows: int, mode: int, weights: int, *, sparse: int | bool) -> Rule:
    """(gradient of the bags, indices, ...): a row of the bag's gradient is added per index, or made a sparse row."""

    def is_sparse(call: TracedCall) -> bool:
        return sparse if isinstance(sparse, bool) else call.value(sparse) is True

    def flop(call: TracedCall) -> float:
        scaled = call.is_tensor(weights) or call.integer(mode) == MEAN
        return _bag_size(call) * ((0 if is_sparse(call) else 1) + (1 if scaled else 0))

    def moved(call: TracedCall) -> float:
        count = prod(call.shape(1)) if is_sparse(call) else call.integer(rows)
        written = count * call.shape(0)[-1] * call.width(0)
        return call.nbytes(0, 1, bags) + call.optional_nbytes(weights) + written

    return Rule(flop, moved)


_EMBEDDING_GRADIENT = Rule(
    lambda call: 0 if _is_sparse(call) else _gradient(call),
    lambda call: call.nbytes(0, 1) + _embedding_gradient(call) * call.width(0),
)
# (gradient of the bags, table, indices, offsets, bags): of each row looked up, its product with its bag's gradient
_WEIGHTS_GRADIENT = Rule(
    lambda call: 2 * prod(call.shape(2)) * call.shape(1)[-1],
    lambda call: call.nbytes(0, 2, 4) + prod(call.shape(2)) * (call.shape(1)[-1] * call.width(1) + call.width(0)),
)
_SIZED = Rule(nothing, lambda call: call.nbytes(0) + _size_given(call) * call.width(0))
_FROM_SOURCE: Elements = lambda call: prod(call.shape(3))  # noqa: E731

RULES: dict[str, Rule] = {
    "embedding": _looked_up(lambda call: prod(call.shape(1)) * call.shape(0)[-1], 1),
    "index_select": _looked_up(_selected, 2),
    "gather": _looked_up(_indexed, 2),
    **dict.fromkeys(("take", "take_along_dim"), _looked_up(lambda call: prod(call.shape(1)), 1)),
    **dict.fromkeys(
        ("index", "_unsafe_index"),
        Rule(nothing, lambda call: 2 * _chosen(call) * call.width(0) + _indices_bytes(call)),
    ),
    **dict.fromkeys(
        ("index_put", "_index_put_impl", "_unsafe_index_put"),
        Rule(lambda call: _chosen(call) if _adds(call) else 0, _put_bytes),
    ),
    "scatter": Rule(_scatter_flop, _into(_indexed, (3,), adds=False).bytes),
    **dict.fromkeys(("scatter_add", "scatter_reduce"), _into(_indexed, (3,), adds=True)),
    **dict.fromkeys(("index_add", "index_reduce"), _into(_FROM_SOURCE, (3,), adds=True)),
    "index_copy": _into(_FROM_SOURCE, (3,), adds=False),
    "index_fill": _into(_selected, (3,), adds=False),
    **dict.fromkeys(("embedding_backward", "embedding_dense_backward"), _EMBEDDING_GRADIENT),
    "index_select_backward": _back(_gradient, 3, _size_given),
    "gather_backward": _back(_gradient, 3, lambda call: prod(call.shape(1))),
    **dict.fromkeys(("select_backward", "slice_backward", "diagonal_backward"), _SIZED),
    "unfold_backward": Rule(_gradient, _SIZED.bytes),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), Rule(_bag_flop, _bag_bytes)),
    "_embedding_bag_backward": _bag_gradient(bags=3, rows=6, mode=8, weights=10, sparse=9),
    "_embedding_bag_dense_backward": _bag_gradient(bags=2, rows=5, mode=7, weights=8, sparse=False),
    "_embedding_bag_per_sample_weights_backward": _WEIGHTS_GRADIENT,
    "_embedding_bag_sparse_backward": _bag_gradient(bags=3, rows=5, mode=7, weights=8, sparse=True),
}
