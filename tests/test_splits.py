"""Splits of real data: what is trained on, validation and test have nothing in common and leave nothing out."""

from __future__ import annotations

import struct
import sys
from collections import Counter
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from conftest import real_data
from test_imagenet import plain, write_archive, write_folders
from test_timit import noise, sphere
from test_timit import write as write_recording
from torch import Tensor

from fathom.core import plugins
from fathom.core.errors import DataError, UnknownName
from fathom.core.spec import RunSpec
from fathom.data import _audio, an4, babi, imagenet, timit
from fathom.data._audio import Sizes
from fathom.data._thumbnails import Thumbnails
from fathom.data.base import SPLITS, Batch, Dataset, InMemory, Reader, feed, once, part_of_training
from fathom.engine.session import Session
from fathom.training.trainer import HeldOut, held_out_for, recipe_for, training_split
from fathom.workloads.autoenc import Autoenc
from fathom.workloads.base import workload_class
from fathom.workloads.residual import Residual

CPU = torch.device("cpu")
SIZES = Sizes(frames=20, phones=8)


def rows(dataset: Dataset, column: str) -> Counter[bytes]:
    """How often each item is there."""
    return Counter(row.numpy().tobytes() for batch in once(dataset, 7, CPU) for row in batch[column])


def check_splits(found: dict[str, Counter[Any]]) -> None:
    """The training data is what is trained on and validation, each item once; the test has nothing of either."""
    assert found["train_subset"] + found["validation"] == found["train"]
    assert found["validation"].total() >= 1
    for one, other in (("train_subset", "validation"), ("train_subset", "test"), ("validation", "test")):
        assert not found[one] & found[other]


def write_digits(folder: Path, train: int = 50, test: int = 20) -> Path:
    rng = np.random.default_rng(1)
    for prefix, items in (("train", train), ("t10k", test)):
        arrays = {
            "images-idx3": rng.integers(0, 256, (items, 28, 28), np.uint8),
            "labels-idx1": rng.integers(0, 10, items, np.uint8),
        }
        for kind, array in arrays.items():
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return folder


def test_digits(tmp_path: Path) -> None:
    workload = Autoenc.configured("tiny")
    write_digits(tmp_path)
    found = {split: workload.open(tmp_path, split) for split in SPLITS}
    check_splits({split: rows(digits, "pixels") for split, digits in found.items()})
    assert [len(found[split]) for split in SPLITS] == [50, 48, 2, 20]
    labels = {pixels.numpy().tobytes(): int(label) for pixels, label in items(found["train"])}
    for pixels, label in items(found["validation"]):
        assert labels[pixels.numpy().tobytes()] == label, "an image keeps its label"


def items(digits: InMemory) -> zip[tuple[Tensor, Tensor]]:
    return zip(digits.columns["pixels"], digits.columns["label"], strict=True)


# --- images


def shades(first: int, count: int) -> list[bytes]:
    return [plain(first + 4 * number) for number in range(count)]


def images_in(folder: Path, train: int = 15, **others: int) -> Path:
    for name, count in {"train": train, **others}.items():
        start = {"train": 10, "test": 12}.get(name, 11)
        write_folders(folder / name, {"n01": shades(start, count), "n02": shades(start + 2, count)})
    return folder


def brightness(images: Any) -> Counter[tuple[int, int]]:
    """Label and shade of every image: their mean is the same in every crop."""
    return Counter(
        (int(label), round(float(image.float().mean())))
        for batch in once(images, 4, CPU)
        for image, label in zip(batch["image"], batch["label"], strict=True)
    )


@pytest.mark.parametrize("resident", [0, 64])
def test_images_decoded_on_access_or_kept_as_thumbnails(resident: int, tmp_path: Path) -> None:
    workload = Residual.configured("tiny", resident=resident, classes=2)
    images_in(tmp_path, val=5)
    found = {split: workload.open(tmp_path, split) for split in SPLITS}
    assert {isinstance(images, Thumbnails) for images in found.values()} == {bool(resident)}
    check_splits({split: brightness(images) for split, images in found.items()})
    assert [len(found[split]) for split in SPLITS] == [30, 28, 2, 10]
    assert {images.class_names for images in found.values()} == {("n01", "n02")}
    if not resident:
        assert [found[split].augment for split in SPLITS] == [True, True, False, False]


