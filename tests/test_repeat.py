"""Runs in random order: seeded, balanced, resumed by counting, and warm-up runs kept separately."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from conftest import fathom as run_fathom
from sample_records import MACHINES, sections_of

from fathom.core.errors import BadOption
from fathom.core.events import OnProgress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import repeat, study
from fathom.experiments.repeat import plan, run_order

pytestmark = pytest.mark.usefixtures("on_the_laptop")

BASE = RunSpec(workload="", preset="tiny", device="cpu")
NAMES = ["autoenc", "memnet", "vgg", "deepq"]


def record(spec: RunSpec, wall_s: float = 10.0, outcome: Literal["ok", "failed"] = "ok") -> Record:
    return Record(
        spec=spec, machine=MACHINES["laptop"], device=spec.device, outcome=outcome,
        sections=sections_of(wall_s), warmup_s=[0.1] * 2, step_s=[0.1] * 10,
    )  # fmt: skip


def kept(store: Store, specs: Iterable[RunSpec], outcome: Literal["ok", "failed"] = "ok") -> None:
    for spec in specs:
        store.add(record(spec, outcome=outcome))


def test_all_runs_of_a_configuration_have_one_spec() -> None:
    specs = plan(BASE, ["autoenc", "vgg"], ["cpu", "cuda:0"])
    assert [(spec.workload, spec.device) for spec in specs] == [
        ("autoenc", "cpu"),
        ("autoenc", "cuda:0"),
        ("vgg", "cpu"),
        ("vgg", "cuda:0"),
    ]
    assert len({spec.id for spec in specs}) == 4
    assert all(spec.budget_s is None and spec.kind != "profiled" for spec in specs), (
        "RUN is a fixed number of plain steps"
    )


def test_the_order_is_random_seeded_and_balanced() -> None:
    specs = plan(BASE, NAMES, ["cpu", "cuda:0"])
    ordered = run_order(specs, 50, seed=3)
    assert ordered == run_order(specs, 50, seed=3)
    assert ordered != run_order(specs, 50, seed=4)
    rounds = [[spec.id for spec in ordered[begin : begin + 8]] for begin in range(0, 400, 8)]
    assert all(len(set(each)) == 8 for each in rounds), "each once in every round"
    assert len({tuple(each) for each in rounds}) > 45, "rounds differ"
    first = Counter(each[0] for each in rounds)
    assert len(first) == 8, "each is first at times"


def test_more_runs_continue_the_same_order() -> None:
    specs = plan(BASE, NAMES, ["cpu"])
    assert run_order(specs, 9, seed=0)[:20] == run_order(specs, 5, seed=0)


def test_what_is_left_is_counted(tmp_path: Path) -> None:
    store = Store(tmp_path / "records")
    ordered = run_order(plan(BASE, NAMES, ["cpu"]), 5, seed=0)
    assert store.remaining(ordered) == ordered, "no folder yet"
    kept(store, ordered[:7])
    assert store.remaining(ordered) == ordered[7:]
    kept(store, [ordered[7]], outcome="failed")
    assert store.remaining(ordered) == ordered[7:], "a failed run does not count"
    kept(store, ordered)
    assert store.remaining(ordered) == []


def test_of_another_configuration_nothing_is_counted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kept(store, plan(BASE, NAMES, ["cpu"]))
    others = run_order(plan(RunSpec(workload="", preset="tiny", device="cpu", steps=11), NAMES, ["cpu"]), 1, seed=0)
    assert store.remaining(others) == others


# the command


def fathom(monkeypatch: pytest.MonkeyPatch, run: Callable[[RunSpec], Record], *arguments: str) -> int:
    """`fathom repeat` with workers that take no time."""

    def worker(spec: RunSpec, progress: OnProgress) -> Record:
        return run(spec)

    monkeypatch.setattr(study, "run_all", partial(RUN_ALL, run=worker))
    return run_fathom(monkeypatch, "repeat", *arguments)


RUN_ALL = study.run_all
FEW = ["autoenc", "memnet", "--device", "cpu", "--preset", "tiny", "--warmup-runs", "2", "--runs", "3", "--json"]


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return {each["workload"]: each for each in json.loads(capsys.readouterr().out)["configurations"]}


def test_warm_up_runs_come_first_are_kept_separately_and_enter_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The first four runs, two of each workload, are ten times as slow."""
    seen: list[RunSpec] = []

    def run(spec: RunSpec) -> Record:
        seen.append(spec)
        return record(spec, wall_s=100.0 if len(seen) <= 4 else 10.0)

    assert fathom(monkeypatch, run, *FEW, "--out", str(tmp_path)) == 0
    told = document(capsys)
    assert Counter(spec.workload for spec in seen[:4]) == {"autoenc": 2, "memnet": 2}
    assert Counter(spec.workload for spec in seen) == {"autoenc": 5, "memnet": 5}
    for each in told.values():
        assert (each["launches"], each["failed"]) == (3, 0)
        wall = each["sections"]["wall_s"]
        assert (wall["mean"], wall["median"], wall["deviation"], wall["low"], wall["high"]) == (10, 10, 0, 10, 10)
        assert each["sections"]["run_s"]["median"] == 6
    assert {each.sections.wall_s for each in Store(tmp_path).records()} == {10.0}
    assert {each.sections.wall_s for each in Store(tmp_path / repeat.WARM_UP).records()} == {100.0}


