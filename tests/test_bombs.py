"""Files that unpack without end, claim more than they have, or never end: refused in one line and bounded memory."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import socket
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from sample_records import record_of

from fathom.core import files
from fathom.core.errors import BadOption, DataError
from fathom.core.store import Store
from fathom.data import _audio, babi, base, corpora, imagenet, mnist
from fathom.data._jpeg import BadImage, decode

MANY = 2000  # members of a gzip file, each of a million bytes
FEW_BYTES = 20_000_000  # that a refusal may take


def bomb(line: bytes, start: bytes = b"") -> bytes:
    """A gzip file of some megabytes that unpacks to gigabytes: members stand one after another."""
    return gzip.compress(start) * bool(start) + gzip.compress(line * (1_000_000 // len(line))) * MANY


def refused(read: Callable[[], object], most: int = FEW_BYTES) -> str:
    """The line with which it is refused, in no more memory than that."""
    tracemalloc.start()
    try:
        with pytest.raises((DataError, BadImage)) as caught:
            read()
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def idx(*shape: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


def sparse(path: Path, size: int, start: bytes = b"") -> Path:
    """A file that takes no space on the disk, and is that large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)
    return path


def test_an_idx_file_is_read_no_further_than_its_header_says(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(bomb(b"\0", start=idx(3, 28, 28)))
    told = refused(lambda: mnist.read_idx(path, 3))
    assert told == f"{path}: byte 2368: the header declares 2352 bytes of data, the file has more"


@pytest.mark.parametrize("shape", [(4_000_000_000, 28, 28), (2**32 - 1,) * 3])
def test_an_idx_header_may_not_claim_more_than_the_limit(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx(*shape) + bytes(100))
    assert "more than 2,000 MB; if that is right, set FATHOM_MAX_FILE_MB to more" in refused(
        lambda: mnist.read_idx(path, 3)
    )


def test_memory_is_taken_for_what_an_idx_file_has(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx(2_000_000, 28, 28) + bytes(100))  # 1.6 GB, below the limit
    assert refused(lambda: mnist.read_idx(path, 3)).endswith("1568000000 bytes of data, the file has 100")


def test_an_idx_file_of_no_images_of_absurd_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx(0, 2**32 - 1, 2**32 - 1))
    assert "declares" in refused(lambda: mnist.read_idx(path, 3))


def text_of(path: Path) -> Callable[[], int]:
    return lambda: sum(1 for _ in corpora._lines(path))


def test_text_that_unpacks_without_end_is_refused_by_its_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FIRST_LOOK", 2_000_000)
    path = tmp_path / "train.en.gz"
    path.write_bytes(bomb(b"a word and another " * 50 + b"\n"))
    told = refused(text_of(path))
    assert "packed bytes unpack to" in told
    assert "set FATHOM_MAX_FILE_MB to its size" in told


def test_text_has_a_limit_that_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "MOST_BYTES", 1_000_000)
    plain, packed = tmp_path / "train.en", tmp_path / "train.fr.gz"
    plain.write_bytes((b"a word " * 142 + b"end..\n") * 1400)
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    way = "than 1 MB; if that is right, set FATHOM_MAX_FILE_MB to more"
    assert refused(text_of(plain)) == f"{plain}: more {way}"
    assert refused(text_of(packed)) == f"{packed}: unpacks to more {way}"
    monkeypatch.setenv("FATHOM_MAX_FILE_MB", "1.4")
    assert text_of(plain)() == text_of(packed)() == 1400


def test_a_line_of_a_gigabyte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.en.gz"
    path.write_bytes(bomb(b"a"))
    assert "line 1: longer than 1048576 bytes" in refused(text_of(path))
    assert "line 1: a zero byte" in refused(text_of(sparse(tmp_path / "train.en", 10**9)))


@pytest.mark.parametrize("text", ["", "many", "-1", "nan", "inf", "0", "1e300"])
def test_a_limit_that_is_no_size_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FATHOM_MAX_FILE_MB", text)
    with pytest.raises(BadOption, match="FATHOM_MAX_FILE_MB must be a number of megabytes"):
        files.limit_of(5)


