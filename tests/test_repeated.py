"""Items that are in more than one split are told: a network would be evaluated on what it was trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranked_jobs import records_of
from test_imagenet import write_folders
from test_splits import SIZES, shades, write_an4, write_digits, write_timit
from training_runs import trained

from fathom.core.spec import RunSpec
from fathom.data import an4, babi, imagenet, mnist, timit, wmt
from fathom.data.base import InMemory, part_of_training, repeated
from fathom.workloads.base import workload_class

SPLITS = {"training": "train_subset", "validation": "validation", "test": "test"}


def opened(workload: str, folder: Path, **options: Any) -> dict[str, Any]:
    network = workload_class(workload).configured("tiny", **options)
    return {name: network.open(folder, split) for name, split in SPLITS.items()}


def test_digits_whatever_their_label(tmp_path: Path) -> None:
    write_digits(tmp_path)
    assert repeated(opened("autoenc", tmp_path), "images") == []
    images = (tmp_path / "train-images-idx3-ubyte").read_bytes()[16 : 16 + 3 * 784]
    test = tmp_path / "t10k-images-idx3-ubyte"
    test.write_bytes(test.read_bytes()[: -3 * 784] + images)
    whole = {"training": mnist.read(tmp_path, "train"), "test": mnist.read(tmp_path, "test")}
    assert repeated(whole, "images") == ["test data: 3 of 20 images also in the training data"]


def test_each_split_is_compared_with_those_before_it() -> None:
    class Numbers(InMemory):
        compared = ("x",)

    def numbers(*values: int) -> Numbers:
        return Numbers(x=torch.tensor(values), label=torch.arange(len(values)))

    splits = {"training": numbers(*range(2000)), "validation": numbers(7, 8, 3000), "test": numbers(7, 3000, 3000, -1)}
    assert repeated(splits, "numbers") == [
        "validation data: 2 of 3 numbers also in the training data",
        "test data: 1 of 4 numbers also in the training data",
        "test data: 3 of 4 numbers also in the validation data",
    ]
    parts = {name: part_of_training(lambda _: numbers(*[5] * 40), SPLITS[name]) for name in ("training", "validation")}
    assert repeated(parts, "numbers") == ["validation data: 2 of 2 numbers also in the training data"]
    unknown = InMemory(x=torch.zeros(3))
    assert repeated({"training": unknown, "game": object()}, "rows") == [
        "training data: rows that are in another split, too, were not looked for"
    ]


@pytest.mark.parametrize("resident", [0, 64])
def test_images_by_their_files(resident: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("train", "val", "test")):
        write_folders(tmp_path / name, {"n01": shades(10 + number, 6), "n02": shades(50 + number, 6)})
    options = {"resident": resident, "classes": 2}
    assert repeated(opened("residual", tmp_path, **options), "images") == []
    for name, split in (("a", "val"), ("b", "test")):
        (tmp_path / split / f"n01/{name}.jpg").write_bytes((tmp_path / "train/n02/n02_1.JPEG").read_bytes())
    assert repeated(opened("residual", tmp_path, **options), "images") == [
        "validation data: 1 of 13 images also in the training data",
        "test data: 1 of 13 images also in the training data",
        "test data: 1 of 13 images also in the validation data",
    ]
    if not resident:
        monkeypatch.setattr(imagenet, "MOST_COMPARED", 12)
        notes = repeated(opened("residual", tmp_path, **options), "images")
        assert notes == [
            f"{name} data: images that are in another split, too, were not looked for"
            for name in ("validation", "test")
        ]


@pytest.mark.parametrize("by_speaker", [False, True])
def test_utterances_whatever_they_are_scaled_by(by_speaker: bool, tmp_path: Path) -> None:
    def notes(reader: Any) -> list[str]:
        found = {name: reader.read(tmp_path, split, SIZES, by_speaker) for name, split in SPLITS.items()}
        return repeated(found, "utterances")

    write_timit(tmp_path, 15)
    assert notes(timit) == []
    learnt, tested = tmp_path / "TRAIN/DR1/MAAA0/SX1.WAV", tmp_path / "TEST/DR1/FAKS0/SX2.WAV"
    tested.write_bytes(learnt.read_bytes())
    assert notes(timit) == ["test data: 1 of 4 utterances also in the training data"]
    write_an4(tmp_path, 14)
    assert notes(an4) == ["test data: 4 of 4 utterances also in the training data"], "as they are made up here"


def test_sentence_pairs_by_their_text(tmp_path: Path) -> None:
    """Not by their numbers: all words that are not in the vocabulary have one."""
    texts = {"train": ["one", "two", "three", "four four four four"], "val": ["five", "one"], "test": ["six", "two"]}
    for name, lines in texts.items():
        for code in ("en", "fr"):
            other = "another" if (name, code) == ("test", "fr") else code
            (tmp_path / f"{name}.{code}").write_text("".join(f"{line} {other}\n" for line in lines))
    sides = wmt.Side("en", 6, 3), wmt.Side("fr", 6, 4)
    found = {name: wmt.read(tmp_path, split, *sides) for name, split in SPLITS.items()}
    told = "sentence pairs also in the training data"
    assert repeated(found, "sentence pairs") == [f"validation data: 1 of 2 {told}"], "test has another translation"
    found["validation"] = found["validation"].subset([1])
    assert repeated(found, "sentence pairs") == [f"validation data: 1 of 1 {told}"]


def story(person: str, place: str) -> str:
    return f"1 {person} went to the {place}.\n2 Where is {person}?\t{place}\t1\n"


def write_stories(folder: Path) -> Path:
    rooms = {"train": ["attic", "cellar", "hall", "kitchen"] * 10, "test": ["attic", "garden"]}
    for part, places in rooms.items():
        text = "".join(story("Ada", place) for place in places)
        (folder / f"qa1_{babi.TASKS[0]}_{part}.txt").write_text(text)
    return folder


def test_a_record_of_training_tells_it(tmp_path: Path) -> None:
    """memnet holds nothing out: its validation data are its training data, which is no news."""
    data = str(write_stories(tmp_path))
    options = {"task_number": 1, "starts": 2, "linear_epochs": 1, "epochs": 1, "halving": 1}
    spec = RunSpec(workload="memnet", preset="tiny", device="cpu", threads=1, kind="training", evaluations=1)
    record = trained(replace(spec, data=data, options=options))
    assert record.outcome == "ok", record.reason
    assert record.notes == ["test data: 1 of 2 questions also in the training data"]
    synthetic = trained(replace(spec, options=options))
    assert not any("also in" in note for note in synthetic.notes), "nobody's data"


def test_ranks_are_told_it_of_validation_data_too(tmp_path: Path) -> None:
    data = str(write_stories(tmp_path))
    spec = RunSpec(
        workload="memnet", preset="tiny", device="cpu", threads=1, kind="training", evaluations=1, data=data,
        ranks=1, strategy="ddp", scaling="weak", options={"task_number": 1},
    )  # fmt: skip
    (tmp_path / "out").mkdir()
    (record,) = records_of([spec], 1, tmp_path / "out")
    assert record.outcome == "ok", record.reason
    wanted = {"validation data: 4 of 4 questions also in the training data"}
    wanted |= {f"test data: 1 of 2 questions also in the {other} data" for other in ("training", "validation")}
    assert wanted <= set(record.notes)
