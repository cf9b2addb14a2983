"""The step time is the same in the report, in findings and at the terminal; what it rests on is marked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import fathom
from sample_records import GPU, record_of

from fathom.analysis.compare import compare
from fathom.analysis.questions import phases
from fathom.analysis.ratio import ratio
from fathom.analysis.statistics import median_interval
from fathom.analysis.step_time import bounds_in_words, in_words, levels, settled_steps, step_time
from fathom.cli.commands import _running, run, study
from fathom.core.disturbance import Disturbance
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.report.runs import headline

NOISE = 1 + 0.002 * np.random.default_rng(1).standard_normal(60)
WARM = record_of("vgg", warmup_s=[0.3], step_s=[0.3] * 4 + (0.1 * NOISE[:26]).tolist())
UNSTEADY = record_of("speech", warmup_s=[], step_s=[*(0.051 * NOISE[:34]).tolist(), *(0.039 * NOISE[34:]).tolist()])
SINGLE = record_of("vgg", warmup_s=[], step_s=[0.1])
CROWDED = Disturbance(others_cpu=1.4, cores=2)


def test_the_samples_are_what_they_are_called() -> None:
    assert len(settled_steps(WARM)) == 26
    assert levels(WARM) is None
    assert levels(UNSTEADY) == pytest.approx((0.051, 0.039), rel=0.01)
    assert settled_steps(UNSTEADY) == UNSTEADY.step_s


# fathom run and fathom study


def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], record: Record, *more: str) -> str:
    """What `fathom run` prints of a run that left this record."""
    monkeypatch.setattr(run, "isolated", lambda spec, *_: replace(record, spec=spec, id=f"{record.id}{len(more)}"))
    assert fathom(monkeypatch, "run", "vgg", "--device", "cpu", *more) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("record", [WARM, UNSTEADY, SINGLE], ids=["warm-up", "unsteady", "single step"])
def test_run_and_study_print_what_the_report_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], record: Record
) -> None:
    table = headline([record])
    reported = dict(zip(table.columns, table.rows[0], strict=True))
    printed = json.loads(told(monkeypatch, capsys, record, "--json"))["step"]
    assert 1000 * printed["median_s"] == pytest.approx(reported["step (ms)"])
    row = study._row(record)
    assert row["step (ms)"] == pytest.approx(reported["step (ms)"])
    assert row["95 % interval (ms)"] == reported["95 % interval (ms)"]
    assert row["items/s"] == pytest.approx(reported["items/s"])
    assert f"{1000 * printed['median_s']:.3g} ms per step" in _running.result(record)


def test_run_prints_settled_steps_with_what_the_interval_claims(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = told(monkeypatch, capsys, WARM)
    assert "100 ms (95 % interval" in printed, "the median of all 30 is that of 26, but the range is not"
    assert "within this process)" in printed
    assert "26 of 30 after warm-up; all: 99" in printed
    assert "unsteady" not in printed
    assert "disturbed" not in printed


def test_run_marks_an_unsteady_and_a_disturbed_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = told(monkeypatch, capsys, replace(UNSTEADY, disturbance=CROWDED))
    assert "unsteady: 51.0 then 39.0 ms" in printed
    assert "disturbed 1.4 of 2 cores used by other processes" in printed
    document = json.loads(told(monkeypatch, capsys, replace(UNSTEADY, disturbance=CROWDED), "--json"))
    assert document["step"]["unsteady_levels_s"] == pytest.approx([0.051, 0.039], rel=0.01)
    assert document["step"]["claim"] == "within this process"
    assert document["disturbances"] == ["1.4 of 2 cores used by other processes"]
    line = _running.result(replace(UNSTEADY, disturbance=CROWDED))
    assert line.endswith("per step, unsteady (disturbed: 1.4 of 2 cores used by other processes)")


def test_a_failed_run_has_no_step_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    failed = record_of("vgg", outcome="failed", reason="no luck", step_s=[], warmup_s=[])
    monkeypatch.setattr(run, "isolated", lambda spec, *_: replace(failed, spec=spec))
    assert fathom(monkeypatch, "run", "vgg", "--device", "cpu", "--json") == 1
    assert json.loads(capsys.readouterr().out)["step"] is None
    assert study._row(failed)["95 % interval (ms)"] is None


# launches that differ


def test_two_launches_that_differ_bound_nothing_and_that_is_said() -> None:
    runs = [replace(SINGLE, step_s=[seconds] * 20) for seconds in (1.0, 1.6)]
    step = step_time(runs)
    assert step.high > 10 * step.median
    assert bounds_in_words(step, runs) == "no interval: too scattered over 2 launches"
    (table,) = (each for each in phases.analyse(runs).tables if "interval" in each.columns)
    (row,) = table.rows
    assert row[table.columns.index("interval")] == "no interval: too scattered over 2 launches"


# a single step


def test_a_single_step_is_never_printed_as_infinite(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert in_words(SINGLE) == "100 ms (one step: no interval)"
    assert bounds_in_words(step_time([SINGLE]), [SINGLE]) == "one step: no interval"
    printed = told(monkeypatch, capsys, SINGLE)
    assert "100 ms (one step: no interval)" in printed
    assert "inf" not in printed
    assert json.loads(told(monkeypatch, capsys, SINGLE, "--json"))["step"]["high_s"] is None


def test_phases_of_single_steps_have_no_bounds() -> None:
    finding = phases.analyse([SINGLE, replace(SINGLE, spec=RunSpec(workload="vgg", phase="infer"))])
    finding_of_two = phases.analyse([SINGLE, record_of("vgg", place=GPU, warmup_s=[], step_s=[0.01])])
    for each in (finding, finding_of_two):
        shown = json.dumps([each.summary, each.notes, [table.rows for table in each.tables]])
        assert "inf" not in shown.replace("infer", "").replace("inference", "")
        assert "Infinity" not in shown
    (steps,) = [table for table in finding_of_two.tables if table.title == "Step times"]
    for row in steps.rows:
        cells = dict(zip(steps.columns, row, strict=True))
        assert (cells["95 % from (ms)"], cells["95 % to (ms)"]) == (None, None)
        assert cells["interval"] == "one step: no interval"
    assert "times as fast" in finding_of_two.summary
    assert "from a single step, so without an interval" in finding_of_two.summary


def test_single_steps_are_compared_without_an_interval(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert ratio([[0.1]], [[0.2]]).detectable == float("inf")
    for name in "ab":
        Store(tmp_path / name).add(replace(SINGLE, id=name))
    assert fathom(monkeypatch, "compare", tmp_path / "a", tmp_path / "b") == 0
    printed = capsys.readouterr()
    assert "inf" not in printed.out
    assert "no change" in printed.out


# unsteady runs and what intervals claim


def note_on(records: list[Record], word: str) -> str:
    (note,) = [note for note in phases.analyse(records).notes if word in note]
    return note


def test_phases_have_both_medians_of_an_unsteady_run() -> None:
    note = note_on([UNSTEADY, WARM], "no steady state")
    assert note.endswith("speech train on Laptop CPU, 4 cores (small): 51.0 then 39.0.")
    assert not any("no steady state" in note for note in phases.analyse([WARM]).notes)


@pytest.mark.parametrize(("launches", "claim"), [(1, "within this process"), (3, "over 3 launches")])
def test_phases_say_what_an_interval_holds_of(launches: int, claim: str) -> None:
    runs = [replace(WARM, id=str(number), step_s=(0.1 * NOISE[number:40]).tolist()) for number in range(launches)]
    (steps,) = [table for table in phases.analyse(runs).tables if table.title == "Step times"]
    cells: dict[str, Any] = dict(zip(steps.columns, steps.rows[0], strict=True))
    assert cells["interval"] == claim
    expected = median_interval([settled_steps(each) for each in runs])
    assert (cells["95 % from (ms)"], cells["95 % to (ms)"]) == pytest.approx((1e3 * expected.low, 1e3 * expected.high))
    note = note_on(runs, "within this process")
    assert "says nothing of the next" in note
    assert "bootstrap" not in note


def test_a_comparison_remarks_on_unsteady_runs() -> None:
    (one,) = compare([UNSTEADY], [UNSTEADY])
    assert "unsteady, so that all timed steps count: A (51 ms then 39 ms), B (51 ms then 39 ms)" in one.remark
    steady = replace(UNSTEADY, step_s=(0.05 * NOISE).tolist())
    (several,) = compare([steady, replace(UNSTEADY, id="other")], [steady, steady])
    assert "unsteady, so that all timed steps count: 1 of 2 launches in A" in several.remark
    (none,) = compare([steady], [steady])
    assert "unsteady" not in none.remark


def test_the_headline_of_several_launches_counts_the_unsteady_ones() -> None:
    steady = replace(UNSTEADY, id="steady", step_s=(0.05 * NOISE).tolist())
    table = headline([UNSTEADY, steady, replace(steady, id="third")])
    shown = dict(zip(table.columns, table.rows[0], strict=True))["95 % interval (ms)"]
    assert str(shown).endswith("over 3 launches; 1 of 3 unsteady")
