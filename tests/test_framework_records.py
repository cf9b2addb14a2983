"""The plan of the table of frameworks, its records, and the command from its options to its table."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom as run_fathom
from sample_records import LAPTOP, MACHINES
from test_frameworks import TESTS, spec_of, stubs

from fathom.core import framework_store, plugins
from fathom.core.disturbance import Disturbance
from fathom.core.errors import BadOption, DataError, UnknownName
from fathom.core.framework import FrameworkRecord, FrameworkSpec
from fathom.core.stopping import Stopped
from fathom.core.store import Store, read
from fathom.experiments import frameworks as table
from fathom.frameworks import framework
from fathom.machine.host import fingerprint

__all__ = ["stubs"]  # a fixture


def test_every_cell_that_can_be_is_planned_and_engines_only_infer() -> None:
    specs = table.plan(threads=[1, 2])
    trained = {spec.framework for spec in specs if spec.phase == "train"}
    assert trained == {"torch", "keras_torch", "keras_jax", "keras_tensorflow"}
    assert {spec.framework for spec in specs if spec.phase == "infer"} == trained | {"onnxruntime", "openvino"}
    assert len(specs) == len({spec.id for spec in specs}) == 4 * (4 + 6) * 2
    assert {spec.batch for spec in specs if spec.network == "fcn5"} == {64}  # the minibatch of the guide's Table I
    assert {spec.batch for spec in table.plan(threads=[1], batch=5)} == {5}


def test_what_cannot_be_planned_is_refused() -> None:
    with pytest.raises(UnknownName, match="no network 'fcn'; did you mean fcn5"):
        table.plan(["fcn"])
    with pytest.raises(UnknownName, match="no framework 'tensorflow'; did you mean keras_tensorflow"):
        table.plan(frameworks=["tensorflow"])
    with pytest.raises(BadOption, match="inference engines have no training phase"):
        table.plan(frameworks=["openvino"], phases=["train"])
    for threads in (0, 100_000):
        with pytest.raises(BadOption, match="threads must be 1 to"):
            table.plan(threads=[threads])


def test_repeats_are_interleaved_in_blocks() -> None:
    specs = table.plan(["fcn5"], ["torch"], [1, 2])
    planned = table.order(specs, 3)
    blocks = [planned[at : at + len(specs)] for at in range(0, len(planned), len(specs))]
    assert [sorted(spec.id for spec in block) for block in blocks] == [sorted(spec.id for spec in specs)] * 3
    assert table.order(specs, 3) == planned


def test_every_extra_is_one_of_the_package_and_installs_what_is_needed() -> None:
    extras = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in plugins.names("frameworks"):
        runner = framework.load(name)
        if runner.extra is not None:
            packages = {line.partition(">")[0] for line in extras[runner.extra]}
            assert {*runner.requires} <= packages | {"torch", "jaxlib"}, name  # jax brings jaxlib along


# Records


def record_of(name: str = "torch", **changes: Any) -> FrameworkRecord:
    fields = {"machine": MACHINES[LAPTOP], "outcome": "ok", "step_s": [0.5] * 6, **changes}
    return FrameworkRecord(spec=fields.pop("spec", spec_of(name)), **fields)


def test_records_are_read_back_and_other_kinds_leave_them_alone(tmp_path: Path) -> None:
    from sample_records import record_of as other_record

    mine, other = record_of(), other_record("autoenc")
    framework_store.add(tmp_path, mine)
    Store(tmp_path).add(other)
    problems: list[str] = []
    assert framework_store.read([tmp_path], problems.append) == [mine]
    assert [record.id for record in read([tmp_path], problems.append)] == [other.id]
    assert framework_store.read(sorted(tmp_path.iterdir()), problems.append) == [mine]
    assert [record.id for record in read(sorted(tmp_path.glob("*.json")), problems.append)] == [other.id]
    assert problems == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"schema": 9}, "schema 9, this Fathom reads schema 1"),
        ({"step_s": []}, "no timed steps"),
        ({"step_s": [-1.0]}, "step_s is -1"),
        ({"odd": 1}, "unknown field odd"),
        ({"outcome": "fine"}, "Invalid enum value 'fine'"),
    ],
)
def test_what_is_no_record_is_one_line(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=problem):
        FrameworkRecord.from_json({**record_of().to_json(), **changes})
    (tmp_path / "x.framework.json").write_text("{")
    problems: list[str] = []
    assert framework_store.read([tmp_path], problems.append) == []
    assert len(problems) == 1


def test_done_cells_are_not_run_again_and_failed_ones_are() -> None:
    one, two, three = (spec_of("torch", threads=threads) for threads in (1, 2, 3))
    done = [
        record_of(spec=one),
        record_of(spec=two, outcome="failed", step_s=[]),
        record_of(spec=three, outcome="wrong"),
    ]
    assert framework_store.remaining([one, one, two, three], done, MACHINES[LAPTOP]) == [one, two]
    assert framework_store.remaining([one], done, MACHINES["gpu"]) == [one]  # another machine's


def test_disturbed_cells_are_run_again_as_often_as_planned_and_no_oftener() -> None:
    spec, busy = spec_of("torch"), Disturbance(others_cpu=2.0, cores=2)

    def left(planned: int, *disturbed: bool) -> int:
        records = [record_of(spec=spec, disturbance=busy if each else Disturbance()) for each in disturbed]
        return len(framework_store.remaining([spec] * planned, records, MACHINES[LAPTOP]))

    assert [left(3), left(3, True), left(3, True, True, True), left(3, *[True] * 4), left(3, *[True] * 6)] == [
        3,
        3,
        3,
        2,
        0,
    ]
    assert [left(3, False), left(3, False, True), left(3, False, False, False, True)] == [2, 2, 0]


# The command


def test_the_command_records_what_is_missing_and_goes_on(
    stubs: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def result(job: dict[str, Any], *others: Any) -> tuple[dict[str, Any] | None, str]:
        """Instead of a worker: the reference is written, PyTorch succeeds, the other one crashes."""
        if "write" in job:
            Path(job["write"]).touch()
            return {"written": job["write"]}, ""
        spec = FrameworkSpec(**job["framework"])
        if spec.framework != "torch":
            return None, "the worker was killed by SIGSEGV"
        return record_of(spec=spec, machine=fingerprint()).to_json(), ""

    monkeypatch.setattr(table, "_result", result)
    names = "torch,stub_frameworks:Crashing,stub_frameworks:Missing"
    arguments = ["frameworks", "fcn5", "--frameworks", names, "--threads", "1,2", "--runs", "2", "--phase", "infer"]
    arguments += ["--preset", "tiny", "--out", str(tmp_path), "--json"]
    assert run_fathom(monkeypatch, *arguments) == 1  # two cells failed
    shown = capsys.readouterr()
    assert "stub_frameworks:Missing: not installed: pip install 'fathom[nothing]'" in shown.err
    found = framework_store.read([tmp_path], print)
    outcomes = [record.outcome for record in found]
    assert [outcomes.count(each) for each in ("ok", "failed", "not installed")] == [4, 4, 1]
    rows = json.loads(shown.out)["tables"][0]["rows"]
    assert [row[1] for row in rows] == ["torch", "stub_frameworks:Crashing", "stub_frameworks:Missing"]
    assert [row[3:5] for row in rows] == [[500.0, 500.0], ["failed", "failed"], ["not installed", "not installed"]]
    assert run_fathom(monkeypatch, *arguments) == 1
    assert len(framework_store.read([tmp_path], print)) == len(found) + 4  # the failed ones, once more
    assert "4 of 8 cells are in" in capsys.readouterr().err


def test_an_interruption_keeps_what_is_completed_and_leaves_no_scratch_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scratch, folder = tmp_path / "scratch", tmp_path / "records"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.setattr(table._References, "path", lambda self, spec: Path(self._folder, "truth.npy"))
    specs = [spec_of("torch", threads=threads) for threads in (1, 2)]

    def run(spec: FrameworkSpec, *others: Any) -> FrameworkRecord:
        if spec == specs[1]:
            raise Stopped(2)
        return record_of(spec=spec)

    monkeypatch.setattr(table, "run", run)
    with pytest.raises(Stopped):
        list(table.run_all(specs, folder, lambda index, spec: lambda done, total: None))
    assert [record.spec for record in framework_store.read([folder], print)] == specs[:1]
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--threads", "1,x"], "--threads takes numbers such as 1,2,4, not '1,x'"),
        (["fcn6"], "no network 'fcn6'; did you mean fcn5?"),
        (["--preset", "large"], "no preset 'large'"),
        (["--phase", "trian"], "no phase 'trian'; did you mean train?"),
        (["--frameworks", "caffe"], "no framework 'caffe'"),
        (["--out", "/proc/records"], "cannot write to /proc/records"),
    ],
)
def test_wrong_options_are_one_line(
    arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_fathom(monkeypatch, "frameworks", *arguments) == 2
    assert line in capsys.readouterr().err
