"""Pooling: one FLOP per output element and element of its window."""

from __future__ import annotations

from math import ceil, prod

from fathom.trace.call import INT64, Shape, TracedCall
from fathom.trace.formulas.rule import Rule, nothing


def _window(call: TracedCall, at: int, rank: int, default: list[int]) -> list[int]:
    values = call.integers(at) or default
    return values * rank if len(values) == 1 else values


def _output(call: TracedCall, rank: int, dilation: int | None, ceil_mode: int) -> Shape:
    """(input, window, stride, padding, ...); without a stride the window is the stride."""
    x, window = call.shape(0), _window(call, 1, rank, [])
    stride, padding = _window(call, 2, rank, window), _window(call, 3, rank, [0])
    spread = _window(call, dilation, rank, [1]) if dilation is not None else [1] * rank
    sizes = []
    for axis in range(rank):
        free = x[axis - rank] + 2 * padding[axis] - spread[axis] * (window[axis] - 1) - 1
        steps = ceil(free / stride[axis]) if call.value(ceil_mode) is True else free // stride[axis]
        if steps * stride[axis] >= x[axis - rank] + padding[axis]:
            steps -= 1  # torch drops a window that would begin in the padding on the right
        sizes.append(steps + 1)
    return [*x[:-rank], *sizes]


def _pool(rank: int, *, dilated: bool, indices: bool = False) -> Rule:
    dilation, ceil_mode = (4, 5) if dilated else (None, 4)

    def outputs(call: TracedCall) -> int:
        return prod(_output(call, rank, dilation, ceil_mode))

    def moved(call: TracedCall) -> float:
        return call.nbytes(0) + outputs(call) * (call.width(0) + (INT64 if indices else 0))

    return Rule(lambda call: outputs(call) * prod(_window(call, 1, rank, [])), moved)


def _of_size(call: TracedCall, at: int) -> int:
    """Elements of a result whose size is an argument."""
    wanted, x = call.integers(at), call.shape(0)
    return prod([*x[: -len(wanted)], *wanted])


def _adaptive(*, indices: bool = False) -> Rule:
    """(input, sizes): every input element is added, or compared, once."""

    def moved(call: TracedCall) -> float:
        return call.nbytes(0) + _of_size(call, 1) * (call.width(0) + (INT64 if indices else 0))

    return Rule(lambda call: prod(call.shape(0)), moved)


def _gradient_bytes(call: TracedCall) -> float:
    """(gradient, input, ...): of the input only the size is used."""
    return call.nbytes(0) + prod(call.shape(1)) * call.width(0)


def _average_gradient(rank: int) -> Rule:
    return Rule(lambda call: prod(call.shape(0)) * prod(_window(call, 2, rank, [])), _gradient_bytes)


def _max_gradient(indices: int) -> Rule:
    """Each gradient is added where the maximum was."""
    return Rule(lambda call: prod(call.shape(0)), lambda call: _gradient_bytes(call) + call.nbytes(indices))


_ADAPTIVE, _ADAPTIVE_MAX = _adaptive(), _adaptive(indices=True)
_FRACTIONAL = Rule(  # (input, window, sizes, random numbers)
    lambda call: _of_size(call, 2) * prod(call.integers(1)),
    lambda call: call.nbytes(0, 3) + _of_size(call, 2) * (call.width(0) + INT64),
)
_UNPOOLED = Rule(nothing, lambda call: call.nbytes(0, 1) + _of_size(call, 2) * call.width(0))  # (input, indices, sizes)

RULES: dict[str, Rule] = {
    **{f"max_pool{rank}d": _pool(rank, dilated=True) for rank in (1, 2, 3)},
    "mkldnn_max_pool2d": _pool(2, dilated=True),
    **{f"max_pool{rank}d_with_indices": _pool(rank, dilated=True, indices=True) for rank in (2, 3)},
    **{f"avg_pool{rank}d": _pool(rank, dilated=False) for rank in (1, 2, 3)},
    **dict.fromkeys(("adaptive_avg_pool2d", "_adaptive_avg_pool2d", "mkldnn_adaptive_avg_pool2d"), _ADAPTIVE),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool3d", "_adaptive_avg_pool3d"), _ADAPTIVE),
    **dict.fromkeys(("adaptive_max_pool2d", "adaptive_max_pool3d"), _ADAPTIVE_MAX),
    **dict.fromkeys(("fractional_max_pool2d", "fractional_max_pool3d"), _FRACTIONAL),
    **dict.fromkeys(("max_unpool2d", "max_unpool3d"), _UNPOOLED),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"), _max_gradient(7)),
    **dict.fromkeys(("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward"), _max_gradient(2)),
    **dict.fromkeys(("fractional_max_pool2d_backward", "fractional_max_pool3d_backward"), _max_gradient(4)),
    **{f"avg_pool{rank}d_backward": _average_gradient(rank) for rank in (2, 3)},
    **dict.fromkeys(
        ("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "mkldnn_adaptive_avg_pool2d_backward"),
        Rule(lambda call: prod(call.shape(1)), _gradient_bytes),
    ),
}
