"""FLOP and bytes of one op call, from the arguments in a trace; 1 MAC = 2 FLOP. None is not known, never guessed.

Torch's own counters miss the backward of some ops, everything under inference mode and attention on a CPU, and require
running the program again; these formulas need only the trace. formulas/ has them, one file per family of ops.
"""

from __future__ import annotations

from functools import cache
from math import inf
from typing import NamedTuple

from fathom.trace.call import TracedCall
from fathom.trace.formulas import (
    attention,
    convolutions,
    elementwise,
    lookups,
    movement,
    normalisations,
    optimizers,
    pooling,
    products,
    recurrent,
    reductions,
    resampling,
    transforms,
)
from fathom.trace.formulas.rule import Count, Rule
from fathom.trace.taxonomy import ELEMENTWISE_TYPES, type_of

__all__ = ["Cost", "TracedCall", "bytes_moved", "cost", "flop", "is_multiply_add", "rule_of"]

RULES: dict[str, Rule] = {
    **products.RULES,
    **convolutions.RULES,
    **attention.RULES,
    **recurrent.RULES,
    **normalisations.RULES,
    **reductions.RULES,
    **pooling.RULES,
    **resampling.RULES,
    **transforms.RULES,
    **lookups.RULES,
    **movement.RULES,
    **optimizers.RULES,
    **elementwise.RULES,
}


MULTIPLY_ADDS = {*products.RULES, *convolutions.RULES, *attention.RULES, *recurrent.RULES}


class Cost(NamedTuple):
    """What one call does; None where the trace or the op's definition does not tell."""

    flop: float | None
    bytes: float | None  # every operand read once (of a table, what is looked up), every result written once


def cost(call: TracedCall) -> Cost:
    """FLOP and bytes of a call by its op's rule."""
    return Cost(flop(call), bytes_moved(call))


def flop(call: TracedCall) -> float | None:
    """Multiplications and additions count one each; data movement has 0. None for an op without a rule."""
    rule = rule_of(call.op)
    return _counted(rule.flop, call) if rule else None


def bytes_moved(call: TracedCall) -> float | None:
    """Bytes of operands read once and of results written once; 0 for a view. None for an op without a rule."""
    rule = rule_of(call.op)
    return _counted(rule.bytes, call) if rule else None


def is_multiply_add(op: str) -> bool:
    """Whether the FLOP of an op are those of a matrix product or convolution: 2 FLOP are then one MAC."""
    return op.removeprefix("aten::").removesuffix("_") in MULTIPLY_ADDS


@cache
def rule_of(op: str) -> Rule | None:
    """The rule of an op: its own, or the one of all elementwise ops; None for an op that is not known."""
    if not op.startswith("aten::"):
        return None
    name = op.removeprefix("aten::").removesuffix("_")
    if name in RULES:
        return RULES[name]
    if name.rstrip("_") in elementwise.UNCOUNTED:
        return None
    if name.startswith(elementwise.FOREACH):
        single = name.removeprefix(elementwise.FOREACH)
        return elementwise.FOREACH_ELEMENTWISE if type_of(f"aten::{single}") in ELEMENTWISE_TYPES else None
    return elementwise.ELEMENTWISE if type_of(op) in ELEMENTWISE_TYPES else None


def _counted(count: Count, call: TracedCall) -> float | None:
    """A malformed or missing argument makes a count unknown, whatever it is that fails on it."""
    try:
        found = float(count(call))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        return None
    return found if 0 <= found < inf else None
