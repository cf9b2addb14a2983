"""Fourier transforms: 5 N log2 n FLOP over N complex values in transforms of n, half of it where one side is real.

That is the count of the radix-2 algorithm, by which the speed of FFT libraries is told; other sizes are counted alike.
"""

from __future__ import annotations

from math import log2, prod

from fathom.trace.call import NotInTrace, Shape, TracedCall
from fathom.trace.formulas.rule import Rule

COMPLEX, REAL = 5.0, 2.5  # FLOP for each value and halving


def _axes(call: TracedCall) -> list[int]:
    """The transformed dimensions; a real side is halved along the last of them."""
    shape, given = call.shape(0), call.integers(1)
    if not given or not all(-len(shape) <= each < len(shape) for each in given):
        raise NotInTrace(f"{call.op}: argument 1 names no dimensions of the input")
    return [each % len(shape) for each in given]


def _halved(call: TracedCall) -> Shape:
    """The result of a real transform: of n values n // 2 + 1, as the others are their conjugates; all if asked for."""
    shape, last = call.shape(0), _axes(call)[-1]
    if call.value(3):
        shape[last] = shape[last] // 2 + 1
    return shape


def _restored(call: TracedCall) -> Shape:
    shape, last = call.shape(0), _axes(call)[-1]
    shape[last] = call.integer(3)
    return shape


def _flop(each: float, shape: Shape, axes: list[int]) -> float:
    points = prod(shape[axis] for axis in axes)
    return each * prod(shape) * log2(points) if points else 0.0


RULES: dict[str, Rule] = {
    "_fft_c2c": Rule(lambda call: _flop(COMPLEX, call.shape(0), _axes(call)), lambda call: 2 * call.nbytes(0)),
    "_fft_r2c": Rule(
        lambda call: _flop(REAL, call.shape(0), _axes(call)),
        lambda call: call.nbytes(0) + prod(_halved(call)) * 2 * call.width(0),
    ),
    "_fft_c2r": Rule(
        lambda call: _flop(REAL, _restored(call), _axes(call)),
        lambda call: call.nbytes(0) + prod(_restored(call)) * call.width(0) // 2,
    ),
}
