"""Learning: a killed run goes on to the very same numbers, a target ends it, a divergence fails it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fathom import learn
from fathom.analyses import learning
from fathom.datasets import mnist
from fathom.errors import DataError
from fathom.learn import FOLDER, learned
from fathom.lesson import Quality
from fathom.record import Learning, Record
from fathom.spec import RunSpec
from fathom.workloads.autoenc import Autoenc

SPEC = RunSpec(workload="autoenc", preset="tiny", device="cpu", threads=1, learn=True, rounds=4)


class Killed(BaseException):
    """Ends a run where a signal might."""


def ran(spec: RunSpec = SPEC, die_in: int | None = None) -> Record:
    def hear(told: Mapping[str, Any]) -> None:
        if told["round"] == die_in:
            raise Killed

    return learned(spec, lambda done, total: None, hear)


def learnt(record: Record) -> Learning:
    assert record.learning is not None
    return record.learning


def numbers(record: Record) -> list[tuple[int, float, float]]:
    return [(point.items, point.loss, point.quality) for point in learnt(record).curve]


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
    lesson = Autoenc.lesson.__class__(**{**vars(Autoenc.lesson), "quality": easier})
    monkeypatch.setattr(Autoenc, "lesson", lesson)
    monkeypatch.delenv(FOLDER)
    found = learnt(ran())
    assert found.reached
    assert len(found.curve) == 2
    patient = lesson.__class__(**{**vars(lesson), "stops_at_target": False})
    monkeypatch.setattr(Autoenc, "lesson", patient)
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


def test_a_finding_shows_every_seed() -> None:
    other = RunSpec(**{**SPEC.to_json(), "seed": 1})
    finding = learning.analyse([ran(), ran(other)])
    assert [row[2] for row in finding.tables[0].rows] == [0, 1]
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
