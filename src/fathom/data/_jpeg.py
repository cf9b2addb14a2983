"""Decodes a crop of a JPEG image at the smallest sufficient scale; truncated data is an error."""

from __future__ import annotations

import io
import math
import re
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

Box = tuple[float, float, float, float]  # left, top, right, bottom

_BOMBS = (Image.DecompressionBombWarning, Image.DecompressionBombError)
_PILLOW_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error, *_BOMBS)
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # neither stuffing nor a restart inside the data
_FILLER = bytes(range(1, 255)) * 4


class BadImage(Exception):
    """The bytes are not an image, or not a whole one; the message is one line."""


def decode(content: bytes, crop: Callable[[int, int], Box], side: int) -> NDArray[np.uint8]:
    """The box that crop(width, height) chooses, scaled to side x side x 3 bytes."""
    with _pillow_errors_as_bad_image():
        image = _open(content)
        width, height = image.size
        box = crop(width, height)
        # libjpeg decodes at 1/2, 1/4 or 1/8 of the size in a fraction of the time
        min_size = (math.ceil(width * side / (box[2] - box[0])), math.ceil(height * side / (box[3] - box[1])))
        image.draft("RGB", min_size)
        image.load()
        if image.format != "PNG" and _is_truncated(content, image, min_size):
            raise BadImage("corrupt JPEG: the data ends before the image is complete")
        scale_x, scale_y = image.width / width, image.height / height
        right, bottom = min(box[2] * scale_x, image.width), min(box[3] * scale_y, image.height)
        scaled = box[0] * scale_x, box[1] * scale_y, right, bottom
        return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, scaled))


def image_size(content: bytes) -> tuple[int, int]:
    """Width and height, from the header alone."""
    with _pillow_errors_as_bad_image():
        return _open(content).size


@contextmanager
def _pillow_errors_as_bad_image() -> Iterator[None]:
    try:
        yield
    except UnidentifiedImageError:
        raise BadImage("not a JPEG image") from None
    except _PILLOW_ERRORS as error:
        raise BadImage(f"corrupt JPEG: {' '.join(str(error).split())}") from None


def _open(content: bytes) -> Image.Image:
    """Reads the header; an image with more pixels than its bytes can encode is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        # one file of ImageNet's training set, n02105855_2933.JPEG, is a PNG
        image = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
    # a block of 64 pixels takes at least a bit
    if image.format != "PNG" and image.width * image.height > 512 * len(content):
        raise BadImage(f"corrupt JPEG: {len(content)} bytes cannot hold {image.width} x {image.height} pixels")
    return image


def _is_truncated(content: bytes, image: Image.Image, min_size: tuple[int, int]) -> bool:
    """Whether data was missing: libjpeg then fills the rest of the image with grey and reports nothing.

    Only an image whose last pixel is mid-grey can be truncated. It is decoded again with filler bytes after its data:
    a decoder that had all its data skips the filler, one that ran out decodes it as pixels.
    """
    corner = image.crop((image.width - 1, image.height - 1, image.width, image.height))
    if image.mode != "CMYK" and corner.convert("L").getpixel((0, 0)) not in (127, 128, 129):
        return False
    end = _end_of_scan(content)
    repeated = _open(content[:end] + _FILLER + content[end:])
    repeated.draft("RGB", min_size)
    return repeated.tobytes() != image.tobytes()


def _end_of_scan(content: bytes) -> int:
    """The offset of the marker that ends the first scan."""
    marker = _MARKER.search(content, 2)
    while marker and content[marker.start() + 1] != 0xDA:  # every segment up to "start of scan" carries its length
        marker = _MARKER.search(content, _end_of_segment(content, marker))
    marker = marker and _MARKER.search(content, _end_of_segment(content, marker))
    if marker is None:
        raise BadImage("corrupt JPEG: a marker is missing")
    return marker.start()


def _end_of_segment(content: bytes, marker: re.Match[bytes]) -> int:
    return marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])
