"""JPEG by simplejpeg: the same pixels as Pillow's to the last bit, and Pillow's word on all that it refuses."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import numpy as np
import pytest
from conftest import real_data
from PIL import Image, ImageOps
from test_imagenet import jpeg, scene

from fathom.data import _jpeg
from fathom.data._jpeg import BadImage, Box, decode
from fathom.data.imagenet import centre_crop, random_crop

needs_simplejpeg = pytest.mark.skipif(_jpeg.simplejpeg is None, reason="simplejpeg is not installed")


def noisy(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Every block differs, so that a wrong scale, filter or chroma upsampling shows."""
    noise = np.random.default_rng(width * height).integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def by_pillow(content: bytes, crop: Any, side: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    with monkeypatch.context() as without:
        without.setattr(_jpeg, "simplejpeg", None)
        return decode(content, crop, side)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of images that Pillow decoded."""
    found: list[int] = []
    original = _jpeg._by_pillow

    def by_pillow(*arguments: Any) -> Image.Image:
        found.append(1)
        return original(*arguments)

    monkeypatch.setattr(_jpeg, "_by_pillow", by_pillow)
    return found


SAVED: list[dict[str, Any]] = [
    {},
    *({"subsampling": kind} for kind in (0, 1, 2)),
    {"progressive": True},
    {"quality": 30},
    {"restart_marker_blocks": 4},
    {"keep_rgb": True},
]


@needs_simplejpeg
@pytest.mark.parametrize("options", SAVED, ids=str)
@pytest.mark.parametrize("size", [(500, 375), (333, 500), (1023, 769), (40, 31), (17, 16)])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pixels_are_pillows_at_every_scale_to_the_last_bit(
    size: tuple[int, int], mode: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = jpeg(noisy(*size, mode), **options)
    for side in (8, 16, 32, 64, 224):
        for crop in (centre_crop, lambda width, height: (0.0, 0.0, float(width), float(height))):
            expected = by_pillow(content, crop, side, monkeypatch)
            assert np.array_equal(decode(content, crop, side), expected), f"{side} pixels a side"


@needs_simplejpeg
def test_a_usual_image_is_decoded_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    decode(jpeg(scene(500, 375)), centre_crop, 224)
    decode(jpeg(noisy(500, 375, "L")), centre_crop, 64)
    assert calls == []
    assert _jpeg.decoder() == "simplejpeg"


@needs_simplejpeg
@pytest.mark.parametrize("kind", ["CMYK", "PNG", "tiny"])
def test_what_simplejpeg_does_not_decode_pillow_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {
        "CMYK": lambda: jpeg(noisy(200, 150, "CMYK")),
        "PNG": lambda: jpeg(noisy(200, 150), format="PNG"),
        "tiny": lambda: jpeg(noisy(12, 12)),
    }
    content = made[kind]()
    expected = by_pillow(content, centre_crop, 4, monkeypatch)
    calls = counted(monkeypatch)
    assert np.array_equal(decode(content, centre_crop, 4), expected)
    assert calls == [1]


@pytest.mark.parametrize("without", [False, True])
def test_the_crop_is_drawn_once_also_where_the_first_decoder_refuses(
    without: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second draw would give other crops to all images after this one."""
    if without:
        monkeypatch.setattr(_jpeg, "simplejpeg", None)
    drawn: list[tuple[int, int]] = []

    def crop(width: int, height: int) -> Box:
        drawn.append((width, height))
        return 0.0, 0.0, float(width), float(height)

    for content in (jpeg(scene(100, 80)), jpeg(noisy(90, 70, "CMYK"))):
        decode(content, crop, 16)
    assert drawn == [(100, 80), (90, 70)]


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_truncated_data_is_an_error_whoever_decodes(kept: float, monkeypatch: pytest.MonkeyPatch) -> None:
    content = jpeg(noisy(300, 200))
    cut = content[: int(kept * len(content))]
    for side in (16, 64, 224):
        with pytest.raises(BadImage, match="corrupt JPEG"):
            decode(cut, centre_crop, side)
        with pytest.raises(BadImage, match="corrupt JPEG"):
            by_pillow(cut, centre_crop, side, monkeypatch)


@needs_simplejpeg
@pytest.mark.realdata
def test_photographs_give_the_same_pixels_from_both(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted((real_data("imagenet-samples") / "train").rglob("*.JPEG"))
    assert paths
    for number, path in enumerate(paths):
        content = path.read_bytes()
        for side in (32, 224):
            ours, theirs = (partial(random_crop, np.random.default_rng(number)) for _ in range(2))
            expected = by_pillow(content, theirs, side, monkeypatch)
            assert np.array_equal(decode(content, ours, side), expected), path


def segments(content: bytes) -> tuple[bytes, bytes]:
    """What precedes the first scan, and the first scan with all that follows."""
    at = content.index(b"\xff\xda")
    return content[:at], content[at:]


def test_an_image_of_one_scan_is_told_from_one_of_many() -> None:
    assert _jpeg._has_one_scan(jpeg(noisy(64, 64)))
    assert _jpeg._has_one_scan(jpeg(noisy(64, 64, "L")))
    assert _jpeg._has_one_scan(jpeg(noisy(64, 64), exif=b"Exif\0\0" + bytes(5000)))
    assert not _jpeg._has_one_scan(jpeg(noisy(64, 64), progressive=True))
    head, scan = segments(jpeg(noisy(64, 64)))
    part = scan[:4] + b"\x01" + scan[5:]  # the first scan has one of three components: others have to follow
    assert not _jpeg._has_one_scan(head + part)
    for broken in (b"", b"\xff\xd8", head, head[:100], b"\xff\xd8" + b"\xff\xe0\x00\x00" * 1000):
        assert not _jpeg._has_one_scan(broken)


@pytest.mark.parametrize("options", [{"progressive": True}, {}], ids=str)
def test_many_scans_are_refused_where_they_would_be_read(options: dict[str, Any]) -> None:
    head, scan = segments(jpeg(noisy(64, 64), **options))
    part = scan if options else scan[:4] + b"\x01" + scan[5:]
    with pytest.raises(BadImage, match="more than 100 scans"):
        decode(head + part[:-2] * 101 + part[-2:], centre_crop, 16)


def test_bytes_after_the_only_scan_that_look_like_others_are_no_reason_to_refuse() -> None:
    content = jpeg(scene(64, 48))
    assert np.array_equal(decode(content + b"\xff\xda" * 500, centre_crop, 16), decode(content, centre_crop, 16))


def oriented(image: Image.Image, orientation: int, order: str = "MM") -> bytes:
    """A JPEG whose EXIF says how it is stored, as a phone writes it."""
    exif = Image.Exif()
    exif.endian = "<" if order == "II" else ">"
    exif[0x010F], exif[0x0112] = "a maker's name", orientation
    return jpeg(image, exif=exif.tobytes())


@pytest.mark.parametrize("without", [False, True], ids=["simplejpeg", "Pillow"])
@pytest.mark.parametrize("order", ["II", "MM"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_cropped_upright(
    orientation: int, order: str, without: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without:
        monkeypatch.setattr(_jpeg, "simplejpeg", None)
    content = oriented(noisy(100, 80), orientation, order)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    sizes: list[tuple[int, int]] = []

    def corner(width: int, height: int) -> Box:
        sizes.append((width, height))
        return 10.0, 5.0, 60.0, 45.0

    expected = upright.resize((64, 64), Image.Resampling.BILINEAR, (10, 5, 60, 45))
    assert np.array_equal(decode(content, corner, 64), np.asarray(expected))
    assert sizes == [upright.size]


@needs_simplejpeg
@pytest.mark.parametrize("orientation", [3, 6])
def test_a_large_image_is_turned_after_it_was_decoded_small(orientation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = oriented(noisy(1600, 800), orientation)
    turned: list[tuple[int, int]] = []
    transpose = Image.Image.transpose

    def spy(image: Image.Image, method: Image.Transpose) -> Image.Image:
        turned.append(image.size)
        return transpose(image, method)

    monkeypatch.setattr(Image.Image, "transpose", spy)
    assert np.array_equal(decode(content, centre_crop, 64), by_pillow(content, centre_crop, 64, monkeypatch))
    assert turned == [(200, 100)] * 2


def test_exif_that_says_nothing_sensible_turns_nothing() -> None:
    upright = jpeg(noisy(60, 40))
    expected = decode(upright, centre_crop, 32)
    whole = oriented(noisy(60, 40), 6)
    at = whole.index(b"Exif\0\0")
    length = int.from_bytes(whole[at - 2 : at]) - 8
    exif = whole[at + 6 : at + 6 + length]
    for broken in (b"", bytes(5000), exif[:9], b"II" + b"\xff" * 500, exif.replace(b"\x01\x12", b"\x01\x13")):
        assert np.array_equal(decode(jpeg(noisy(60, 40), exif=b"Exif\0\0" + broken), centre_crop, 32), expected)
    for unknown in (0, 9, 65535):
        assert np.array_equal(decode(oriented(noisy(60, 40), unknown), centre_crop, 32), expected)
