"""Small images: the whole set is decoded once and kept on the device, where batches are augmented and resized."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fathom.data._left_out import left_out
from fathom.data.base import InMemory


class Thumbnails(InMemory):
    """Square images of one size as bytes [3, side, side], and their labels."""

    compared = ("image",)

    def __init__(
        self, image: Tensor, label: Tensor, class_names: Sequence[str], left_out: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(image=image, label=label)
        self.class_names = tuple(class_names)
        self.left_out = left_out or {}  # what is not read of the files -> how many

    @property
    def notes(self) -> list[str]:
        return left_out(self.left_out, len(self), "file")


@dataclass(frozen=True)
class Augmentation:
    """Ranges of random augmentation. A horizontal flip with probability 1/2 is always included."""

    shift: float = 0.0  # largest shift as a share of the side, in x and in y
    zoom: float = 0.0  # 0.2 scales width and height independently by 1/1.2 to 1.2
    rotation: float = 0.0  # largest angle in degrees, in either direction
    colour: float = 0.0  # 0.2 scales brightness, contrast and saturation by 0.8 to 1.2
    cutout: float = 0.0  # the side of the erased square as a share of the image's side


def augmented(image: Tensor, side: int, augmentation: Augmentation) -> Tensor:
    """Bytes [B, 3, h, w], each image augmented independently and resized; draws from torch's global generator."""
    pixels = image.float()
    if augmentation.colour:
        pixels = colour_jittered(pixels, 1 + augmentation.colour * _uniform(3, pixels))
    if augmentation.cutout:
        pixels = cut_out(pixels, torch.rand(2, len(pixels), device=pixels.device), augmentation.cutout)
    return affine_transformed(pixels, random_affine_maps(pixels, augmentation), side)


def resized(image: Tensor, side: int) -> Tensor:
    """Bytes [B, 3, h, w] resized to [B, 3, side, side], without augmentation."""
    return _bytes(F.interpolate(image.float(), (side, side), mode="bilinear"))


def colour_jittered(pixels: Tensor, factors: Tensor) -> Tensor:
    """Saturation, contrast and brightness multiplied by factors [3, B]."""
    saturation, contrast, brightness = factors.view(3, -1, 1, 1, 1).unbind()
    grey = pixels.mean(1, keepdim=True)
    mean = pixels.mean((1, 2, 3), keepdim=True)
    return (mean + (grey - mean + (pixels - grey) * saturation) * contrast) * brightness


def cut_out(pixels: Tensor, centres: Tensor, size: float) -> Tensor:
    """Cutout: a square around a centre [2, B] (y and x from 0 to 1) is filled with the image's mean colour."""
    side = pixels.shape[-1]
    positions = (torch.arange(side, device=pixels.device) + 0.5) / side
    rows, columns = ((positions - centre[:, None]).abs() < size / 2 for centre in centres)
    inside = rows[:, None, :, None] & columns[:, None, None, :]
    return torch.where(inside, pixels.mean((2, 3), keepdim=True), pixels)


def random_affine_maps(pixels: Tensor, augmentation: Augmentation) -> Tensor:
    """A random affine map [2, 3] per image, from output to input coordinates, both from -1 to 1."""
    flip = torch.randint(0, 2, (len(pixels),), device=pixels.device) * 2 - 1
    scale_x, scale_y = torch.pow(1 + augmentation.zoom, _uniform(2, pixels)).unbind()
    angle = math.radians(augmentation.rotation) * _uniform(1, pixels)[0]
    shifts = 2 * augmentation.shift * _uniform(2, pixels)
    cosine, sine = angle.cos(), angle.sin()
    rows = (flip * scale_x * cosine, -scale_y * sine, shifts[0]), (flip * scale_x * sine, scale_y * cosine, shifts[1])
    return torch.stack([torch.stack(row, -1) for row in rows], 1)


def affine_transformed(pixels: Tensor, maps: Tensor, side: int) -> Tensor:
    """Images transformed by the maps and resized in one pass; beyond their edges they are reflected."""
    grid = F.affine_grid(maps, [len(pixels), 3, side, side], align_corners=False)
    return _bytes(F.grid_sample(pixels, grid, padding_mode="reflection", align_corners=False))


def _uniform(rows: int, pixels: Tensor) -> Tensor:
    """Uniform random numbers from -1 to 1, [rows, B]."""
    return torch.rand(rows, len(pixels), device=pixels.device) * 2 - 1


def _bytes(pixels: Tensor) -> Tensor:
    return pixels.round_().clamp_(0, 255).byte()
