"""A folder that holds another machine's runs: they are kept, named, and never taken for this machine's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from conftest import fathom
from sample_records import GPU, LAPTOP, MACHINES, record_of, sections_of

from fathom.analysis.finding import analyse
from fathom.core.fingerprint import Machine
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store, read
from fathom.experiments import study

HERE, SERVER = MACHINES[LAPTOP], MACHINES[GPU]
TWIN = replace(HERE, host_id="another host of the same make")
RUN_ALL = study.run_all


def run_on(machine: Machine, spec: RunSpec) -> Record:
    return replace(record_of(spec.workload), spec=spec, machine=machine, device="cpu", sections=sections_of(10.0))


def workers(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> list[RunSpec]:
    """Commands run on this machine, by workers that take no time; what they were asked for is listed."""
    seen: list[RunSpec] = []

    def run(spec: RunSpec, _: object) -> Record:
        seen.append(spec)
        return run_on(machine, spec)

    monkeypatch.setattr("fathom.cli.commands._running.fingerprint", lambda: machine)
    monkeypatch.setattr(study, "run_all", partial(RUN_ALL, run=run))
    return seen


COMMANDS: dict[str, Callable[[Path], list[object]]] = {
    "study": lambda out: ["study", "autoenc", "--preset", "tiny", "--device", "cpu", "--report", out / "q.html"],
    "repeat": lambda out: ["repeat", "autoenc", "--device", "cpu", "--warmup-runs", 1, "--runs", 3],
    "scale": lambda out: ["scale", "autoenc", "--cores", "1", "--runs", 2],
}


@pytest.mark.parametrize("other", [SERVER, TWIN], ids=["another make", "the same make"])
@pytest.mark.parametrize("command", COMMANDS)
def test_runs_of_another_machine_are_not_taken_for_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, other: Machine
) -> None:
    out = tmp_path / "records"
    arguments = [*COMMANDS[command](tmp_path), "--out", out]
    first = workers(monkeypatch, other)
    assert fathom(monkeypatch, *arguments) == 0
    assert "another machine" not in capsys.readouterr().err
    again = workers(monkeypatch, HERE)
    assert fathom(monkeypatch, *arguments) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "another machine" in line]
    kept = len(list(Store(out, other).records()))
    assert f"holds runs of another machine ({other.cpu.label}; {kept} runs)" in line
    assert again == first, "all of it is measured here, too"
    assert fathom(monkeypatch, *arguments) == 0
    assert again == first, "and is then done"
    assert len(list(Store(out).records())) == 2 * kept, "nothing is lost"


def test_a_repeated_series_reports_this_machine_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = [*COMMANDS["repeat"](tmp_path), "--out", tmp_path, "--json"]
    for machine in (TWIN, HERE):
        capsys.readouterr()
        workers(monkeypatch, machine)
        assert fathom(monkeypatch, *arguments) == 0
    (configuration,) = json.loads(capsys.readouterr().out)["configurations"]
    assert configuration["launches"] == 3


def test_a_training_run_of_another_machine_is_not_this_machines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from test_learn_command import TINY, made, runs_come_to

    trained: list[int] = []

    def train(spec: RunSpec) -> Record:
        trained.append(spec.seed or 0)
        return made(spec, [-90])

    runs_come_to(monkeypatch, train)
    assert fathom(monkeypatch, *TINY, "--out", tmp_path) == 0
    assert fathom(monkeypatch, *TINY, "--out", tmp_path) == 0
    assert len(trained) == 1
    (kept,) = tmp_path.glob("*.json")
    document = json.loads(kept.read_text())
    document["machine"]["host_id"] = "elsewhere"
    kept.write_text(json.dumps(document))
    capsys.readouterr()
    assert fathom(monkeypatch, *TINY, "--out", tmp_path) == 0
    assert len(trained) == 2
    assert "holds runs of another machine" in capsys.readouterr().err


def test_what_another_machine_adds_meanwhile_is_not_claimed(tmp_path: Path) -> None:
    spec = RunSpec(workload="autoenc")
    store = Store(tmp_path, HERE)
    Store(tmp_path).add(run_on(TWIN, spec))
    assert store.claim(spec) is None
    mine = run_on(HERE, spec)
    Store(tmp_path).add(mine)
    claimed = store.claim(spec)
    assert claimed is not None
    assert claimed[0] == mine


def test_a_store_without_a_machine_has_all_records(tmp_path: Path) -> None:
    assert Store(tmp_path / "none", HERE).elsewhere() == []
    spec = RunSpec(workload="autoenc")
    for machine in (HERE, TWIN, SERVER):
        Store(tmp_path).add(run_on(machine, spec))
    assert len(list(Store(tmp_path).records())) == 3
    assert Store(tmp_path).elsewhere() == []
    assert [record.machine for record in Store(tmp_path, HERE).records()] == [HERE]
    assert len(Store(tmp_path, HERE).elsewhere()) == 2
    assert Store(tmp_path, HERE).remaining([spec, spec]) == [spec]


def test_a_mixed_folder_is_analysed_machine_by_machine(tmp_path: Path) -> None:
    spec = RunSpec(workload="autoenc")
    for machine in (HERE, TWIN, SERVER):
        Store(tmp_path).add(run_on(machine, spec))
    finding = analyse("phases", read([tmp_path], pytest.fail))
    (steps,) = [table for table in finding.tables if table.title == "Step times"]
    assert len({row[steps.columns.index("machine")] for row in steps.rows}) == 3
