"""The chapter on frameworks: its numbers, the published table beside them, and what may not win."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom as run_fathom
from sample_records import GPU, LAPTOP, MACHINES

from fathom import published
from fathom.analysis.finding import Finding, analyse
from fathom.analysis.questions import frameworks
from fathom.core import framework_store
from fathom.core.disturbance import Disturbance
from fathom.core.framework import FrameworkRecord, FrameworkSpec


def cells(framework: str, times_s: dict[int, float], **changes: Any) -> list[FrameworkRecord]:
    """Three processes of each number of threads, 1 % apart."""
    spec: dict[str, Any] = {"network": "fcn5", "batch": 64}
    spec |= {name: changes.pop(name) for name in ("network", "phase", "batch", "preset") if name in changes}
    made = []
    for threads, step_s in times_s.items():
        for process in range(3):
            fields: dict[str, Any] = {
                "spec": FrameworkSpec(framework=framework, threads=threads, **spec),
                "machine": MACHINES[LAPTOP],
                "outcome": "ok",
                "warmup_s": [10 * step_s, step_s, step_s],
                "step_s": [step_s * (1 + process / 100)] * 8,
                "cpu_s": 8 * step_s * threads,
                "error": 1e-6,
                "tolerance": 1e-2,
                "cpus": list(range(threads)),
                "versions": {framework: "1.0"},
                "started": f"2026-01-01T00:00:{process:02}",
            }
            made.append(FrameworkRecord(**{**fields, **changes}))
    return made


def answer(*groups: list[FrameworkRecord]) -> Finding:
    return analyse("frameworks", [], [record for group in groups for record in group])


def table(finding: Finding, title: str) -> list[list[Any]]:
    return next(each.rows for each in finding.tables if each.title.startswith(title))


def test_the_published_table_is_the_guides() -> None:
    assert published.thread_seconds() == {
        "Caffe": {1: 1.324, 2: 0.790, 4: 0.578, 8: 15.444},
        "Tensorflow": {1: 7.062, 2: 4.789, 4: 2.648, 8: 1.938},
        "Torch": {1: 1.329, 2: 0.710, 4: 0.423},
    }


def test_without_records_it_names_the_command() -> None:
    finding = analyse("frameworks", [])
    assert not finding.answered
    assert "fathom frameworks" in finding.summary


def test_step_times_speed_up_and_ratio_are_exact() -> None:
    finding = answer(cells("torch", {1: 1.0, 2: 0.5}), cells("keras_jax", {1: 1.2, 2: 1.0}))
    rows = table(finding, "Step time by framework")
    assert rows[0] == ["fcn5 train", "torch", 64, pytest.approx(1010), pytest.approx(505), pytest.approx(2), 1.0]
    assert rows[1] == ["fcn5 train", "keras_jax", 64, pytest.approx(1212), pytest.approx(1010), pytest.approx(1.2), 2.0]
    assert finding.summary == "Fastest: fcn5 train: torch (505 ms, 2 times as fast as keras_jax) at 2 threads."
    columns = next(each.columns for each in finding.tables if each.title == "Every cell")
    first = dict(zip(columns, table(finding, "Every cell")[0], strict=True))
    assert first["cores used"] == pytest.approx(1 / 1.01)
    assert first["first step (s)"] == 10.0
    assert first["interval"] == "over 3 launches"
    assert first["from (ms)"] < 1010 < first["to (ms)"]


def test_table_one_stands_beside_the_same_network_phase_and_batch_alone() -> None:
    rows = table(answer(cells("torch", {1: 1.0, 2: 0.5})), "Table I of the guide")
    assert rows == [
        ["Caffe", frameworks.PUBLISHED_MACHINE, "published", 1.324, 0.790, 0.578, 15.444],
        ["Tensorflow", frameworks.PUBLISHED_MACHINE, "published", 7.062, 4.789, 2.648, 1.938],
        ["Torch", frameworks.PUBLISHED_MACHINE, "published", 1.329, 0.710, 0.423, None],
        ["torch", "Laptop CPU, 4 cores", "measured", pytest.approx(1.01), pytest.approx(0.505), None, None],
    ]
    for changes in ({"batch": 32}, {"phase": "infer"}, {"network": "lstm"}, {"preset": "tiny"}):
        finding = answer(cells("torch", {1: 1.0}, **changes))
        assert not [each for each in finding.tables if "Table I" in each.title]
        assert not [series for chart in finding.charts for series in chart.series if series.role == "published"]


def test_what_is_wrong_is_marked_and_wins_nothing() -> None:
    wrong = cells("keras_jax", {1: 0.1}, outcome="wrong", reason="logits differ", error=0.3)
    finding = answer(cells("torch", {1: 1.0}), cells("keras_torch", {1: 2.0}), wrong)
    matrix = next(each for each in finding.tables if each.leading)
    assert matrix.rows[1][1:4] == ["keras_jax", 64, "wrong"]
    assert (1, 3) in matrix.alarms
    assert finding.summary.startswith("Fastest: fcn5 train: torch (1.01 s, 2 times as fast as keras_torch)")
    assert "1 cell gave other outputs than the reference" in finding.summary
    assert "Wrong: keras_jax: logits differ." in finding.notes
    assert {series.name for chart in finding.charts for series in chart.series if series.role == "measured"} == {
        "torch",
        "keras_torch",
    }


def test_a_disturbed_process_that_is_wrong_makes_the_cell_wrong() -> None:
    mixed = cells("keras_jax", {1: 0.1})
    busy = Disturbance(others_cpu=1.5, cores=2)
    mixed[1] = replace(mixed[1], outcome="wrong", reason="logits differ", disturbance=busy)
    assert mixed[1].disturbed
    finding = answer(cells("torch", {1: 1.0}), mixed)
    assert finding.summary.startswith("Fastest: fcn5 train: torch (1.01 s, the only one)")
    assert "Wrong: keras_jax: logits differ." in finding.notes


def test_one_wrong_process_makes_the_cell_wrong() -> None:
    mixed = cells("keras_jax", {1: 0.1})
    mixed[1] = replace(mixed[1], outcome="wrong", reason="logits differ")
    assert table(answer(cells("torch", {1: 1.0}), mixed), "Step time")[1][3] == "wrong"


def test_rows_say_what_failed_and_what_is_not_installed() -> None:
    gone = cells("openvino", {1: 1.0}, outcome="not installed", reason="not installed: pip", step_s=[], warmup_s=[])[:1]
    crashed = cells("keras_jax", {2: 1.0}, outcome="failed", reason="killed", step_s=[], warmup_s=[], cpu_s=None)
    finding = answer(cells("torch", {1: 1.0, 2: 0.5}), gone, crashed)
    rows = {row[1]: row[3:5] for row in table(finding, "Step time")}
    assert rows["openvino"] == ["not installed", "not installed"]
    assert rows["keras_jax"] == [None, "failed"]
    now = answer(cells("torch", {1: 1.0}), gone, cells("openvino", {1: 0.5}, started="2026-01-02T00:00:00"))
    assert {row[1]: row[3] for row in table(now, "Step time")}["openvino"] == pytest.approx(
        505
    )  # it was installed since
    assert not [note for note in now.notes if "not installed" in note]


def test_no_winner_is_named_without_a_significant_difference() -> None:
    finding = answer(cells("torch", {1: 1.0}), cells("keras_torch", {1: 1.001}))
    assert "torch (1.01 s; no significant difference from keras_torch)" in finding.summary


def test_disturbed_processes_give_way_to_undisturbed_ones() -> None:
    busy = cells("torch", {1: 3.0}, disturbance=Disturbance(others_cpu=2.0, cores=2))
    assert table(answer(busy), "Step time")[0][3] == pytest.approx(3030)
    assert "3 of these 3 processes were disturbed by other programs." in answer(busy).summary
    both = answer(busy, cells("torch", {1: 1.0}))
    assert table(both, "Step time")[0][3] == pytest.approx(1010)
    assert "disturbed" not in both.summary


def test_machines_are_never_mixed() -> None:
    finding = answer(cells("torch", {1: 1.0}), cells("torch", {1: 0.1}, machine=MACHINES[GPU]))
    assert [row[0] for row in table(finding, "Step time")] == [
        "fcn5 train on Laptop CPU, 4 cores",
        "fcn5 train on Server CPU, 16 cores",
    ]


def test_batches_are_never_mixed() -> None:
    finding = answer(cells("torch", {1: 1.0}), cells("torch", {1: 0.5}, batch=32))
    assert [row[0] for row in table(finding, "Step time")] == ["fcn5 train, batch 32", "fcn5 train, batch 64"]


@pytest.mark.parametrize("suffix", ["html", "md"])
def test_a_folder_of_framework_records_alone_makes_a_report(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for record in cells("torch", {1: 1.0, 2: 0.5}):
        framework_store.add(tmp_path / "records", record)
    out = tmp_path / f"report.{suffix}"
    assert run_fathom(monkeypatch, "report", tmp_path / "records", "--out", out) == 0
    page = out.read_text()
    assert "Frameworks and threads" in page
    assert "No workload was run." in page
    assert "15.444" in page or "15.4" in page


def test_the_question_can_be_asked_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for record in cells("torch", {1: 1.0}):
        framework_store.add(tmp_path, record)
    assert run_fathom(monkeypatch, "analyse", "frameworks", tmp_path) == 0
    assert "Fastest: fcn5 train: torch (1.01 s, the only one) at 1 thread." in capsys.readouterr().out
    assert run_fathom(monkeypatch, "analyse", "frameworks", tmp_path / "none") == 2


def test_of_a_framework_in_two_versions_the_newer_counts_and_what_is_not_installed_hides_neither() -> None:
    old, new = (
        replace(
            cells("pytorch", {1: seconds})[0], versions={"torch": version}, started=f"2026-01-0{day}T00:00:00+00:00"
        )
        for day, (version, seconds) in enumerate([("2.10", 3.0), ("2.11", 1.0)], start=1)
    )
    absent = replace(new, outcome="not installed", step_s=[], versions={}, started="2026-01-03T00:00:00+00:00")
    for records in ([old, new], [old, new, absent]):
        ((group,),) = frameworks._rows(records).values()
        assert {tuple(run.step_s) for run in group.runs} == {tuple(new.step_s)}
