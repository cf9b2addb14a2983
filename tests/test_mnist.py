"""The idx reader: exact on what it wrote itself, on the real files, and unshaken by thousands of corrupt ones."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from conftest import real_data
from fuzz import survive

from fathom.core.errors import DataError
from fathom.data import mnist


def write_set(folder: Path, items: int = 3, suffix: str = "") -> Path:
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (items, 28, 28), np.uint8)
    labels = rng.integers(0, 10, items, np.uint8)
    for prefix in ("train", "t10k"):
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            content = header + array.tobytes()
            name = f"{prefix}-{kind}-ubyte{suffix}"
            (folder / name).write_bytes(gzip.compress(content) if suffix else content)
    return folder


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_reads_what_was_written(tmp_path: Path, suffix: str) -> None:
    digits = mnist.read(write_set(tmp_path, suffix=suffix), "test")
    expected = np.random.default_rng(1).integers(0, 256, (3, 28, 28), np.uint8)
    assert (digits.columns["pixels"].numpy() == expected.reshape(3, 784)).all()


def test_truncation_names_file_and_offset(tmp_path: Path) -> None:
    path = write_set(tmp_path) / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte: byte 1000: the header declares 2352 bytes"):
        mnist.read(tmp_path)


def test_missing_file_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train-images-idx3-ubyte or .* is missing; the folder must contain"):
        mnist.read(tmp_path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"])
def test_corrupt_files_are_refused_or_valid(tmp_path: Path, name: str, suffix: str) -> None:
    write_set(tmp_path, suffix=suffix)

    def read() -> None:
        digits = mnist.read(tmp_path)
        assert digits.columns["pixels"].shape == (3, 784)
        assert 0 <= int(digits.columns["label"].min()) <= int(digits.columns["label"].max()) <= 9

    refused, accepted = survive(tmp_path / (name + suffix), read, count=1500)
    assert refused > 500, "most mutations break the header, the length or the checksum"
    assert accepted + refused == 1500


@pytest.mark.realdata
def test_real_mnist() -> None:
    folder = real_data("mnist")
    train, test = mnist.read(folder), mnist.read(folder, "test")
    assert (len(train), len(test)) == (60_000, 10_000)
    assert train.columns["label"][:5].tolist() == [5, 0, 4, 1, 9]
    per_digit = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.bincount(test.columns["label"].numpy()).tolist() == per_digit
