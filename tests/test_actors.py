"""Parallel actors: which runs are planned, and frames per second, speed-ups and laws from records made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom as run_fathom
from sample_records import failed_record, record_of

from fathom.analysis.finding import Finding, analyse
from fathom.analysis.questions.actors import curves_of
from fathom.core.errors import BadOption
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.experiments.actors import plan

BASE = RunSpec(workload="", preset="tiny")


def counts(specs: list[RunSpec]) -> list[tuple[int, int]]:
    assert {spec.options["frame_skip"] for spec in specs} == {4}
    return [(spec.options["emulator_threads"], spec.options["envs"]) for spec in specs]


def run(actors: int, games: int, step_s: float, **changes: Any) -> Record:
    options = {"emulator_threads": actors, "envs": games, "frame_skip": 4}
    spec = RunSpec(workload="deepq", device="cpu", options=options, **changes)
    return replace(record_of("deepq"), spec=spec, step_s=[step_s] * 20, warmup_s=[], items_per_step=games, profile=None)


def rows(finding: Finding) -> list[dict[str, Any]]:
    (table,) = finding.tables
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_weak_scaling_gives_every_actor_the_games_of_the_preset() -> None:
    assert counts(plan(BASE, ["deepq"], [1, 2, 4], "weak")) == [(1, 4), (2, 8), (4, 16)]
    assert counts(plan(replace(BASE, preset="paper"), ["deepq"], [1, 3], "weak")) == [(1, 32), (3, 96)]


def test_strong_scaling_divides_the_same_games_at_least_one_for_each_actor() -> None:
    assert counts(plan(BASE, ["deepq"], [1, 2, 4], "strong")) == [(1, 4), (2, 4), (4, 4)]
    assert counts(plan(BASE, ["deepq"], [1, 5], "strong")) == [(1, 8), (5, 8)]


@pytest.mark.parametrize("scaling", ["weak", "strong"])
@pytest.mark.parametrize("preset", ["tiny", "small", "paper"])
def test_deepq_takes_what_is_planned(preset: str, scaling: str) -> None:
    from fathom.workloads.deepq import Deepq

    for spec in plan(replace(BASE, preset=preset), ["deepq"], [1, 2, 3, 16], scaling):
        workload = Deepq(**{**Deepq.presets[preset], **spec.options})
        assert workload.envs >= workload.emulator_threads
        assert workload.updates_per_step >= 1


def test_others_have_no_actors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadOption, match="vgg has no actors"):
        plan(BASE, ["vgg"], [1], "weak")
    with pytest.raises(BadOption, match="from 1 to 1024, not 0,2"):
        plan(BASE, ["deepq"], [0, 2], "weak")
    for options, why in {
        ("vgg", "--actors", "1,2"): "vgg has no actors",
        ("deepq", "--actors", "x"): "--actors takes numbers such as 1,2,4",
        ("--actors", "1", "--ranks", "2"): "three kinds of scaling",
        ("--actors", "1", "--cores", "2"): "three kinds of scaling",
        ("--actors", "1", "--scaling", "week"): "did you mean weak?",
        ("--actors", "1", "--strategy", "ddp"): "--strategy needs --ranks",
        ("--actors", "1", "--device", "cudda"): "cudda",
    }.items():
        assert run_fathom(monkeypatch, "scale", *options, "--out", tmp_path / "records") == 2
        assert why in capsys.readouterr().err
    assert not (tmp_path / "records").exists()


def test_frames_per_second_and_the_laws() -> None:
    """Weak: twice the games in 1.25 times the time. Strong: the same games in 0.75 of it."""
    found = rows(analyse("actors", [run(1, 8, 0.04), run(2, 16, 0.05), run(2, 8, 0.03)]))
    weak, strong = ([row for row in found if row["scaling"] == name] for name in ("weak", "strong"))
    assert [row["frames/s"] for row in weak] == pytest.approx([800, 1280])
    assert [row["speed-up"] for row in weak] == pytest.approx([1, 1.6])
    assert [row["efficiency (%)"] for row in weak] == pytest.approx([100, 80])
    assert weak[1]["serial fraction (%)"] == pytest.approx(40)  # Gustafson: 2 - s = 1.6
    assert [row["frames/s"] for row in strong] == pytest.approx([800, 1066.667])
    assert strong[1]["speed-up"] == pytest.approx(4 / 3)
    assert strong[1]["serial fraction (%)"] == pytest.approx(50)  # Amdahl: 1 / (s + (1 - s) / 2) = 4/3
    assert strong[1]["speed-up by it"] == pytest.approx(4 / 3)


def test_one_actor_alone_and_none_of_one() -> None:
    alone = analyse("actors", [run(1, 4, 0.02)])
    assert alone.summary == "deepq train: 800 frames/s with 1 actor."
    (curve,) = curves_of([run(2, 8, 0.02), run(4, 16, 0.04)])
    assert curve.speedup(curve.points[1]) is None
    summary = analyse("actors", [run(2, 8, 0.02), run(4, 16, 0.08)]).summary
    assert summary == "deepq train, weak: 1,600 frames/s with 2 actors, 800 with 4; most with 2: 1,600."


def test_phases_and_settings_are_not_mixed() -> None:
    records = [run(1, 4, 0.02), run(2, 8, 0.02, phase="infer"), run(2, 8, 0.02, precision="bf16")]
    assert [len(curve.points) for curve in curves_of(records)] == [1, 1, 1]


def test_other_runs_are_no_actors_and_failures_are_named() -> None:
    assert not analyse("actors", [record_of("deepq"), record_of("vgg")]).answered
    failed = replace(failed_record("deepq"), spec=run(2, 8, 1.0).spec)
    finding = analyse("actors", [failed])
    assert not finding.answered
    finding = analyse("actors", [run(1, 4, 0.02), failed])
    assert "Not shown: failed runs: 2 actors: out of memory" in finding.notes[-1]
