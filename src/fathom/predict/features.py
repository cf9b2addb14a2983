"""An op call as numbers that a regression can learn from: work, sizes of its operands, and its shape as a product.

Everything is read from what op rows of a record and calls of a simulated step both have: op, shapes, dtypes, FLOP and
bytes. Sizes are logarithms: times span seven orders of magnitude.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fathom.trace.step_work import OpWork
from fathom.trace.taxonomy import family_of

Floats = NDArray[np.float64]
OPERANDS = 3  # of the first so many, sizes are features
DIMS = 4  # of each, the last so many dimensions
WIDTHS = {"double": 8, "long": 8, "BFloat16": 2, "Half": 2, "bool": 1, "unsigned": 1, "short": 2}  # else 4


def group_of(op: OpWork) -> str:
    """The class of ops that one regression is fitted to: a family, gradients apart from what they are gradients of.

    An optimizer's ops are those of any other part.
    """
    family = family_of("Elementwise" if op.type.startswith("Apply") else op.type)
    backward = "Back" in op.type or op.type.endswith("Grad") or "backward" in op.op
    return f"{family}, backward" if backward else family


def features(op: OpWork, roof_s: float) -> list[float]:
    """As many numbers for every op; absent operands have zeros."""
    shapes = shapes_of(op.shapes)
    flat = [each for shape in shapes for each in (shape if shape and isinstance(shape[0], list) else [shape])]
    numel = [math.prod(shape) for shape in flat]
    found = [
        _log(op.flop or 0.0),
        _log(op.bytes or 0.0),
        math.log(roof_s + 1e-9),
        _log(op.flop or 0.0) - _log(op.bytes or 0.0),
        _log(sum(numel)),
        _log(max(numel, default=0)),
        _log(len(flat)),
        float(WIDTHS.get(op.dtypes.split()[0], 4) if op.dtypes else 4),
        float(op.op.endswith("_")),
    ]
    for at in range(OPERANDS):
        shape = flat[at] if at < len(flat) else []
        last = [0] * (DIMS - len(shape)) + shape[-DIMS:]
        found += [_log(math.prod(shape) if shape else 0), *map(_log, last)]
    return found + _product(op, flat)


def _product(op: OpWork, flat: Sequence[list[int]]) -> list[float]:
    """Rows, columns and inner size of the product that a matrix product or convolution is; zeros for other ops."""
    family = family_of(op.type)
    operands = [shape for shape in flat if len(shape) >= 2]
    if family == "matrix product" and len(operands) >= 2:
        (*batch, m, k), n = operands[-2], operands[-1][-1]
        return [_log(math.prod(batch)), _log(m), _log(n), _log(k)]
    if family == "convolution" and len(operands) >= 2:
        weight = operands[-1]  # of a backward pass the third, after gradient and input
        k = math.prod(weight[1:])
        rows = (op.flop or 0.0) / max(1, 2 * k * weight[0])
        return [_log(math.prod(weight[2:])), _log(rows), _log(weight[0]), _log(k)]
    return [0.0] * 4


def shapes_of(text: str) -> list[Any]:
    """Op rows write "[2, 3] [3]"; a list of tensors is "[[2, 3], [3]]"."""
    try:
        found = json.loads("[" + text.replace("] [", "],[") + "]")
    except ValueError:
        return []
    return [each for each in found if isinstance(each, list)]


def _log(value: float) -> float:
    return math.log2(1.0 + value)
