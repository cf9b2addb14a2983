"""What op calls cost, each by its own arguments, and what rows say of these; equal arguments are looked at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fathom.trace.call import DEFAULT_WIDTH, FLOATING, WIDTH, TracedCall
from fathom.trace.calls import OpCall
from fathom.trace.event import OpArgs
from fathom.trace.flops import Cost, cost
from fathom.trace.taxonomy import AUTOGRAD, OTHER


def alike(calls: Iterable[OpCall]) -> tuple[list[OpCall], list[int]]:
    """The first of each kind of calls that are in one row and cost the same, and the kind of every call."""
    known: dict[tuple[object, ...], int] = {}
    firsts: list[OpCall] = []
    kinds: list[int] = []
    for call in calls:
        inner = call.inner and id(call.inner[1])  # by identity: equal arguments are kept once
        key = (call.op, call.type, call.layer, call.role, call.phase, id(call.args), call.is_wrapper, inner)
        kind = known.get(key)
        if kind is None:
            kind = known[key] = len(firsts)
            firsts.append(call)
        kinds.append(kind)
    return firsts, kinds


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of op calls with equal arguments, as rows show them."""

    shapes: str
    dtypes: str
    widths: frozenset[int]  # bytes per element of the floating-point tensors
    traced: TracedCall  # of no op yet

    @classmethod
    def of(cls, args: OpArgs) -> _Inputs:
        traced = TracedCall.from_args("", args)
        # a number in a tensor without dimensions has the dtype of Python's numbers
        dtypes = {traced.dtype(at) for at, dims in enumerate(traced.dims) if dims} & FLOATING
        return cls(*traced.shown(), frozenset([WIDTH[dtype] for dtype in dtypes]), traced)


class Costs:
    """Of a trace, which repeats its steps."""

    def __init__(self, op_calls: Iterable[OpCall]) -> None:
        distinct = {id(call.args): call.args for call in op_calls}
        self._inputs = {key: _Inputs.of(args) for key, args in distinct.items()}
        self._known: dict[tuple[str, int], Cost] = {}
        widths = {width for inputs in self._inputs.values() for width in inputs.widths}
        # tensors in lists have no dtype in a trace: that of the others, unless these have several, as under autocast
        self._list_width = (widths or {DEFAULT_WIDTH}).pop() if len(widths) < 2 else None

    def row_key(self, call: OpCall) -> tuple[str, ...]:
        """Equal for the op calls of one row."""
        inputs = self._inputs[id(call.args)]
        return call.op, call.type, call.layer, call.role, call.phase, inputs.shapes, inputs.dtypes

    def totals(self, firsts: Sequence[OpCall], counts: Sequence[int], rows: Sequence[int], count: int) -> list[Cost]:
        """The sum over the calls of each row, of so many of each kind; not known where that of one call is not."""
        found: list[list[tuple[int, Cost]]] = [[] for _ in range(count)]
        for call, calls, row in zip(firsts, counts, rows, strict=True):
            if calls:
                found[row].append((calls, self._of(call)))
        return [
            Cost(_sum([(calls, each.flop) for calls, each in row]), _sum([(calls, each.bytes) for calls, each in row]))
            for row in found
        ]

    def _of(self, call: OpCall) -> Cost:
        if call.type == AUTOGRAD or (call.is_wrapper and call.op.startswith("aten::") and call.type != OTHER):
            return Cost(0.0, 0.0)  # the ops inside it do the work; another library's may only allocate for it
        op, args = call.inner or (call.op.partition(" ")[0], call.args)
        key = (op, id(args))
        if key not in self._known:
            inputs = self._inputs[id(args)] if id(args) in self._inputs else _Inputs.of(args)
            self._known[key] = cost(inputs.traced.of(op, self._list_width))
        return self._known[key]


def _sum(values: list[tuple[int, float | None]]) -> float | None:
    known = [count * value for count, value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
