"""What a reader leaves out is told: counts and reasons in the notes of a record, and no corpus is claimed in error."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from test_timit import noise, sphere

from fathom.core.errors import DataError
from fathom.core.spec import RunSpec
from fathom.data import imagenet, timit, wmt
from fathom.data._audio import Sizes
from fathom.data._jpeg import decode
from fathom.data._left_out import TextCounts, left_out
from fathom.data.base import InMemory, _Subset, notes_of
from fathom.measure.loop import measure
from fathom.workloads.alexnet import AlexNet
from fathom.workloads.speech import AN4, OTHER_PHONES, TIMIT, Speech


def parallel(folder: Path, source: str, target: str, name: str = "train") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.en").write_text(source)
    (folder / f"{name}.fr").write_text(target)
    return folder


def read_text(folder: Path, split: str = "train", words: int = 100, length: int = 3) -> wmt.ParallelText:
    return wmt.read(folder, split, wmt.Side("en", words, length), wmt.Side("fr", words, length + 1))


def test_pairs_left_out_are_counted_by_reason(tmp_path: Path) -> None:
    folder = parallel(tmp_path, "a b\na a a a\n\na\nb\n", "x y\nx\nx\nx x x x\ny\n")
    text = read_text(folder)
    longer = "with more than 3 source or 3 target tokens"
    assert text.notes == [f"3 pairs left out, 2 kept: 2 {longer}, 1 with an empty side"]
    assert text.subset([0]).notes == text.notes


def test_truncated_pairs_and_unknown_words_are_counted(tmp_path: Path) -> None:
    parallel(tmp_path, "a b\n", "x y\n")
    parallel(tmp_path, "a c d d d\nb\n", "x\ny z\n", name="test")
    assert read_text(tmp_path, "test").notes == [
        "1 of 2 pairs truncated: with more than 3 source or 3 target tokens",
        "not in the vocabulary, read as <unk>: 2 of 4 source tokens (50 %) and 1 of 3 target tokens (33 %)",
    ]


def test_nothing_left_out_is_nothing_told() -> None:
    assert left_out({"too long": 0}, 5, "pair") == []
    assert TextCounts(is_training=True, longest=(3, 3)).notes == []
    assert wmt.synthetic(0, wmt.Side("en", 50, 8), wmt.Side("fr", 50, 9), items=4).notes == []


def test_notes_name_their_split_and_an_environment_has_none() -> None:
    class Noted(InMemory):
        notes = ["one left out"]  # noqa: RUF012

    import torch

    data = Noted(x=torch.zeros(3))
    assert notes_of({"training": data, "test": _Subset(data, [0]), "game": object()}) == [
        "training data: one left out",
        "test data: one left out",
    ]


def picture(format_: str, size: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (size, size), (200, 100, 50)).save(file, format_)
    return file.getvalue()


def write_images(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("1.JPEG", "2.jpg"):
        (folder / name).write_bytes(picture("JPEG"))
    for name in ("3.png", "4.PNG"):
        (folder / name).write_bytes(picture("PNG"))
    (folder / "5.webp").write_bytes(picture("WebP"))
    (folder / "notes.txt").write_text("no image")
    os.mkfifo(folder / "6.jpg")
    return folder


def test_images_of_other_formats_are_counted(tmp_path: Path) -> None:
    write_images(tmp_path / "train/n01")
    images = imagenet.read(tmp_path, "train", 8, 10)
    (note,) = images.notes
    assert note.startswith("4 files left out, 2 kept: ")
    assert set(note.partition(": ")[2].split(", ")) == {
        "2 in PNG format",
        "1 in WebP format",
        "1 that are no regular files",
    }
    assert images.subset([0]).notes[0].startswith("4 files left out")
    small = imagenet.thumbnails(images, 64)
    assert small is not None
    assert small.notes == images.notes


def test_images_in_other_folders_than_those_of_their_classes_are_counted(tmp_path: Path) -> None:
    root = tmp_path / "train"
    write_images(root / "n01/more/of/it")
    write_images(root / "n02/.thumbnails")
    for name in ("n01/1.jpg", "n02/1.jpg", "stray.jpg", "stray.png"):
        (root / name).write_bytes(picture("JPEG"))
    (note,) = imagenet.read(tmp_path, "train", 8, 10).notes
    assert note == "8 files left out, 2 kept: 6 in subfolders, 2 beside the class folders"


def test_a_class_whose_images_are_in_a_subfolder_says_so(tmp_path: Path) -> None:
    """As in Tiny ImageNet: train/n01/images/*.JPEG."""
    write_images(tmp_path / "train/n01/images")
    with pytest.raises(DataError, match="in this class folder; 6 in subfolders cannot be read: .* or move them here"):
        imagenet.read(tmp_path, "train", 8, 10)


@pytest.mark.parametrize("resident", [0, 64])
def test_files_that_are_left_out_of_the_training_images_are_told_of_these_alone(resident: int, tmp_path: Path) -> None:
    write_images(tmp_path / "train/n01")
    workload = AlexNet.configured("tiny", resident=resident)
    learnt, held_out = (workload.open(tmp_path, split).notes for split in ("train_subset", "validation"))
    assert [note.partition(":")[0] for note in learnt] == ["4 files left out, 1 kept"]
    assert held_out == [], "a twentieth of what was read"


def test_every_usual_ending_of_a_jpeg_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "train/n01"
    folder.mkdir(parents=True)
    for name in ("1.jpeg", "2.JPG", "3.jfif", "4.JPE"):
        (folder / name).write_bytes(picture("JPEG"))
    images = imagenet.read(tmp_path, "train", 8, 10)
    assert len(images) == 4
    assert images.notes == []


def test_a_class_of_other_formats_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "train/n01").mkdir(parents=True)
    (tmp_path / "train/n01/1.png").write_bytes(picture("PNG"))
    with pytest.raises(DataError, match="no JPEG image .* in this class folder; 1 in PNG format cannot be read: conv"):
        imagenet.read(tmp_path, "train", 8, 10)


def test_images_of_other_formats_in_an_archive_are_counted(tmp_path: Path) -> None:
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as archive:
        for name, content in (("1.JPEG", picture("JPEG")), ("2.webp", picture("WebP"))):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    with tarfile.open(tmp_path / imagenet.ARCHIVE, "w") as archive:
        member = tarfile.TarInfo("n01.tar")
        member.size = len(inner.getvalue())
        archive.addfile(member, io.BytesIO(inner.getvalue()))
    assert imagenet.read(tmp_path, "train", 8, 10).notes == ["1 file left out, 1 kept: 1 in WebP format"]


def grey_png(values: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def test_a_png_of_16_bits_has_its_own_greys() -> None:
    """Dark, middle and bright: a byte of them is their upper half, and not white."""
    values = np.repeat(np.array([0x0000, 0x1234, 0x8000, 0xFFFF], np.uint16), 16).reshape(4, 16)
    shown = decode(grey_png(values.repeat(4, axis=0)), lambda width, height: (0, 0, width, height), 16)
    assert [int(row[0, 0]) for row in shown[2::4]] == [0x00, 0x12, 0x80, 0xFF]
    assert (shown[..., 0] == shown[..., 2]).all()


def record(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.WAV").write_bytes(sphere(noise()))
    (folder / f"{name}.PHN").write_text("0 1000 h#\n1000 2000 sh\n")


@pytest.mark.parametrize("layout", ["flat", "TRAIN and TEST of other speakers"])
def test_other_speech_is_not_called_timit(tmp_path: Path, layout: str) -> None:
    for number in range(8):
        split = "." if layout == "flat" else "TEST" if number % 4 == 3 else "TRAIN"
        record(tmp_path / split / f"speaker{number}", f"u{number}")
    recipe = AN4.for_run(tmp_path, {})
    assert recipe is OTHER_PHONES
    assert recipe.target is None
    assert "none of TIMIT's core test set" in recipe.protocol
    assert recipe.id != TIMIT.id
    workload = Speech.configured("tiny", frames=20, phones=8)
    assert len(recipe.evaluation_data(workload, tmp_path, "test")) == 2


def test_recordings_outside_train_and_test_are_counted(tmp_path: Path) -> None:
    for place in ("TRAIN/a", "TRAIN/b", "TEST/c", "MORE/d", "MORE/e"):
        record(tmp_path / place, "u1")
    (tmp_path / "MORE/e/u1.PHN").unlink()
    for split in ("train", "train_subset", "validation", "test"):
        (note,) = timit.read(tmp_path, split, Sizes(20, 8)).notes
        assert note.endswith("kept: 2 outside the folders TRAIN and TEST")
    assert len(OTHER_PHONES.evaluation_data(Speech.configured("tiny"), tmp_path, "test")) == 1, "and none refuses"


def test_where_no_recording_is_left_those_that_were_not_read_are_named(tmp_path: Path) -> None:
    for name in ("SA1", "SX1"):
        record(tmp_path / "TRAIN/a", name)
    (tmp_path / "TRAIN/a/SX1.PHN").unlink()
    told = r"no utterance of the train split \(recordings: 1 that are SA sentences, 1 without a .PHN\); the folder must"
    with pytest.raises(DataError, match=told):
        timit.read(tmp_path, "train", Sizes(20, 8))


def test_timit_is_known_by_its_core_speakers(tmp_path: Path) -> None:
    record(tmp_path / "TRAIN/DR1/FCJF0", "SX1")
    record(tmp_path / "TEST/DR1/MDAB0", "SX2")
    assert timit.has_core_test_set(tmp_path)
    assert AN4.for_run(tmp_path, {}).protocol == TIMIT.protocol


def test_a_run_notes_what_its_data_lacks(tmp_path: Path) -> None:
    folder = parallel(tmp_path / "text", "a b\n" * 9 + "a b c d e f g h i j k\n", "x y\n" * 10)
    spec = RunSpec(workload="seq2seq", preset="tiny", steps=1, warmup=0, device="cpu", data=str(folder))
    found = measure(spec)
    assert found.outcome == "ok", found.reason
    longer = "with more than 8 source or 9 target tokens"
    assert f"training data: 1 pair left out, 9 kept: 1 {longer}" in found.notes
