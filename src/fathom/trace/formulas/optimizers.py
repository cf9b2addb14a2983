"""Fused optimizer updates: FLOP per weight by their formulas; weights, gradients and state read, and written anew."""

from __future__ import annotations

from collections.abc import Callable

from fathom.trace.call import TracedCall
from fathom.trace.formulas.rule import Rule


def _rule(steps: Callable[[TracedCall], int], state: tuple[int, ...], counters: int | None) -> Rule:
    """Lists: weights 0, gradients 1, state (a list may be empty), and step counts, which are only read."""

    def moved(call: TracedCall) -> float:
        kept = [index for index in state if call.has_shapes(index)]
        read = call.list_bytes(0, 1, *kept) + (call.list_bytes(counters) if counters is not None else 0)
        return read + call.list_bytes(0, *kept)

    return Rule(lambda call: steps(call) * call.list_elements(0), moved)


def _sgd(call: TracedCall) -> int:
    """2 (rate x gradient, subtracted), +2 with weight decay, +3 with momentum, +2 if that is Nesterov's."""
    steps = 2 + (2 if call.number(3) else 0)
    if call.has_shapes(2):  # momentum buffers
        # momentum x buffer + (1 - dampening) x gradient; the first step copies the gradient
        steps += (0 if call.value(9) is True else 3) + (2 if call.value(7) is True else 0)
    return steps


def _adam(call: TracedCall) -> int:
    """13, +1 for AMSGrad's maximum, +2 for weight decay added to the gradient.

    3 for the mean, 4 for the mean square, 3 for its corrected root plus epsilon, 3 for rate x mean / root, subtracted.
    """
    return 13 + (1 if call.has_shapes(4) else 0) + (2 if call.number(9) else 0)


def _adamw(call: TracedCall) -> int:
    """As Adam, but weight decay is one multiplication of the weight."""
    return _adam(call) - (1 if call.number(9) else 0)


def _adagrad(call: TracedCall) -> int:
    """7, +2 with weight decay: 2 for the sum of squares, 5 for rate x gradient / (root + epsilon), subtracted."""
    return 7 + (2 if call.number(6) else 0)


RULES: dict[str, Rule] = {
    "_fused_sgd": _rule(_sgd, (2,), None),
    "_fused_adam": _rule(_adam, (2, 3, 4), 5),
    "_fused_adamw": _rule(_adamw, (2, 3, 4), 5),
    "_fused_adagrad": _rule(_adagrad, (2,), 3),
    # gradients divided by the loss scale, each looked at for a non-finite value; (list, found, inverse scale)
    "_amp_foreach_non_finite_check_and_unscale": Rule(
        lambda call: call.list_elements(0), lambda call: 2 * call.list_bytes(0) + 2 * call.nbytes(1) + call.nbytes(2)
    ),
}
