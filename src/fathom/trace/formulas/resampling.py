"""Images at another size: each value of the result is a weighted sum of a few of the input, a copy or a gathering.

Of n values that is n products and n - 1 additions; of its gradient, which goes back to the n, a product and an addition
each. Where values are read is not counted. With anti-aliasing n depends on the sizes, and nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable
from math import floor, prod

from fathom.trace.call import NotInTrace, Shape, TracedCall
from fathom.trace.formulas.rule import Rule, nothing

SOURCES = {"linear1d": 2, "bilinear2d": 4, "trilinear3d": 8, "bicubic2d": 16}  # of one value of the result
NEAREST = [f"{kind}{dims}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for dims in (1, 2, 3)]
GRID_SOURCES = {0: 2, 1: 1, 2: 4}  # interpolation mode -> in each dimension: linear, nearest, cubic


def _resized(call: TracedCall) -> Shape:
    """(input, sizes, ...), or with no sizes and the factors as the last argument."""
    batch, places = call.shape(0)[:2], call.shape(0)[2:]
    sizes = call.value(1)
    if sizes is None:
        factors = call.value(call.arguments - 1)
        if not isinstance(factors, list) or len(factors) != len(places):
            raise NotInTrace(f"{call.op}: neither sizes nor factors")
        sizes = [floor(size * factor) for size, factor in zip(places, factors, strict=True)]
    if len(sizes) != len(places):
        raise NotInTrace(f"{call.op}: {len(sizes)} sizes of {len(places)} dimensions")
    return [*batch, *sizes]


def _forward(sources: int) -> Rule:
    return Rule(
        lambda call: (2 * sources - 1) * prod(_resized(call)) if sources > 1 else 0.0,
        lambda call: call.nbytes(0) + prod(_resized(call)) * call.width(0),
    )


def _backward(sources: int) -> Rule:
    """(gradient, sizes of the result, shape of the input, ...)."""
    each = 2 * sources if sources > 1 else 1
    return Rule(
        lambda call: each * prod(call.shape(0)),
        lambda call: call.nbytes(0) + prod(call.integers(2)) * call.width(0),
    )


def _unfolded(call: TracedCall) -> float:
    """im2col(input, kernel, dilation, padding, stride): every patch as a column."""
    *batch, channels, height, width = call.shape(0)
    kernel, dilation, padding, stride = (call.integers(at) for at in range(1, 5))
    sides = zip((height, width), kernel, dilation, padding, stride, strict=True)
    patches = prod((size + 2 * pad - step * (k - 1) - 1) // by + 1 for size, k, step, pad, by in sides)
    return prod(batch) * channels * prod(kernel) * patches


def _folded(call: TracedCall) -> float:
    """col2im(columns, sizes of the result, kernel, ...): the columns' values added up where patches overlap."""
    *batch, rows, _ = call.shape(0)
    return prod(batch) * rows // prod(call.integers(2)) * prod(call.integers(1))


def _sampled(call: TracedCall) -> int:
    """(input [N, C, ...], grid [N, ..., dimensions], mode, ...): a value of each channel at each place of the grid."""
    return call.shape(0)[1] * prod(call.shape(1)[:-1])


def _at_grid(dims: int) -> Rule:
    def flop(call: TracedCall) -> float:
        sources = GRID_SOURCES[call.integer(2)] ** dims
        return (2 * sources - 1) * _sampled(call) if sources > 1 else 0.0

    return Rule(flop, lambda call: call.nbytes(0, 1) + _sampled(call) * call.width(0))


def _back_from_grid(dims: int) -> Rule:
    """(gradient, input, grid, mode, ..., 6 which gradients are asked for): of the input's as above.

    A coordinate's is a weighted sum of the n values, a product with the gradient, and an addition over the channels.
    """

    def flop(call: TracedCall) -> float:
        sources: int = GRID_SOURCES[call.integer(3)] ** dims
        of_input, of_grid = call.mask(6, 2)
        if sources == 1:
            return prod(call.shape(0)) * of_input
        return prod(call.shape(0)) * (2 * sources * of_input + dims * (2 * sources + 1) * of_grid)

    def moved(call: TracedCall) -> float:
        of_input, of_grid = call.mask(6, 2)
        written = prod(call.shape(1)) * of_input + prod(call.shape(2)) * of_grid
        return call.nbytes(0, 2) + (call.nbytes(1) if of_grid else 0) + written * call.width(0)

    return Rule(flop, moved)


def _places(call: TracedCall) -> int:
    """affine_grid(matrices [N, d, d + 1], size [N, C, ...]): d coordinates at each place."""
    batch, _, *sizes = call.integers(1)
    return batch * prod(sizes) * len(sizes)


# each of d coordinates and 1: a weighted sum of d + 1
_AFFINE = Rule(
    lambda call: (2 * call.shape(0)[-1] - 1) * _places(call),
    lambda call: call.nbytes(0) + _places(call) * call.width(0),
)


def _moved(written: Callable[[TracedCall], float]) -> Callable[[TracedCall], float]:
    return lambda call: call.nbytes(0) + written(call) * call.width(0)


RULES: dict[str, Rule] = {
    **dict.fromkeys(NEAREST, _forward(1)),
    **dict.fromkeys([f"{name}_backward" for name in NEAREST], _backward(1)),
    **{f"upsample_{name}": _forward(sources) for name, sources in SOURCES.items()},
    **{f"upsample_{name}_backward": _backward(sources) for name, sources in SOURCES.items()},
    **dict.fromkeys(
        ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle"),
        Rule(nothing, lambda call: 2 * call.nbytes(0)),
    ),
    "im2col": Rule(nothing, _moved(_unfolded)),
    "col2im": Rule(lambda call: prod(call.shape(0)), _moved(_folded)),
    "grid_sampler_2d": _at_grid(2),
    "grid_sampler_3d": _at_grid(3),
    "grid_sampler_2d_backward": _back_from_grid(2),
    "grid_sampler_3d_backward": _back_from_grid(3),
    "affine_grid_generator": _AFFINE,
}
