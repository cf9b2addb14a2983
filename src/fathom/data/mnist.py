"""MNIST handwritten digits: a reader of the four idx files (gzipped or not) and a synthetic replacement."""

from __future__ import annotations

import base64
import gzip
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fathom.core.errors import DataError
from fathom.data.base import InMemory

EXPECTS = "MNIST's idx files: train-images-idx3-ubyte(.gz), train-labels-idx1-ubyte(.gz) and the two t10k- files"
SIDE = 28
_PREFIX = {"train": "train", "test": "t10k"}


class Digits(InMemory):
    """Images as rows of 784 bytes, and their labels 0 to 9."""


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
    """An idx file of unsigned bytes; its length must match its header exactly."""
    content = _content(path)
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError.at(path, f"truncated: an idx header of {header} bytes was expected", offset=len(content))
    if content[:4] != bytes([0, 0, 8, dimensions]):
        problem = f"not an idx file of {dimensions}-dimensional bytes (magic {content[:4].hex()})"
        raise DataError.at(path, problem, offset=0)
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    size = int(np.prod(shape, dtype=object))
    if len(content) - header != size:
        problem = f"the header declares {size} bytes of data, the file has {len(content) - header}"
        raise DataError.at(path, problem, offset=min(len(content), header + size))
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError.at(path, f"corrupt gzip: {error}") from None
    except OSError as error:
        raise DataError.at(path, f"cannot be read: {error.strerror or error}") from None


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