def test_a_failure_is_a_record_and_the_series_continues_and_is_completed_later(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    count = 0

    def run(spec: RunSpec) -> Record:
        nonlocal count
        count += 1
        if count == 6:
            raise BadOption("no luck")
        return record(spec, outcome="failed" if count == 7 else "ok")

    assert fathom(monkeypatch, run, *FEW, "--out", str(tmp_path)) == 1
    told = document(capsys)
    assert sum(each["launches"] for each in told.values()) == 4
    assert sum(each["failed"] for each in told.values()) == 2
    assert count == 4 + 6
    assert "no luck" in {each.reason for each in Store(tmp_path).records()}
    assert fathom(monkeypatch, run, *FEW, "--out", str(tmp_path)) == 0
    assert [each["launches"] for each in document(capsys).values()] == [3, 3]
    assert fathom(monkeypatch, run, *FEW, "--out", str(tmp_path)) == 0
    assert [each["launches"] for each in document(capsys).values()] == [3, 3], "nothing was left, nothing was run"
    assert len([each for each in Store(tmp_path).records() if each.outcome == "ok"]) == 6


def test_an_interrupted_series_is_resumed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [*FEW, "--warmup-runs", "0", "--runs", "10", "--seed", "5", "--out", str(tmp_path)]
    seen: list[str] = []

    def run(spec: RunSpec) -> Record:
        if len(seen) == 7:
            seen.append("")
            raise KeyboardInterrupt
        seen.append(spec.workload)
        return record(spec)

    assert fathom(monkeypatch, run, *arguments) == 130
    assert fathom(monkeypatch, run, *arguments) == 0
    whole = run_order(
        plan(RunSpec(workload="", preset="tiny", device="cpu"), ["autoenc", "memnet"], ["cpu"]), 10, seed=5
    )
    assert [name for name in seen if name] == [spec.workload for spec in whole]


def test_the_table_shows_run_to_run_variation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [argument for argument in FEW if argument != "--json"]
    assert fathom(monkeypatch, record, *arguments, "--out", str(tmp_path)) == 0
    printed = capsys.readouterr().out
    assert "autoenc train on Laptop CPU, 4 cores: 3 runs" in printed
    for word in ("INIT", "SETUP", "RUN", "MAIN", "WALL", "median (s)", "95 % from", "variation (%)", "next run"):
        assert word in printed
    assert max(map(len, printed.splitlines())) <= 80


MISTAKES = [
    (["autoen"], "no workload 'autoen'; did you mean autoenc?"),
    (["autoenc", "--preset", "tny"], "no preset 'tny'; did you mean tiny?"),
    (["autoenc", "--device", "cuda:9"], "device 'cuda:9' is not on this machine; there are: cpu"),
    (["autoenc", "--phase", "training"], "no phase 'training'; did you mean train?"),
    (["autoenc", "--runs", "0"], "Invalid value for '--runs'"),
    (["autoenc", "--steps", "0"], "steps must be at least 1, not 0"),
    (["autoenc", "--engine", "cudagraph", "--device", "cpu"], "engine cudagraph needs an NVIDIA GPU, not cpu"),
]


@pytest.mark.parametrize(("arguments", "expected"), MISTAKES, ids=[" ".join(mistake) for mistake, _ in MISTAKES])
def test_a_mistake_is_one_line_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    expected: str,
) -> None:
    assert fathom(monkeypatch, record, *arguments, "--out", str(tmp_path)) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert expected in printed.err
    assert list(tmp_path.iterdir()) == []
