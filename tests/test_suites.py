"""Suites: the eight are what is meant without names; the Cookbook's eleven are named by --suite; the file registers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fathom.workloads
from fathom.cli.app import run
from fathom.core import plugins
from fathom.core.errors import BadOption, UnknownName
from fathom.core.spec import RunSpec
from fathom.experiments.checks import check, is_external
from fathom.experiments.study import plan
from fathom.workloads import catalogue
from fathom.workloads.base import Workload, workload_class

EIGHT = ["alexnet", "autoenc", "deepq", "memnet", "residual", "seq2seq", "speech", "vgg"]
NETWORKS = ["alexnet", "vgg", "vgg-16", "googlenet", "resnet-50", "resnet-101", "resnet-152"]
ELEVEN = sorted([*NETWORKS, "acoustic_model", "text_cnn", "deep_mnist", "sensor_net"])
TWO = """
from typing import ClassVar
from fathom.workloads.autoenc import Autoenc

class Left(Autoenc):
    name: ClassVar = "left-one"
    suites: ClassVar = ("pair",)

class Right(Autoenc):
    name: ClassVar[str] = 'right-one'
"""


def test_the_default_is_the_eight_and_the_cookbook_has_eleven() -> None:
    assert catalogue.suite() == EIGHT
    assert catalogue.suite("cookbook") == ELEVEN
    assert set(plugins.names("workloads")) == {*EIGHT, *ELEVEN}
    with pytest.raises(UnknownName, match="no suite 'cookbok'; did you mean cookbook"):
        catalogue.suite("cookbok")


def test_a_study_without_names_runs_the_eight() -> None:
    assert {spec.workload for spec in plan([], "tiny", ["cpu"])} == set(EIGHT)


@pytest.mark.parametrize(("arguments", "names"), [([], EIGHT), (["--suite", "cookbook"], ELEVEN)])
def test_list_shows_a_suite(arguments: list[str], names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    run(["list", "--json", *arguments])
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == names


def test_variants_of_a_family_share_a_file_and_are_checked_by_name_alone() -> None:
    for name in ("resnet-50", "resnet-101", "resnet-152", "residual"):
        path = plugins.file_of("workloads", name)
        assert path == catalogue.FOLDER / "residual.py"
        assert workload_class(name).name == name
        assert not is_external(name)
    with pytest.raises(UnknownName, match="no option of resnet-50"):
        check(RunSpec(workload="resnet-50", options={"shrik": 2}))


def test_a_dropped_file_with_two_classes_registers_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pair.py").write_text(TWO)
    (tmp_path / "single.py").write_text(TWO.partition("class Right")[0])
    monkeypatch.setattr(fathom.workloads, "__path__", [*fathom.workloads.__path__, str(tmp_path)])
    assert {"left-one", "right-one", "single"} <= set(plugins.names("workloads"))
    assert "pair" not in plugins.names("workloads"), "a file with several names has none of its own"
    try:
        assert workload_class("right-one").name == "right-one"
        assert is_external("right-one"), "it is not in the catalogue's folder"
        assert "left-one" in catalogue.suite("pair")
        assert "right-one" in catalogue.suite()
    finally:
        for module in ("pair", "single"):
            sys.modules.pop(f"fathom.workloads.{module}", None)


def test_two_classes_without_the_name_are_refused() -> None:
    module = ModuleType("two")
    exec(TWO.replace("left-one", "same").replace("right-one", "same"), vars(module))
    for each in ("Left", "Right"):
        vars(module)[each].__module__ = "two"
    with pytest.raises(BadOption, match="exactly one Workload same: it defines 2"):
        plugins.class_called("same", module, Workload)  # type: ignore[type-abstract]


def test_a_workload_that_cannot_be_loaded_is_in_the_default_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs then record why, as before there were suites."""

    def broken(name: str) -> dict[str, object]:
        raise SyntaxError("a broken file") if name == "memnet" else AssertionError

    monkeypatch.setattr(catalogue, "facts", broken)
    assert "memnet" in catalogue.suite()
