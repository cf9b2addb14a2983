"""A convolution as a product of spectra, which libraries for GPUs choose where it takes fewer multiplications.

The image is cut into tiles whose discrete Fourier transforms are multiplied with that of the kernel. cuDNN does so in
fp32 for strides of 1: in the forward pass where an image is one tile, for gradients also with several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TILES = (16, 32)  # places on a side
OF_COMPLEX = 4  # real multiplications in a complex one


@dataclass(frozen=True)
class Spectra:
    """Of one item."""

    gain: float = 0.0  # multiplications of the direct sum over those of the product; 0 where there is no such product
    tiles: int = 1
    points: float = 0.0  # frequencies of all tiles, of a channel

    def are_used(self, backward: bool) -> bool:
        return self.gain > 1 and (backward or self.tiles == 1)


NONE = Spectra()


def spectra_of(sides: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> Spectra:
    """With the size of tile that takes the fewest multiplications."""
    if len(sides) != 2 or max(stride) > 1 or max(kernel) == 1:
        return NONE
    margins = padding if len(padding) == 2 else [padding[0]] * 2
    padded = [side + 2 * margin for side, margin in zip(sides, margins, strict=True)]
    return max((_with_tile(tile, padded, kernel) for tile in TILES if tile > max(kernel)), key=_gain, default=NONE)


def _gain(found: Spectra) -> float:
    return found.gain


def _with_tile(tile: int, padded: Sequence[int], kernel: Sequence[int]) -> Spectra:
    places = [side - width + 1 for side, width in zip(padded, kernel, strict=True)]  # of the output
    along = [
        1 if side <= tile else math.ceil(out / (tile - width + 1))
        for side, width, out in zip(padded, kernel, places, strict=True)
    ]
    points = math.prod(along) * tile * (tile // 2 + 1)
    return Spectra(math.prod(places) * math.prod(kernel) / (OF_COMPLEX * points), math.prod(along), points)
