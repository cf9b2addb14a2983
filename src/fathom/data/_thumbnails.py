"""Pictures so small that a whole set is decoded once and kept on the device, where they are varied and enlarged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fathom.data.base import InMemory


class Thumbnails(InMemory):
    """Square pictures of one size as bytes [3, side, side], and the class of each."""

    def __init__(self, image: Tensor, label: Tensor, class_names: Sequence[str]) -> None:
        super().__init__(image=image, label=label)
        self.class_names = tuple(class_names)


@dataclass(frozen=True)
class Variation:
    """How far a picture may be changed to make another of the same class; half of all are mirrored besides."""

    shift: float = 0.0  # of the side, across and down
    zoom: float = 0.0  # 0.2 scales width and height, each for itself, to between 1/1.2 and 1.2
    turn: float = 0.0  # degrees, either way
    colour: float = 0.0  # of brightness, contrast and saturation, more or less
    hole: float = 0.0  # the side of a square that is painted over, of the picture's


def varied(image: Tensor, side: int, by: Variation) -> Tensor:
    """Bytes [B, 3, h, w], each picture changed in a way of its own and enlarged; the chances are torch's own."""
    pixels = image.float()
    if by.colour:
        pixels = coloured(pixels, 1 + by.colour * _either_way(3, pixels))
    if by.hole:
        pixels = cutout(pixels, torch.rand(2, len(pixels), device=pixels.device), by.hole)
    return placed(pixels, placements(pixels, by), side)


def enlarged(image: Tensor, side: int) -> Tensor:
    """Bytes [B, 3, h, w] as they are, only larger."""
    return _bytes(F.interpolate(image.float(), (side, side), mode="bilinear"))


def coloured(pixels: Tensor, factors: Tensor) -> Tensor:
    """Saturation, contrast and brightness times factors [3, B]."""
    saturation, contrast, brightness = factors.view(3, -1, 1, 1, 1).unbind()
    grey = pixels.mean(1, keepdim=True)
    mean = pixels.mean((1, 2, 3), keepdim=True)
    return (mean + (grey - mean + (pixels - grey) * saturation) * contrast) * brightness


def cutout(pixels: Tensor, centres: Tensor, hole: float) -> Tensor:
    """Each picture with a square around its centre [2, B] (of 0 to 1, down and across) in its own mean colour."""
    side = pixels.shape[-1]
    places = (torch.arange(side, device=pixels.device) + 0.5) / side
    rows, columns = ((places - centre[:, None]).abs() < hole / 2 for centre in centres)
    inside = rows[:, None, :, None] & columns[:, None, None, :]
    return torch.where(inside, pixels.mean((2, 3), keepdim=True), pixels)


def placements(pixels: Tensor, by: Variation) -> Tensor:
    """For each picture a random map [2, 3] from places in the result to places in it, both from -1 to 1."""
    mirror = torch.randint(0, 2, (len(pixels),), device=pixels.device) * 2 - 1
    across, down = torch.pow(1 + by.zoom, _either_way(2, pixels)).unbind()
    angle = math.radians(by.turn) * _either_way(1, pixels)[0]
    shifts = 2 * by.shift * _either_way(2, pixels)
    cosine, sine = angle.cos(), angle.sin()
    rows = (mirror * across * cosine, -down * sine, shifts[0]), (mirror * across * sine, down * cosine, shifts[1])
    return torch.stack([torch.stack(row, -1) for row in rows], 1)


def placed(pixels: Tensor, maps: Tensor, side: int) -> Tensor:
    """Turned, scaled, shifted and mirrored as the maps say, and enlarged, all in one pass; edges are reflected."""
    grid = F.affine_grid(maps, [len(pixels), 3, side, side], align_corners=False)
    return _bytes(F.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False))


def _either_way(rows: int, pixels: Tensor) -> Tensor:
    """Even chances from -1 to 1, one for each picture in every row."""
    return torch.rand(rows, len(pixels), device=pixels.device) * 2 - 1


def _bytes(pixels: Tensor) -> Tensor:
    return pixels.round_().clamp_(0, 255).byte()
