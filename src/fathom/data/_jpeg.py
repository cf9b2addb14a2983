"""Decodes a crop of a JPEG image, upright, at the smallest sufficient scale; truncated data is an error.

simplejpeg decodes where it is installed: it is libjpeg-turbo as in Pillow, to the same pixels, without Pillow's copies.
Whatever it refuses (CMYK, a PNG, warnings of any kind) Pillow decodes, or says what is wrong with it.
"""

from __future__ import annotations

import io
import math
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import ModuleType
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fathom.core.errors import BadOption

simplejpeg: ModuleType | None = None  # where it is not installed: a platform without a wheel of it
with suppress(ImportError):
    simplejpeg = import_module("simplejpeg")

Box = tuple[float, float, float, float]  # left, top, right, bottom

ENVIRONMENT = "FATHOM_MAX_IMAGE_MEGAPIXELS"
MOST_PIXELS = 90e6  # about Pillow's own limit, which only warns
SCALES = (8, 4, 2)  # libjpeg decodes at 1/2, 1/4 or 1/8 of the size in a fraction of the time
COLOURS = ("YCbCr", "Gray", "RGB")  # of an image that simplejpeg decodes as Pillow does
LEAST_SCALED = 16  # pixels a side: of fewer, scales between these would have as many
MOST_SEGMENTS = 100  # before the first scan, to be looked at one by one
MOST_SCANS = 100  # of a progressive JPEG; usual are 10, and each takes as long as an image
_JPEG_PIXELS_PER_BYTE = 512  # a block of 64 pixels takes at least a bit
_PNG_PIXELS_PER_BYTE = 8 * 1032  # a pixel takes at least a bit, and deflate packs 1032 bytes into one at best
_PILLOW_ERRORS = (OSError, SyntaxError, ValueError, EOFError, struct.error)
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")  # neither stuffing nor a restart inside the data
_SEQUENTIAL = (0xC0, 0xC1, 0xC9)  # frame headers of images that are not progressive
_FILLER = bytes(range(1, 255)) * 4
_ORIENTATION = 0x0112  # the number of EXIF's field
_TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by orientation
_ON_ITS_SIDE = [_TO_UPRIGHT[orientation] for orientation in (5, 6, 7, 8)]


class BadImage(Exception):
    """The bytes are not an image, or not a whole one; the message is one line."""


def decode(content: bytes, crop: Callable[[int, int], Box], side: int) -> NDArray[np.uint8]:
    """The box that crop(width, height) chooses of the upright image, scaled to side x side x 3 bytes."""
    with _pillow_errors_as_bad_image():
        opened = None
        if (size := _size_by_simplejpeg(content)) is None:
            opened = _open(content)
            size = opened.size
        turn = _TO_UPRIGHT.get(_orientation(content))
        width, height = _turned(size, turn)
        box = crop(width, height)  # once: it may be drawn at random
        min_size = (math.ceil(width * side / (box[2] - box[0])), math.ceil(height * side / (box[3] - box[1])))
        min_size = _turned(min_size, turn)  # as it is stored
        image = _by_simplejpeg(content, size, min_size) if opened is None else None
        image = image or _by_pillow(content, opened or _open(content), min_size)
        image = image if turn is None else image.transpose(turn)
        scale_x, scale_y = image.width / width, image.height / height
        right, bottom = min(box[2] * scale_x, image.width), min(box[3] * scale_y, image.height)
        scaled = box[0] * scale_x, box[1] * scale_y, right, bottom
        return np.asarray(image.resize((side, side), Image.Resampling.BILINEAR, scaled))[:, :, :3]


def decoder() -> str:
    """What decodes JPEG here."""
    return "Pillow" if simplejpeg is None else "simplejpeg"


def _size_by_simplejpeg(content: bytes) -> tuple[int, int] | None:
    """Width and height; None where Pillow has to look at the image, or there is no simplejpeg."""
    if simplejpeg is None:
        return None
    _check_scans(content)
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return None
    if colours not in COLOURS:  # it rounds CMYK in another way
        return None
    _check_pixels("JPEG", width, height, len(content))
    return width, height


