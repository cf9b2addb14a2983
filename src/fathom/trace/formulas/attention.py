"""Scaled dot-product attention: two products forward and five backward, as torch.utils.flop_counter counts them.

A causal mask does not halve the count, and the softmax between the products is not counted. Dense tensors are
[batch, heads, length, size], or [batch, length, heads, size] in the ops below scaled_dot_product_attention. Packed
sequences have their bytes counted and not their FLOP, as their lengths are not in a trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from fathom.trace.call import NotInTrace, TracedCall
from fathom.trace.formulas.rule import Rule

FLOAT32 = 4  # bytes of the logarithm of a row's sum


class Positions(NamedTuple):
    """Where an op has its arguments. Query, key and value follow each other; a gradient stands before them."""

    query: int
    heads: int = 1  # which dimension of the query they are; the length is the other one of 1 and 2
    read: Sequence[int] = ()  # arguments read beside query, key and value, where they are there
    packed: int | None = None  # offsets of packed sequences
    log_sums: int | bool = True  # whether they are written, or the argument that says so
    wanted: int | None = None  # which gradients are asked for
    scores: bool = False  # the scores are a result, too


def _flop(call: TracedCall, at: Positions) -> tuple[int, int]:
    """FLOP of query x key and of scores x value."""
    if at.packed is not None and call.is_tensor(at.packed) and call.shape(at.packed) != [0]:
        raise NotInTrace(f"{call.op}: no lengths of packed sequences")
    query, key, value = (call.shape(at.query + i) for i in range(3))
    if key[-1] != query[-1] or len(key) != len(query) or (at.heads == 2 and len(query) != 4):
        raise NotInTrace(f"{call.op}: {query} does not fit {key}")
    length = key[1] if at.heads == 2 else key[-2]
    return 2 * prod(query) * length, 2 * prod(query[:-1]) * length * value[-1]


def _output_bytes(call: TracedCall, at: Positions) -> int:
    return prod(call.shape(at.query)[:-1]) * call.shape(at.query + 2)[-1] * call.width(at.query)


def _inputs_bytes(call: TracedCall, at: Positions) -> int:
    return call.nbytes(*range(at.query, at.query + 3)) + call.optional_nbytes(*at.read)


def _forward(at: Positions) -> Rule:
    def moved(call: TracedCall) -> float:
        query, key = call.shape(at.query), call.shape(at.query + 1)
        has_sums = at.log_sums if isinstance(at.log_sums, bool) else call.value(at.log_sums) is True
        scores = prod(query[:-1]) * key[-2] * call.width(at.query) if at.scores else 0
        sums = prod(query[:-1]) * FLOAT32 if has_sums else 0
        return _inputs_bytes(call, at) + _output_bytes(call, at) + sums + scores

    return Rule(lambda call: sum(_flop(call, at)), moved)


def _backward(at: Positions) -> Rule:
    def flop(call: TracedCall) -> float:
        """Scores again, then the gradients of value, scores, query and key."""
        scores, values = _flop(call, at)
        return 3 * scores + 2 * values

    def moved(call: TracedCall) -> float:
        wanted = [True] * 3 if at.wanted is None else call.mask(at.wanted, 4)[:3]
        written = [prod(call.shape(at.query + i)) * call.width(at.query + i) for i in range(3) if wanted[i]]
        return call.nbytes(0) + _inputs_bytes(call, at) + sum(written)

    return Rule(flop, moved)


_SDPA = "_scaled_dot_product_"

RULES: dict[str, Rule] = {
    f"{_SDPA}flash_attention": _forward(Positions(0)),
    f"{_SDPA}efficient_attention": _forward(Positions(0, read=(3,), log_sums=4)),
    f"{_SDPA}cudnn_attention": _forward(Positions(0, read=(3,), log_sums=4)),
    f"{_SDPA}flash_attention_for_cpu": _forward(Positions(0, read=(5,))),
    "scaled_dot_product_attention": _forward(Positions(0, read=(3,), log_sums=False)),
    f"{_SDPA}fused_attention_overrideable": _forward(Positions(0, read=(3,))),
    **dict.fromkeys(
        (f"{_SDPA}attention_math", f"{_SDPA}attention_math_for_mps"),
        _forward(Positions(0, read=(3,), log_sums=False, scores=True)),
    ),
    "_flash_attention_forward": _forward(Positions(0, heads=2, read=(3, 4), packed=3)),
    "_efficient_attention_forward": _forward(Positions(0, heads=2, read=(3, 4, 5), packed=4, log_sums=10)),
    "_cudnn_attention_forward": _forward(Positions(0, read=(3, 4, 5), packed=4, log_sums=8)),
    # backward also reads the output and the logarithms of the rows' sums
    f"{_SDPA}flash_attention_backward": _backward(Positions(1, read=(4, 5))),
    f"{_SDPA}efficient_attention_backward": _backward(Positions(1, read=(4, 5, 6), wanted=10)),
    f"{_SDPA}cudnn_attention_backward": _backward(Positions(1, read=(4, 5, 8))),
    f"{_SDPA}flash_attention_for_cpu_backward": _backward(Positions(1, read=(4, 5, 8))),
    "_flash_attention_backward": _backward(Positions(1, heads=2, read=(4, 5, 6, 7), packed=6)),
    "_efficient_attention_backward": _backward(Positions(1, heads=2, read=(4, 5, 6, 7, 10), packed=6)),
    "_cudnn_attention_backward": _backward(Positions(1, read=(4, 5, 8, 9, 10), packed=9)),
}