@pytest.mark.parametrize("name", ["val", "valid", "validation"])  # the second is CINIC-10's
def test_images_have_a_validation_split_of_their_own_where_the_folder_has(name: str, tmp_path: Path) -> None:
    workload = Residual.configured("tiny", classes=2)
    images_in(tmp_path, **{"train": 15, name: 5, "test": 3})
    found = {split: workload.open(tmp_path, split) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [30, 30, 10, 6]
    assert [found[split].augment for split in SPLITS] == [True, True, False, False]
    assert brightness(found["train"]) == brightness(found["train_subset"])
    assert not brightness(found["validation"]) & brightness(found["train"])
    assert not brightness(found["validation"]) & brightness(found["test"])


def test_a_folder_of_test_images_without_classes_is_not_the_test_split(tmp_path: Path) -> None:
    """As in Tiny ImageNet: test/images/*.JPEG."""
    images_in(tmp_path, train=10, val=5)
    write_folders(tmp_path / "test", {"images": shades(10, 3)})
    found = Residual.configured("tiny", classes=2).open(tmp_path, "test")
    assert (len(found), imagenet.has_validation(tmp_path)) == (10, False)


def test_images_of_the_archive(tmp_path: Path) -> None:
    write_archive(tmp_path, {"n01": shades(10, 10), "n02": shades(12, 10)})
    write_folders(tmp_path / "val", {"n01": shades(11, 4)})
    workload = Residual.configured("tiny", classes=2)
    check_splits({split: brightness(workload.open(tmp_path, split)) for split in SPLITS})


def test_an_image_that_cannot_be_read_is_named_in_a_part_too(tmp_path: Path) -> None:
    images_in(tmp_path)
    for path in (tmp_path / "train").rglob("*.JPEG"):
        path.write_bytes(b"no image")
    part = Residual.configured("tiny", classes=2).open(tmp_path, "validation")
    with pytest.raises(DataError, match=r"n0\d_\d+\.JPEG"):
        part[[0]]


# --- speech


def check_speakers(found: dict[str, list[str]]) -> None:
    """Every utterance once, and no voice on both sides."""
    speakers = {split: {each.split()[0] for each in utterances} for split, utterances in found.items()}
    check_splits({split: Counter(utterances) for split, utterances in found.items()})
    assert not speakers["train_subset"] & speakers["validation"]


def write_an4(folder: Path, speakers: int, each: int = 2) -> Path:
    etc = folder / "etc"
    etc.mkdir()
    (etc / "an4.phone").write_text("AH\nN\nW\nSIL\n")
    names = {"train": [f"s{n:02}" for n in range(speakers)], "test": ["t00", "t01"]}
    words = []
    for split, voices in names.items():
        ids = [(voice, f"{voice}x{number}") for voice in voices for number in range(each)]
        (etc / f"an4_{split}.fileids").write_text("".join(f"clstk/{voice}/{name}\n" for voice, name in ids))
        (etc / f"an4_{split}.transcription").write_text("".join(f"{name.upper()} ({name})\n" for _, name in ids))
        words += [f"{name.upper()}  W AH N\n" for _, name in ids]
        for seed, (voice, name) in enumerate(ids):
            path = folder / "feat" / "clstk" / voice / f"{name}.mfc"
            path.parent.mkdir(parents=True, exist_ok=True)
            values = np.random.default_rng(seed).normal(0, 5, 13 * 12)
            path.write_bytes(struct.pack(">i", len(values)) + values.astype(">f4").tobytes())
    (etc / "an4.dic").write_text("".join(words))
    return folder


def an4_sentences(folder: Path) -> dict[str, list[str]]:
    found = {split: an4.read(folder, split, SIZES).sentences for split in SPLITS}
    return {split: [text.replace("X", " ") for text in sentences] for split, sentences in found.items()}


@pytest.mark.parametrize(("speakers", "held_out"), [(2, 1), (5, 1), (14, 1), (15, 2), (74, 7)])
def test_an4_is_split_by_speaker(speakers: int, held_out: int, tmp_path: Path) -> None:
    found = an4_sentences(write_an4(tmp_path, speakers))
    check_speakers(found)
    assert len(found["validation"]) == 2 * held_out


def test_of_one_speaker_it_is_utterances_that_are_held_out(tmp_path: Path) -> None:
    found = an4_sentences(write_an4(tmp_path, speakers=1, each=20))
    check_splits({split: Counter(sentences) for split, sentences in found.items()})
    assert len(found["validation"]) == 2


def test_one_utterance_cannot_be_held_out(tmp_path: Path) -> None:
    write_an4(tmp_path, speakers=1, each=1)
    with pytest.raises(DataError, match="no utterance of the validation split: of 1 none can be held out"):
        an4.read(tmp_path, "validation", SIZES)
    with pytest.raises(UnknownName, match="no split 'core'"):
        an4.read(tmp_path, "core", SIZES)
    (tmp_path / "etc/an4_train.fileids").write_text("")
    with pytest.raises(DataError, match=r"an4_train\.fileids: empty: it names no utterance"):
        an4.read(tmp_path, "train", SIZES)


def test_features_are_scaled_by_what_is_trained_on(tmp_path: Path) -> None:
    """Not by the validation speakers: theirs would be known then."""
    write_an4(tmp_path, speakers=4)
    before = an4.read(tmp_path, "train_subset", SIZES).columns["features"]
    for path in (tmp_path / "feat" / "clstk" / "s03").iterdir():
        path.write_bytes(path.read_bytes()[:4] + (1000 * np.ones(13 * 12)).astype(">f4").tobytes())
    torch.testing.assert_close(an4.read(tmp_path, "train_subset", SIZES).columns["features"], before)


def write_timit(folder: Path, speakers: int) -> Path:
    voices = [("TRAIN", f"MAAA{n}") for n in range(speakers)] + [("TEST", "MDAB0"), ("TEST", "FAKS0")]
    for seed, (split, voice) in enumerate(voices):
        for stem in ("SX1", "SX2"):
            write_recording(folder / split / "DR1" / voice, stem, sphere(noise(seed=seed)))
            (folder / split / "DR1" / voice / f"{stem}.TXT").write_text(f"0 2000 {voice} {stem}\n")
    return folder


@pytest.mark.parametrize(("speakers", "held_out"), [(2, 1), (15, 2)])
def test_timit_is_split_by_speaker(speakers: int, held_out: int, tmp_path: Path) -> None:
    write_timit(tmp_path, speakers)
    found = {split: timit.read(tmp_path, split, SIZES).sentences for split in SPLITS}
    check_speakers(found)
    assert len(found["validation"]) == 2 * held_out
    assert len(timit.read(tmp_path, "core", SIZES)) == 2
    for name in ("TRAIN/DR1/MAAA0/SX2.PHN", "TRAIN/DR1/MAAA1/SX1.PHN", "TEST/DR1/FAKS0/SX1.PHN"):
        (tmp_path / name).unlink()
    left_out = [sum(timit.read(tmp_path, split, SIZES).skipped.values()) for split in (*SPLITS, "core")]
    assert left_out == ([2, 1, 1, 1, 0] if speakers == 2 else [2, 2, 0, 1, 0]), "each counts where it would be"


def test_a_folder_of_recordings_alone_is_split_three_ways(tmp_path: Path) -> None:
    for number in range(40):
        write_recording(tmp_path / "ASR", f"u{number:02}", sphere(noise(seed=number)))
        (tmp_path / "ASR" / f"u{number:02}.TXT").write_text(f"0 2000 {number}\n")
    found = {split: Counter(timit.read(tmp_path, split, SIZES).sentences) for split in SPLITS}
    check_splits(found)
    assert [found[split].total() for split in SPLITS] == [30, 27, 3, 10]


@pytest.mark.parametrize("utterances", [2, 3, 4, 9])
def test_few_utterances_have_one_that_is_held_out(utterances: int) -> None:
    assert sum(_audio.is_validation(["a"] * utterances)) == 1
    assert sum(_audio.is_validation([f"speaker {n}" for n in range(utterances)])) == 1
    assert _audio.is_validation(["a"]) == [False]


@pytest.mark.realdata
def test_real_an4_has_no_speaker_on_both_sides() -> None:
    folder = real_data("an4")
    dictionary = an4._dictionary(folder / "etc" / "an4.dic", an4._inventory(folder / "etc" / "an4.phone"))
    found = {split: an4._split(folder, split, dictionary) for split in SPLITS}
    speakers = {split: {each.speaker for each in utterances} for split, utterances in found.items()}
    assert len(found["train_subset"]) + len(found["validation"]) == len(found["train"]) == 948
    assert len(speakers["train_subset"]) + len(speakers["validation"]) == len(speakers["train"])
    assert not speakers["test"] & speakers["train"]


# --- stories


def test_stories(tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    for part, rooms in (
        ("train", [f"{first}oom" for first in letters]),
        ("test", [f"{first}all" for first in letters]),
    ):
        text = "".join(f"1 Ada went to the {room}.\n2 Where is Ada?\t{room}\t1\n" for room in rooms)
        (tmp_path / f"qa1_{babi.TASKS[0]}_{part}.txt").write_text(text)
    found = {split: babi.read(tmp_path, split) for split in SPLITS}
    check_splits({split: rows(stories, "story") for split, stories in found.items()})
    assert [len(found[split]) for split in SPLITS] == [26, 24, 2, 26]


# --- any data


def numbers(dataset: Dataset) -> list[int]:
    return [int(value) for batch in once(dataset, 3, CPU) for value in batch["value"]]


class Counting(Dataset):
    """Items that are their own number; read one by one, as images are."""

    names = ("zero", "one")

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, indices: Any) -> Batch:
        return {"value": torch.tensor([100 + index for index in indices])}


@pytest.mark.parametrize("whole", [InMemory(value=torch.arange(100, 142)), Counting(42)])
def test_a_twentieth_of_any_data_set_is_held_out(whole: Dataset) -> None:
    def read(split: str) -> Dataset:
        assert split in ("train", "test")
        return whole

    rest, validation = (part_of_training(read, split) for split in ("train_subset", "validation"))
    assert (len(rest), len(validation)) == (40, 2)
    assert sorted(numbers(rest) + numbers(validation)) == list(range(100, 142))
    assert part_of_training(read, "train") is part_of_training(read, "test") is whole
    batch = next(feed(rest, 4, CPU, seed=0))  # by worker processes, which receive a copy
    assert set(batch["value"].tolist()) <= set(numbers(rest))
    if isinstance(whole, Counting):
        assert rest.names == ("zero", "one"), "what else is known of the data is known of its parts"  # type: ignore[attr-defined]


def test_one_item_cannot_be_held_out() -> None:
    with pytest.raises(DataError, match="too few to hold out any for validation"):
        part_of_training(lambda split: Counting(1), "validation")


def held_out(spec: RunSpec) -> tuple[Any, HeldOut]:
    recipe = recipe_for(spec)
    with Session(spec, split=training_split(recipe)).setup() as session:
        return session.state.source, held_out_for(session, recipe)


def test_validation_is_the_same_for_every_seed(tmp_path: Path) -> None:
    spec = RunSpec(workload="autoenc", preset="tiny", device="cpu", kind="training", data=str(write_digits(tmp_path)))
    runs = [held_out(replace(spec, seed=seed)) for seed in (0, 1, 7)]
    for source, data in runs:
        assert torch.equal(source.columns["pixels"], runs[0][0].columns["pixels"])
        assert torch.equal(data.validation.columns["pixels"], runs[0][1].validation.columns["pixels"])
        assert not rows(source, "pixels") & rows(data.validation, "pixels")
        assert not rows(data.test, "pixels") & rows(data.validation, "pixels")


def test_synthetic_validation_and_test_are_of_other_seeds() -> None:
    source, data = held_out(RunSpec(workload="autoenc", preset="tiny", device="cpu", kind="training"))
    train, validation, test = (each.columns["pixels"] for each in (source, data.validation, data.test))
    assert not torch.equal(train, validation)
    assert not torch.equal(train, test)
    assert not torch.equal(validation, test)


# --- readers of other packages


class TwoSplits(Reader):
    """Knows train and test, as the interface says, and no other split."""

    workloads: ClassVar = ("autoenc", "seq2seq", "speech")

    def recognises(self, folder: Path) -> bool:
        return (folder / "two-splits").exists()

    def read(self, workload: Any, folder: Path, split: str) -> Dataset:
        seed = {"train": 1, "test": 2}[split]
        source: Dataset = workload.synthetic(seed)
        return source


@pytest.fixture
def two_splits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / "two-splits").touch()
    entry = EntryPoint("two-splits", f"{__name__}:TwoSplits", "fathom.readers")
    monkeypatch.setattr(plugins, "_installed", lambda kind: {"two-splits": entry} if kind == "readers" else {})
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    return tmp_path


@dataclass(frozen=True)
class Case:
    """A workload, and the column that its items are told apart by."""

    name: str
    column: str


@pytest.mark.parametrize("case", [Case("autoenc", "pixels"), Case("seq2seq", "source"), Case("speech", "features")])
def test_a_reader_that_knows_train_and_test_only_has_a_validation_part(case: Case, two_splits: Path) -> None:
    spec = RunSpec(workload=case.name, preset="tiny", device="cpu", kind="training", data=str(two_splits))
    source, data = held_out(spec)
    whole = workload_class(case.name).configured("tiny").synthetic(1)
    assert rows(source, case.column) + rows(data.validation, case.column) == rows(whole, case.column)
    assert len(source) + len(data.validation) == len(whole)
    assert len(data.validation) == round(len(whole) / 20)
    assert recipe_for(spec).target is None, "no target is known for other data"