READERS: dict[str, Callable[[Path], object]] = {
    "idx": lambda path: mnist.read_idx(path, 1),
    "text": lambda path: text_of(path)(),
    "stories": lambda path: babi.read_file(path, 5),
    "recording": _audio.read_samples,
    "lines": _audio.read_lines,
    "archive": imagenet._class_archives,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a character device"])
def test_what_is_no_file_is_never_opened(tmp_path: Path, reader: str, kind: str) -> None:
    path = tmp_path / "it"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    else:
        path.symlink_to("/dev/zero")
    assert refused(lambda: READERS[reader](path)) == f"{path}: {kind}, a regular file was expected"


@pytest.mark.parametrize(("reader", "limit"), [("stories", "32"), ("recording", "64"), ("lines", "64")])
def test_a_file_larger_than_its_reader_expects_is_not_read(tmp_path: Path, reader: str, limit: str) -> None:
    path = sparse(tmp_path / "it", 50 * 10**9)
    assert refused(lambda: READERS[reader](path)).startswith(f"{path}: 50,000 MB, larger than {limit} MB; ")


def test_a_file_without_a_size_is_not_read() -> None:
    path = Path("/proc/self/maps")
    if not path.exists():
        pytest.skip("no /proc")
    assert "longer than the 0 bytes" in refused(lambda: files.read_bytes(path, 10**6))


def test_a_large_image_file_is_not_read(tmp_path: Path) -> None:
    sparse(tmp_path / "train/n01/n01_1.JPEG", 50 * 10**9, b"\xff\xd8\xff")
    images = imagenet.read(tmp_path, "train", 16, 10)
    assert "n01_1.JPEG: 50,000 MB, larger than 256 MB" in refused(lambda: images[[0]])


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(side: int, rows: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)  # a bit a pixel
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def test_an_image_of_absurd_size_is_refused_by_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    content = png(20_000, bytes(20_000 * 2501))
    told = refused(lambda: decode(content, imagenet.centre_crop, 16))
    assert told == (
        "20000 x 20000 pixels, more than 90 million; if that is right, set FATHOM_MAX_IMAGE_MEGAPIXELS to more"
    )
    assert "cannot hold 20000 x 20000 pixels" in refused(lambda: decode(png(20_000, b""), imagenet.centre_crop, 16))
    monkeypatch.setenv("FATHOM_MAX_IMAGE_MEGAPIXELS", "0.0005")
    small = png(30, bytes(30 * 5))
    assert "more than 0.0005 million" in refused(lambda: decode(small, imagenet.centre_crop, 16))
    monkeypatch.setenv("FATHOM_MAX_IMAGE_MEGAPIXELS", "1000")
    assert decode(small, imagenet.centre_crop, 16).shape == (16, 16, 3)
    assert Image.MAX_IMAGE_PIXELS is not None  # Pillow's own limit is put back


def test_a_jpeg_of_a_thousand_scans_is_refused() -> None:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    scans = content[content.index(b"\xff\xda") : -2] * 1000
    with pytest.raises(BadImage, match="more than 100 scans"):
        decode(content[:-2] + scans + content[-2:], imagenet.centre_crop, 8)


@pytest.mark.parametrize("digits", ["9" * 5000, "9" * 12, "-5", "²"])
def test_a_sphere_header_may_declare_any_number_of_samples(tmp_path: Path, digits: str) -> None:
    fields = "sample_rate -i 16000\nchannel_count -i 1\nsample_n_bytes -i 2\nsample_byte_format -s2 01\n"
    header = f"NIST_1A\n   8192\n{fields}sample_count -i {digits}\nend_head\n".encode("latin-1")
    path = tmp_path / "SX1.WAV"
    path.write_bytes(header.ljust(8192) + bytes(2000))
    assert "2000 bytes of samples" in refused(lambda: _audio.read_samples(path))


def test_a_long_recording_takes_memory_for_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.random.default_rng(0).integers(-999, 999, 160 * 1000, np.int16)
    whole = _audio.mfcc(samples)
    monkeypatch.setattr(_audio, "BLOCK", 64)
    tracemalloc.start()
    in_parts = _audio.mfcc(samples)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.allclose(in_parts, whole, atol=1e-4)
    assert peak < 64 * 400 * 8 * 8  # a few copies of one block of windows; all of them are 15 times that


def test_a_record_of_gigabytes_is_skipped_and_named(tmp_path: Path) -> None:
    Store(tmp_path).add(record_of())
    path = sparse(tmp_path / "large.json", 5 * 10**9, b"{")
    told: list[str] = []

    def read() -> None:
        assert len(list(Store(tmp_path).records())) == 1
        told.extend(Store(tmp_path).unreadable())
        raise DataError("done")

    assert refused(read) == "done"
    assert told == [f"{path}: 5,000 MB, larger than 32 MB; if that is right, set FATHOM_MAX_FILE_MB to more"]


class Costly(base.Dataset):
    """A dataset that workers read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, indices: Sequence[int]) -> base.Batch:
        return {"image": torch.zeros(len(indices), 1000)}


def test_too_little_shared_memory_is_told_before_a_worker_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "usable_cores", lambda: 4)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64_000_000))
    needed = 4000 * 1300 * (4 * 3 + 1)  # bytes of an item, items, and batches on their way
    told = refused(lambda: base.feed(Costly(), 1300, torch.device("cpu"), seed=0))
    assert told == (
        f"/dev/shm: 64 MB free, {needed / 1e6:.0f} MB needed to read batches of 1300 ahead in 3 worker processes; "
        "enlarge it (docker run --shm-size), set FATHOM_READ_WORKERS below 3, or take a smaller --batch"
    )
    monkeypatch.setenv("FATHOM_READ_WORKERS", "2")
    base.check_shared_memory(Costly(), 1300, base.usual_feeding(torch.device("cpu")))
    monkeypatch.setenv("FATHOM_READ_WORKERS", "0")
    with pytest.raises(BadOption, match="FATHOM_READ_WORKERS must be a number from 1 to 99, not '0'"):
        base.worker_count()
