"""Learning: a killed run goes on to the very same numbers, a target ends it, a divergence fails it."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lessons
import pytest
import torch
from lessons import Killed, learnt, numbers
from rich.console import Console
from rich.progress import Progress

from fathom import learn, registry
from fathom.analyses import learning
from fathom.commands import learn as command
from fathom.commands.learn import View
from fathom.datasets import mnist
from fathom.devices import resolve
from fathom.errors import DataError
from fathom.learn import FOLDER, learned
from fathom.lesson import Quality
from fathom.meter import Meter
from fathom.record import Record
from fathom.session import Session
from fathom.spec import RunSpec
from fathom.store import Store
from fathom.workload import State, Workload
from fathom.workloads.autoenc import Autoenc

SPEC = RunSpec(workload="autoenc", preset="tiny", device="cpu", threads=1, learn=True, rounds=4)


def ran(spec: RunSpec = SPEC, die_in: int | None = None) -> Record:
    return lessons.ran(spec, die_in)


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(FOLDER, str(tmp_path / "checkpoints"))
    monkeypatch.setattr(learn, "KEEP_EVERY_S", 0.0)  # after every round
    threads = torch.get_num_threads()
    yield tmp_path / "checkpoints"
    torch.set_num_threads(threads)


def test_a_killed_run_goes_on_to_the_very_same_numbers(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        ran(die_in=3)  # the checkpoint is of round 2
    resumed = ran()
    monkeypatch.delenv(FOLDER)
    whole = ran()
    assert numbers(resumed) == numbers(whole)
    assert len(numbers(whole)) == 4
    assert (learnt(resumed).resumed, learnt(whole).resumed) == (1, 0)
    assert learnt(resumed).seconds > learnt(resumed).curve[1].seconds, "time spent before the kill counts"


def test_the_first_round_is_kept_however_short_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "KEEP_EVERY_S", 1e9)
    with pytest.raises(Killed):
        ran(die_in=2)
    assert learnt(ran()).resumed == 1


def test_company_on_the_gpu_is_noted_even_if_it_left_before_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(replace(SPEC, rounds=1)).notes == []
    monkeypatch.setattr(Meter, "shared", True)
    with pytest.raises(Killed):
        ran(die_in=3)
    monkeypatch.setattr(Meter, "shared", False)
    assert ran().notes == [learn.SHARED]


def test_the_curve_counts_items_and_falls(checkpoints: Path) -> None:
    record = ran()
    items = [point.items for point in learnt(record).curve]
    per_round = 32 * math.ceil(len(mnist.synthetic(0)) / 32)
    assert items == [per_round * number for number in (1, 2, 3, 4)]
    assert learnt(record).curve[-1].loss < learnt(record).curve[0].loss
    assert learnt(record).quality == learnt(record).curve[-1].quality


def test_it_stops_at_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    reachable = learnt(ran()).curve[1].quality
    easier = Quality(metric="bound", unit="nats", target=reachable, better="higher", protocol="")
    lesson = replace(Autoenc.lesson, quality=easier, stops_at_target=True)
    monkeypatch.setattr(Autoenc, "lesson", lesson)
    monkeypatch.delenv(FOLDER)
    found = learnt(ran())
    assert found.reached
    assert len(found.curve) == 2
    monkeypatch.setattr(Autoenc, "lesson", replace(lesson, stops_at_target=False))
    assert len(learnt(ran()).curve) == 4


def test_lower_may_be_better() -> None:
    error = Quality(metric="error", unit="%", target=5.0, better="lower", protocol="")
    assert [error.reached(value) for value in (4.9, 5.0, 5.1)] == [True, True, False]


def test_a_divergence_fails_the_run_and_says_where() -> None:
    record = learned(RunSpec(**{**SPEC.to_json(), "options": {"learning_rate": 1e12}}))
    assert record.outcome == "failed"
    assert record.reason is not None
    assert "the loss is" in record.reason


def test_a_damaged_checkpoint_is_told_in_one_line(checkpoints: Path) -> None:
    ran()
    (path,) = checkpoints.iterdir()
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match="not a checkpoint of this run; remove it"):
        ran()


def test_a_checkpoint_needs_no_code_to_be_read(checkpoints: Path) -> None:
    ran()
    (path,) = checkpoints.iterdir()
    kept = torch.load(path, weights_only=True)
    assert len(kept["curve"]) == 4
    assert not list(checkpoints.glob("*.part"))


def test_the_command_tells_what_it_took_and_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fathom", "learn", "autoenc", "--preset", "tiny", "--rounds", "2", "--runs", "2"]
    command += ["--device", "cpu", "--out", str(tmp_path / "records"), "--json"]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    document = json.loads(first.stdout)["runs"]
    assert [run["seed"] for run in document] == [0, 1]
    wanted = {"metric", "quality", "target", "reached", "seconds", "items", "energy_j"}
    assert wanted <= document[0].keys()
    assert "2 runs, seeds 0, 1; the target is a variational bound of -100 nats or higher" in " ".join(
        first.stderr.split()
    )
    again = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["runs"]
    assert again == document, "what has been learnt is not learnt again"


def test_the_command_says_that_it_waits_for_a_turn(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fathom", "learn", "autoenc", "--preset", "tiny", "--rounds", "1"]
    command += ["--device", "cpu", "--out", str(tmp_path)]
    with Store(tmp_path).turn(lambda: None):
        waiting = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        lines = iter(waiting.stderr)
        assert "waiting: another run holds" in next(line for line in lines if "target" not in line)
    assert "round 1 of at most 1: loss" in waiting.communicate()[1]
    assert waiting.returncode == 0


class Clock:
    """A time that passes when it is told to."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


