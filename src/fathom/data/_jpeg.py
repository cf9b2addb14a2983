"""One part of a JPEG picture, decoded no larger than needed, and refused when any of its data is missing."""

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
_PILLOW_REFUSES = (OSError, SyntaxError, ValueError, EOFError, struct.error, *_BOMBS)
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # neither stuffing nor a restart inside the data
_JUNK = bytes(range(1, 255)) * 4


class BadPicture(Exception):
    """Bytes that are no picture, or not all of one; the text is one line."""


def decode(content: bytes, part: Callable[[int, int], Box], side: int) -> NDArray[np.uint8]:
    """The part that is chosen for the picture's width and height, as side x side x 3 bytes."""
    with _told_in_one_line():
        image = _opened(content)
        width, height = image.size
        box = part(width, height)
        # libjpeg decodes at 1/2, 1/4 or 1/8 in a fraction of the time, where that leaves pixels enough
        least = (math.ceil(width * side / (box[2] - box[0])), math.ceil(height * side / (box[3] - box[1])))
        image.draft("RGB", least)
        image.load()
        if image.format != "PNG" and _ran_out(content, image, least):
            raise BadPicture("corrupt JPEG: its data end before the picture does")
        across, down = image.width / width, image.height / height
        scaled = box[0] * across, box[1] * down, min(box[2] * across, image.width), min(box[3] * down, image.height)
        return np.asarray(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR, scaled))


def size(content: bytes) -> tuple[int, int]:
    """Width and height, from the header alone."""
    with _told_in_one_line():
        return _opened(content).size


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    try:
        yield
    except UnidentifiedImageError:
        raise BadPicture("not a JPEG picture") from None
    except _PILLOW_REFUSES as error:
        raise BadPicture(f"corrupt JPEG: {' '.join(str(error).split())}") from None


def _opened(content: bytes) -> Image.Image:
    """The picture with its header read, refused if it promises more pixels than its bytes can hold."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        # one picture of ImageNet's training set, n02105855_2933.JPEG, is a PNG
        image = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
    if image.format != "PNG" and image.width * image.height > 512 * len(content):  # a block of 64 takes a bit at least
        raise BadPicture(f"corrupt JPEG: {len(content)} bytes promise {image.width} x {image.height} pixels")
    return image


def _ran_out(content: bytes, image: Image.Image, least: tuple[int, int]) -> bool:
    """Whether the data were too few: libjpeg then paints the rest of the picture grey and does not say so.

    Only a picture with a mid-grey last corner can be such a one. It is decoded once more with junk behind its data:
    a decoder that had all it needed skips the junk, one that went short takes it for picture.
    """
    corner = image.crop((image.width - 1, image.height - 1, image.width, image.height))
    if image.mode != "CMYK" and corner.convert("L").getpixel((0, 0)) not in (127, 128, 129):
        return False
    end = _end_of_scan(content)
    again = _opened(content[:end] + _JUNK + content[end:])
    again.draft("RGB", least)
    return again.tobytes() != image.tobytes()


def _end_of_scan(content: bytes) -> int:
    """Where the data of the first scan meet the next marker."""
    marker = _MARKER.search(content, 2)
    while marker and content[marker.start() + 1] != 0xDA:  # every segment up to "start of scan" carries its length
        marker = _MARKER.search(content, _behind(content, marker))
    marker = marker and _MARKER.search(content, _behind(content, marker))
    if marker is None:
        raise BadPicture("corrupt JPEG: its markers do not follow one another")
    return marker.start()


def _behind(content: bytes, marker: re.Match[bytes]) -> int:
    return marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])
