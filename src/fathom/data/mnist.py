"""MNIST handwritten digits: a reader of the four idx files (gzipped or not) and a synthetic replacement."""

from __future__ import annotations

import base64
import io
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fathom.core.errors import DataError
from fathom.core.files import MB, limit_of, too_large, unpacked
from fathom.data.base import InMemory

EXPECTS = "MNIST's idx files: train-images-idx3-ubyte(.gz), train-labels-idx1-ubyte(.gz) and the two t10k- files"
SIDE = 28
MOST_BYTES = 2000 * MB  # of one file, unpacked: MNIST has 47 MB, EMNIST 550 MB
_CHUNK = 1 << 20
_PREFIX = {"train": "train", "test": "t10k"}
_DIGITS = {  # images of each digit in MNIST itself
    "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    "test": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
}


class Digits(InMemory):
    """Images as rows of 784 bytes, and their labels 0 to 9."""

    compared = ("pixels",)


def read(folder: Path, split: str = "train") -> Digits:
    prefix = _PREFIX[split]
    images = read_idx(_find(folder, f"{prefix}-images-idx3-ubyte"), dimensions=3)
    labels = read_idx(_find(folder, f"{prefix}-labels-idx1-ubyte"), dimensions=1)
    if images.shape[1:] != (SIDE, SIDE):
        raise DataError.at(folder, f"{prefix} images are {images.shape[1]} x {images.shape[2]}, expected 28 x 28")
    if len(images) != len(labels):
        raise DataError.at(folder, f"{len(images)} {prefix} images but {len(labels)} labels")
    if len(labels) == 0 or labels.max() > 9:
        raise DataError.at(folder, f"{prefix} labels must be digits 0 to 9, and at least one")
    return Digits(pixels=torch.from_numpy(images.reshape(len(images), -1)), label=torch.from_numpy(labels).long())


def is_mnist(folder: Path) -> bool:
    """Whether this is MNIST, all of it; Fashion-MNIST and others come in files of the same names and sizes."""
    try:
        labels = {split: read_idx(_find(folder, f"{name}-labels-idx1-ubyte"), 1) for split, name in _PREFIX.items()}
    except DataError:
        return False
    return all(tuple(np.bincount(labels[split], minlength=10)) == counts for split, counts in _DIGITS.items())


def synthetic(seed: int, items: int = 4096) -> Digits:
    """Ten smooth shapes, one per class and equal for every seed, shifted and dimmed: as compressible as handwriting."""
    rng = np.random.default_rng(seed)
    grid = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32)
    centres = np.random.default_rng(0).uniform(7, 21, (10, 6, 2, 1, 1)).astype(np.float32)
    shapes = np.exp(-((grid - centres) ** 2).sum(2) / 8).sum(1).clip(0, 1)
    labels = rng.integers(0, 10, items)
    shifts = rng.integers(-2, 3, (items, 2))
    images = np.stack([np.roll(shapes[label], shift, (0, 1)) for label, shift in zip(labels, shifts, strict=True)])
    images *= rng.uniform(0.7, 1.0, (items, 1, 1)).astype(np.float32)
    pixels = torch.from_numpy((images * 255).astype(np.uint8).reshape(items, -1))
    return Digits(pixels=pixels, label=torch.from_numpy(labels).long())


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes; its length must match its header exactly. No more is read than the header says."""
    header = 4 + 4 * dimensions
    with unpacked(path, MOST_BYTES) as file:
        begin = file.read(header)
        if len(begin) < header:
            raise DataError.at(path, f"truncated: an idx header of {header} bytes was expected", offset=len(begin))
        if begin[:4] != bytes([0, 0, 8, dimensions]):
            problem = f"not an idx file of {dimensions}-dimensional bytes (magic {begin[:4].hex()})"
            raise DataError.at(path, problem, offset=0)
        shape = struct.unpack(f">{dimensions}I", begin[4:])
        size = int(np.prod(shape, dtype=object))
        if not size:
            raise DataError.at(path, f"the header declares no data: {' x '.join(map(str, shape))}", offset=4)
        if size > (most := limit_of(MOST_BYTES)):
            raise too_large(path, f"the header declares {size} bytes of data, more", most)
        content = _at_most(file, size + 1)
    if len(content) != size:
        found = "more" if len(content) > size else str(len(content))
        problem = f"the header declares {size} bytes of data, the file has {found}"
        raise DataError.at(path, problem, offset=header + min(len(content), size))
    return np.frombuffer(content, np.uint8).reshape(shape)


def _at_most(file: BinaryIO, size: int) -> bytearray:
    """So many bytes or fewer, in pieces: memory is taken for what the file has, not for what its header claims."""
    content = bytearray()
    while len(content) < size and (chunk := file.read(min(_CHUNK, size - len(content)))):
        content += chunk
    return content


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.exists():
            return candidate
    raise DataError.at(folder, f"{name} or {name}.gz is missing; the folder must contain {EXPECTS}")


def tiled_png(digits: Tensor, across: int) -> str:
    """Digits (rows of 784 values, 0 to 1) tiled into one image, `across` per line, dark on light: a PNG in base64."""
    rows = digits.float().cpu().view(-1, across, SIDE, SIDE).transpose(1, 2).reshape(-1, across * SIDE)
    file = io.BytesIO()
    Image.fromarray((255 - 255 * rows.clamp(0, 1)).byte().numpy()).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
