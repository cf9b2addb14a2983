"""Products and convolutions as sums of what an implementation does: arithmetic, packing, reading, writing, calls.

A roofline has one rate for all of it. Here each term has a rate of its own, found from the timed calls of the same
layout, so that sizes beyond those that were timed follow the term that grows with them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from fathom.predict.call_shape import Convolution, Product, layer_of, point_of
from fathom.trace.step_work import OpWork

Floats = NDArray[np.float64]
ENOUGH = 30  # calls of one layout, to fit it alone; with fewer all layouts are fitted together
LEAST_S = 1e-6  # of a product
DOUBTED = 0.2  # log error from which a call counts less
PASSES = 6
TILE_ROWS, TILE_COLUMNS = 8, 12  # of the small products that libraries are made of: parts of a tile cost all of it


def terms(layer: Product | Convolution, gpu: bool = False) -> list[float]:
    if isinstance(layer, Product):
        return _of_product(layer)
    direct, spectral = _of_convolution(layer), _of_spectra(layer)
    if not gpu:
        return direct
    if layer.by_spectra:
        return [1.0, *[0.0] * (len(direct) - 1), *spectral]
    return [*direct, *[0.0] * len(spectral)]


def _of_product(it: Product) -> list[float]:
    padded = math.ceil(it.rows / TILE_ROWS) * TILE_ROWS * math.ceil(it.columns / TILE_COLUMNS) * TILE_COLUMNS
    operands = (it.rows * it.inner, it.inner * it.columns, it.rows * it.columns, it.rows + it.columns)
    work = 2.0 * it.rows * it.columns * it.inner
    return [1.0, it.stack, it.stack * work, it.stack * padded * it.inner, *(it.stack * each for each in operands)]


def _of_convolution(it: Convolution) -> list[float]:
    """Also the unfolded input and output, which implementations by matrix products write and read."""
    places = it.items * it.places
    unfolded = (places * it.channels * it.kernel, places * it.outputs * it.kernel)
    thin = (it.flop / it.outputs, it.flop * it.groups / it.channels)  # few channels fill no vector
    return [1.0, it.items, it.flop, it.input_size, places * it.outputs, it.weight_size, *unfolded, *thin]


def _of_spectra(it: Convolution) -> list[float]:
    """Products of complex numbers, and the transforms of input, output and weight."""
    points = it.spectra.points
    each = it.channels * it.outputs / it.groups * points
    return [it.items * each, it.items * it.channels * points, it.items * it.outputs * points, each]


class CostTerms:
    """Fitted to timed calls; seconds of a product or convolution, None of any other op."""

    def __init__(self, timed: Iterable[tuple[OpWork, float]], gpu: bool = False) -> None:
        self._gpu = gpu
        alike: dict[str, list[tuple[list[float], float]]] = defaultdict(list)
        for op, seconds in timed:
            layer = layer_of(op)
            if layer is not None:
                row = terms(layer, gpu), max(seconds, LEAST_S)
                kind, _ = point_of(op)
                alike[kind].append(row)
                alike[f"{kind} {layer.layout}"].append(row)
        self._rates = {name: _fitted(rows) for name, rows in alike.items() if len(rows) >= ENOUGH}

    def seconds(self, op: OpWork) -> float | None:
        layer = layer_of(op)
        if layer is None:
            return None
        kind, _ = point_of(op)
        rates = self._rates.get(f"{kind} {layer.layout}", self._rates.get(kind))
        return None if rates is None else max(LEAST_S, float(rates @ np.array(terms(layer, self._gpu))))


def _fitted(rows: Sequence[tuple[list[float], float]]) -> Floats:
    """Relative errors are minimised and nothing is negative; calls that are far off count less each time."""
    matrix, seconds = np.array([row for row, _ in rows]), np.array([took for _, took in rows])
    scale = np.maximum(matrix.max(axis=0), 1e-30)
    weights = 1 / seconds
    solved: Floats = np.zeros(matrix.shape[1])
    for _ in range(PASSES):
        solved, _ = nnls(matrix / scale * weights[:, None], seconds * weights)
        off = np.log(np.maximum(matrix / scale @ solved, 1e-9) / seconds)
        weights = 1 / seconds / np.sqrt(1 + (off / DOUBTED) ** 2)
    rates: Floats = solved / scale
    return rates
