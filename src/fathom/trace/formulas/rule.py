"""A rule: how many FLOP one call of an op does, and how many bytes it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fathom.trace.call import TracedCall

Count = Callable[[TracedCall], float]


class Rule(NamedTuple):
    """Either count raises a LookupError (NotInTrace), ValueError or TypeError where the trace lacks what it needs."""

    flop: Count
    bytes: Count


def nothing(_: TracedCall) -> float:
    """No arithmetic, or no memory traffic."""
    return 0.0


def unknown(call: TracedCall) -> float:
    """What shapes cannot tell."""
    raise LookupError(f"{call.op}: not to be told from shapes")


NOTHING = Rule(nothing, nothing)  # a view, or a question about a tensor
UNKNOWN = Rule(unknown, unknown)