def _by_simplejpeg(content: bytes, size: tuple[int, int], min_size: tuple[int, int]) -> Image.Image | None:
    """At the scale that Pillow takes, in four bytes a pixel: Pillow can use these where they are."""
    assert simplejpeg is not None
    possible = min(size[0] // min_size[0], size[1] // min_size[1])
    scale = next((each for each in SCALES if possible >= each), 1)
    width, height = (-(-length // scale) for length in size)
    if scale > 1 and min(width, height) < LEAST_SCALED:
        return None
    least = {"min_width": width, "min_height": height} if scale > 1 else {}
    try:
        pixels = simplejpeg.decode_jpeg(content, "RGBX", **least)
    except ValueError:
        return None
    if pixels.shape[:2] != (height, width):
        return None
    return Image.frombuffer("RGBX", (width, height), pixels, "raw", "RGBX", 0, 1)


def _by_pillow(content: bytes, image: Image.Image, min_size: tuple[int, int]) -> Image.Image:
    image.draft("RGB", min_size)
    image.load()
    if image.format != "PNG" and _is_truncated(content, image, min_size):
        raise BadImage("corrupt JPEG: the data ends before the image is complete")
    return _eight_bits(image)


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
    _check_scans(content)
    with _without_pillows_limit():  # ours can be raised
        # one file of ImageNet's training set, n02105855_2933.JPEG, is a PNG
        image = Image.open(io.BytesIO(content), formats=("JPEG", "PNG"))
    _check_pixels(str(image.format), image.width, image.height, len(content))
    return image


def _check_scans(content: bytes) -> None:
    # counting takes a twentieth of decoding, and most images need none
    if not _has_one_scan(content) and content.count(b"\xff\xda") > MOST_SCANS:
        raise BadImage(f"corrupt JPEG: more than {MOST_SCANS} scans")


def _has_one_scan(content: bytes) -> bool:
    """Whether libjpeg reads one scan and no more: a sequential image whose first scan has all its components."""
    components = 0
    for marker, at in _segments(content):
        if marker in _SEQUENTIAL:
            components = content[at + 9]
        elif marker == 0xDA:
            return 0 < components == content[at + 4]
    return False


def _segments(content: bytes) -> Iterator[tuple[int, int]]:
    """The marker and the offset of each segment up to the first scan; they end early where they are damaged."""
    at = 2
    for _ in range(MOST_SEGMENTS):
        header = content[at : at + 10]
        if len(header) < 10 or header[0] != 0xFF:
            return
        yield header[1], at
        if header[1] == 0xDA:
            return
        at += 2 + int.from_bytes(header[2:4])


def _turned(size: tuple[int, int], turn: Image.Transpose | None) -> tuple[int, int]:
    """Width and height after the turn, of those before it; or the other way round."""
    return (size[1], size[0]) if turn in _ON_ITS_SIDE else size


def _orientation(content: bytes) -> int:
    """How EXIF says that the image is stored, from 1, upright, to 8; 1 where it says nothing that can be read.

    Read here: for this alone, Pillow takes twenty times as long.
    """
    for marker, at in _segments(content):
        if marker == 0xE1 and content[at + 4 : at + 10] == b"Exif\0\0":
            return _orientation_in(content[at + 10 : at + 2 + int.from_bytes(content[at + 2 : at + 4])])
    return 1


def _orientation_in(exif: bytes) -> int:
    """From the first directory: a count, then 12 bytes a field, which are its number, type, count and value."""
    order: Literal["little", "big"] = "little" if exif.startswith(b"II") else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(exif[at : at + size], order)

    directory = number(4, 4)
    fields = range(directory + 2, min(directory + 2 + 12 * number(directory, 2), len(exif)), 12)
    return next((number(at + 8, 2) for at in fields if number(at, 2) == _ORIENTATION), 1)


def _check_pixels(kind: str, width: int, height: int, content_bytes: int) -> None:
    """Before memory is taken for what a header claims."""
    pixels, most = width * height, _most_pixels()
    most_per_byte = _PNG_PIXELS_PER_BYTE if kind == "PNG" else _JPEG_PIXELS_PER_BYTE
    if pixels > most_per_byte * content_bytes:
        raise BadImage(f"corrupt {kind}: {content_bytes} bytes cannot hold {width} x {height} pixels")
    if pixels > most:
        limit = f"more than {most / 1e6:,.4g} million; if that is right, set {ENVIRONMENT} to more"
        raise BadImage(f"{width} x {height} pixels, {limit}")


@contextmanager
def _without_pillows_limit() -> Iterator[None]:
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def _most_pixels() -> float:
    text = os.environ.get(ENVIRONMENT, "")
    try:
        return float(text) * 1e6 if text else MOST_PIXELS
    except ValueError:
        raise BadOption(f"{ENVIRONMENT} must be a number of million pixels, not {text[:40]!r}") from None


def _eight_bits(image: Image.Image) -> Image.Image:
    """As red, green and blue of a byte each. Pillow clips grey values of 16 bits, which makes most of them white."""
    if not image.mode.startswith("I"):
        return image.convert("RGB")
    return Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8)).convert("RGB")


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