def view_of(monkeypatch: pytest.MonkeyPatch, shown: bool) -> tuple[View, Progress, io.StringIO, Clock]:
    clock, out = Clock(), io.StringIO()
    monkeypatch.setattr(command, "time", clock)
    bar = Progress(console=Console(file=out, width=40), disable=not shown)
    return View(SPEC, bar), bar, out, clock


NEWS = {"round": 1, "rounds": 4, "loss": 0.5, "quality": 12.0, "items_per_s": 2000.0}


def test_a_log_says_how_long_it_may_still_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that was resumed at step 101: what was done before says nothing of the speed."""
    view, _, out, clock = view_of(monkeypatch, shown=False)
    told = view.watch(0, SPEC)
    clock.now = 110
    told(101, 200)
    clock.now = 130  # 20 steps in as many seconds
    told(121, 200)
    view.hear(NEWS)
    assert out.getvalue().splitlines() == [
        "step 121 of at most 200, 30 s, at most 79 s left",
        "round 1 of at most 4: loss 0.5, quality 12, 2,000 images/s, 30 s, at most 79 s left",
    ]


def test_the_bar_shows_the_last_loss_and_quality(monkeypatch: pytest.MonkeyPatch) -> None:
    view, bar, _, _ = view_of(monkeypatch, shown=True)
    assert bar.tasks[0].description == "autoenc, seed 0"
    view.hear(NEWS)
    assert bar.tasks[0].description == "autoenc, seed 0: loss 0.5, quality 12"


@pytest.mark.parametrize(("count", "expected"), [(0, "cpu"), (2, "cuda:0")])
def test_auto_is_the_first_accelerator_by_its_full_name(
    count: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run on "auto" is the same run on "cuda": it has the same id, and goes on where it was."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
    assert str(resolve("auto")) == expected
    if count:
        assert resolve("auto") == resolve("cuda") == resolve("cuda:0")


def test_who_plays_is_named_by_the_game() -> None:
    one = ran()
    played = replace(one, spec=replace(SPEC, workload="deepq", options={"game": "pong"}))
    assert learning.analyse([played]).tables[0].rows[0][0] == "deepq on pong"
    assert learning.analyse([one]).tables[0].rows[0][0] == "autoenc on synthetic data"


@pytest.mark.parametrize("name", ["autoenc", "residual", "seq2seq", "speech"])
def test_what_is_shown_is_computed_as_what_is_judged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the precision of the run, with the network that is judged, in evaluation mode."""
    spec = RunSpec(workload=name, preset="tiny", device="cpu", precision="bf16", learn=True)
    seen: list[tuple[bool, bool, int]] = []
    with Session(spec).setup() as session:
        learner = registry.learner(name)(session, session.workload.unseen(1))
        kind = type(session.workload)
        for method, result in (("evaluate", 0.0), ("exhibits", [])):

            def spied(self: Workload, state: State, held_out: Any, result: Any = result) -> Any:
                seen.append((torch.is_autocast_enabled("cpu"), state.model.training, id(state.model)))
                return result  # nothing is computed, as bfloat16 takes minutes on many a CPU

            monkeypatch.setattr(kind, method, spied)
        learner.evaluate()
        learner.exhibits()
    assert seen[0] == seen[1]
    assert seen[0][:2] == (True, False)


def test_a_finding_shows_every_seed() -> None:
    other = RunSpec(**{**SPEC.to_json(), "seed": 1})
    finding = learning.analyse([ran(), ran(other)])
    assert [row[2] for row in finding.tables[0].rows] == [0, 1]
    assert {row[0] for row in finding.tables[0].rows} == {"autoenc on synthetic data"}, "both learnt in the same way"
    assert finding.tables[1].title == "Over the seeds"
    (chart,) = finding.charts
    assert [series.name.split(",")[0] for series in chart.series] == ["seed 0", "seed 1", "target"]
    assert len(finding.pictures) == 4
    assert learning.analyse([]).summary.startswith("Nothing to answer from")


def test_runs_of_other_options_are_other_things_and_not_other_seeds() -> None:
    one = ran()
    two = replace(one, spec=replace(SPEC, seed=1, options={**SPEC.options, "learning_rate": 0.5}))
    finding = learning.analyse([one, two])
    names = [row[0] for row in finding.tables[0].rows]
    assert names[0] != names[1]
    assert "learning_rate 0.5" in str(names[1])
    assert "Over the seeds" not in [table.title for table in finding.tables]
    assert len(finding.charts) == 2


def test_a_lesson_that_failed_is_told() -> None:
    broken = replace(ran(), outcome="failed", reason="the loss is nan in round 1", learning=None)
    finding = learning.analyse([broken])
    assert finding.tables[0].rows[0][6] == "failed: the loss is nan in round 1"
    assert finding.summary.startswith("No run of learning came as far")
