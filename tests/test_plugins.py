"""Plug-ins of other packages, by entry point: a data reader, a meter, and one that cannot be loaded."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import fathom
from fathom.core import plugins
from fathom.core.energy import Reading
from fathom.core.errors import BadOption, UnknownName
from fathom.data import mnist
from fathom.data.base import Dataset, Reader
from fathom.machine.meter import Counters, Meter, Target

CPU = torch.device("cpu")


class Sevens(Reader):
    """Reads a folder with a file called sevens: nothing but the digit seven."""

    workloads: ClassVar = ("autoenc",)

    def recognises(self, folder: Path) -> bool:
        return (folder / "sevens").exists()

    def read(self, workload: Any, folder: Path, split: str) -> Dataset:
        digits = mnist.synthetic(0, items=64)
        digits.columns["pixels"].fill_(7)
        return digits


class WallPlug(Meter):
    """Counts 42 joules between two looks."""

    label: ClassVar = "the wall plug"

    def __init__(self) -> None:
        self.scope, self.counted = "CPU package 9", 0.0

    @classmethod
    def find(cls, target: Target) -> Sequence[WallPlug]:
        return [cls()]

    def read(self) -> Reading:
        self.counted += 42.0
        return Reading(joules=self.counted)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This module's classes, as if a package had named them; and one that names nothing."""
    found = {
        "readers": {"sevens": EntryPoint("sevens", f"{__name__}:Sevens", "fathom.readers")},
        "meters": {"plug": EntryPoint("plug", f"{__name__}:WallPlug", "fathom.meters")},
        "engines": {"gone": EntryPoint("gone", "no_such_package:Engine", "fathom.engines")},
    }
    monkeypatch.setattr(plugins, "_installed", lambda kind: found.get(kind, {}))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])


@pytest.mark.usefixtures("installed")
def test_a_reader_reads_the_folders_that_it_recognises(tmp_path: Path) -> None:
    (tmp_path / "sevens").touch()
    with fathom.load("autoenc", preset="tiny", device="cpu", data=str(tmp_path)).setup() as session:
        assert set(session.state.source.columns["pixels"].flatten().tolist()) == {7}
    (tmp_path / "sevens").unlink()
    with pytest.raises(fathom.DataError, match="train-images"):
        fathom.load("autoenc", preset="tiny", device="cpu", data=str(tmp_path)).setup()


@pytest.mark.usefixtures("installed")
def test_a_meter_is_added_to_those_that_are_found() -> None:
    meters = Counters(Target())
    assert meters.name is not None
    assert "the wall plug" in meters.name
    joules = meters.joules()
    assert joules is not None
    assert joules >= 42.0


@pytest.mark.usefixtures("installed")
def test_a_plug_in_that_cannot_be_loaded_is_one_line_that_names_it() -> None:
    with pytest.raises(BadOption, match=r"engine gone \(no_such_package:Engine\) cannot be loaded: No module named"):
        plugins.load("engines", "gone")
    with pytest.raises(UnknownName, match="no engine 'gonne'; did you mean gone?"):
        plugins.check("engines", "gonne")


def test_a_class_of_another_kind_is_refused() -> None:
    with pytest.raises(BadOption, match="is no engine: expected a subclass of fathom.engine.base.Engine"):
        fathom.load("autoenc", preset="tiny", device="cpu", engine=f"{__name__}:WallPlug")


def test_a_changed_file_is_listed_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list is kept as long as no file of its folders changes: also one that is added, edited in place or removed."""
    package = importlib.import_module("fathom.analysis.questions")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    before = plugins.names("questions")
    file = tmp_path / "added_question.py"
    file.write_text("")
    assert plugins.names("questions") == sorted([*before, "added_question"])
    two = [f'class {name}:\n    name: ClassVar = "{name.lower()}"\n' for name in ("One", "Two")]
    file.write_text("".join(two))
    os.utime(file, ns=(1, 1))  # whatever the clock's resolution
    assert plugins.names("questions") == sorted([*before, "one", "two"])
    assert plugins.file_of("questions", "two") == file
    file.unlink()
    assert plugins.names("questions") == before


def test_a_list_is_made_once_while_its_files_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins.names("questions")
    monkeypatch.setattr("pkgutil.iter_modules", lambda *_: pytest.fail("listed again"))
    assert "roofline" in plugins.names("questions")
    assert plugins.file_of("questions", "roofline") is not None
