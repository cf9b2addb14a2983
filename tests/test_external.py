"""A workload of somebody else, named as package.module:Class: taken wherever a built-in name is."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import fathom
from sample_records import record_of, sections_of
from test_cli import document

from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import interleave
from fathom.experiments.interleave import Launch, Side, parse_side
from fathom.experiments.study import plan

NAME = "tiny_net:TinyNet"
MODULE = """
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from fathom.data.base import InMemory
from fathom.workloads.base import Workload


@dataclass(frozen=True, kw_only=True)
class TinyNet(Workload):
    name: ClassVar = "tinynet"
    item: ClassVar = "row"
    expects: ClassVar = "nothing: its data is synthetic"
    presets: ClassVar = {"tiny": {"batch": 4}}

    width: int = 8

    def model(self):
        return nn.Linear(self.width, 2)

    def synthetic(self, seed):
        x = torch.randn(64, self.width, generator=torch.Generator().manual_seed(seed))
        return InMemory(x=x, y=(x.sum(1) > 0).long())

    def real(self, folder, split="train"):
        raise NotImplementedError

    def forward(self, model, batch):
        return model(batch["x"])

    def loss(self, model, batch):
        return F.cross_entropy(model(batch["x"]), batch["y"])

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def infer(self, model, batch):
        return {"class": model(batch["x"]).argmax(1)}

    def answers(self, output, source):
        return [str(int(each)) for each in output["class"]]
"""


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside the tree of Fathom, as its users work; what is imported here is forgotten again."""
    (tmp_path / "tiny_net.py").write_text(MODULE)
    (tmp_path / "broken_net.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "tiny_net", raising=False)


def test_run_takes_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--preset", "tiny", "--device", "cpu", "--set", "width=3", "--json"]
    assert fathom(monkeypatch, "run", NAME, *arguments) == 0
    printed = document(capsys)
    assert (printed["outcome"], printed["items_per_step"]) == ("ok", 4)
    assert Path(printed["record"]).name.startswith("tiny_net-TinyNet-train-")
    (record,) = Store("records").records()
    assert (record.spec.workload, record.parameters) == (NAME, 3 * 2 + 2)


def test_study_takes_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fathom(monkeypatch, "study", NAME, "--preset", "tiny", "--device", "cpu", "--json") == 0
    printed = capsys.readouterr()
    runs = json.loads(printed.out)["runs"]
    assert [(run["workload"], run["phase"], run["outcome"]) for run in runs] == [
        (NAME, "train", "ok"),
        (NAME, "infer", "ok"),
    ]
    assert "1 of 2  tiny_net:TinyNet train on cpu: " in printed.err
    assert Store("records").remaining(plan([NAME], "tiny", ["cpu"])) == [], "it would be resumed"


def test_a_side_with_its_own_fathom_finds_it_in_the_working_directory(tmp_path: Path) -> None:
    """Its workers do not import from the working directory by themselves (PYTHONSAFEPATH)."""
    checkout = Path(interleave.__file__).parents[3]
    sides = parse_side("A", str(checkout)), Side("B")
    spec = RunSpec(workload=NAME, preset="tiny", device="cpu", steps=2)
    stores = Store(tmp_path / "a"), Store(tmp_path / "b")
    ((_, record),) = interleave.interleave([Launch(spec, 0)], sides, stores)
    assert (record.outcome, record.items_per_step) == ("ok", 4)


@pytest.fixture
def instantly(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that take no time; gives the workloads that were run."""
    ran: list[str] = []

    def record(spec: RunSpec) -> Record:
        ran.append(spec.workload)
        return replace(record_of(spec.workload), spec=spec, sections=sections_of(10.0))

    def run_all(specs: Sequence[RunSpec], store: Store, job: str, *_: object) -> None:
        for spec in specs:
            store.add(record(spec))

    for command in ("study", "repeat", "scale"):
        where = "_series" if command == "scale" else command
        monkeypatch.setattr(f"fathom.cli.commands.{where}.run_all", run_all)
    monkeypatch.setattr(interleave, "isolated", lambda spec, *_, **__: record(spec))
    return ran


COMMANDS = {
    "repeat": ["repeat", "--runs", "1", "--warmup-runs", "0", "--device", "cpu"],
    "scale": ["scale", "--cores", "1"],
    "compare": ["compare", "threads=1", "threads=2", "--interleave", "--runs", "1", "--device", "cpu"],
    "study": ["study", "--device", "cpu"],
}


@pytest.mark.usefixtures("on_the_laptop")
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_it(command: str, instantly: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert fathom(monkeypatch, *COMMANDS[command], NAME, "--preset", "tiny", "--json") == 0
    assert set(instantly) == {NAME}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([NAME, "--preset", "small"], "no preset 'small'; there are: tiny"),
        (["tiny_nt:TinyNet"], "cannot import tiny_nt: No module named 'tiny_nt'"),
        (["tiny_net:TinyNets"], "tiny_net has no TinyNets"),
        (["tiny_net:InMemory"], "tiny_net:InMemory is no workload"),
    ],
)
def test_a_mistake_is_one_line_before_anything_runs(
    command: str,
    arguments: list[str],
    expected: str,
    instantly: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fathom(monkeypatch, *COMMANDS[command], *arguments) == 2
    printed = capsys.readouterr()
    assert (instantly, printed.out, printed.err.count("\n")) == ([], "", 1)
    assert expected in printed.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_module_that_fails_is_left_to_its_runs(
    command: str, instantly: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They record how it failed, and other workloads are still measured."""
    fathom(monkeypatch, *COMMANDS[command], "broken_net:Net", "--preset", "tiny", "--json")
    assert set(instantly) == {"broken_net:Net"}
