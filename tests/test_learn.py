"""Learning: a killed run goes on to the very same numbers, a target ends it, a divergence fails it."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lessons
import pytest
import torch
from lessons import Killed, learnt, numbers

from fathom.analysis.questions import learning
from fathom.core.errors import DataError
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.data import mnist
from fathom.engine.session import Session
from fathom.machine.meter import Meter
from fathom.measure import loop
from fathom.training import run
from fathom.training.run import FOLDER, learned
from fathom.training.trainer import recipe_for, trainer_for
from fathom.workloads.autoenc import Autoenc
from fathom.workloads.base import State, Workload
from fathom.workloads.recipe import Quality

SPEC = RunSpec(workload="autoenc", preset="tiny", device="cpu", threads=1, kind="training", evaluations=4)


def ran(spec: RunSpec = SPEC, die_in: int | None = None) -> Record:
    return lessons.ran(spec, die_in)


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(FOLDER, str(tmp_path / "checkpoints"))
    monkeypatch.setattr(run, "INTERVAL_S", 0.0)  # after every round
    monkeypatch.setattr(mnist, "synthetic", partial(mnist.synthetic, items=512))  # 16 steps a round, not 128
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


def test_time_and_energy_spent_before_a_kill_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second and 100 J for every look at the clock and the meter, which are as many in a round of either process."""
    clock, joules = count(), count(step=100)
    monkeypatch.setattr(run, "KEEPING_SHARE", 1e9)
    monkeypatch.setattr(run, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    monkeypatch.setattr(Meter, "joules", lambda self: float(next(joules)))
    with pytest.raises(Killed):
        ran(die_in=3)
    before = torch.load(next(Path(os.environ[FOLDER]).iterdir()), weights_only=True)
    clock, joules = count(1000), count(step=100)  # those of another process
    curve = learnt(ran()).curve
    assert [point.seconds for point in curve] == sorted(point.seconds for point in curve)
    assert curve[1].seconds < before["seconds"] < curve[2].seconds < before["seconds"] + 100
    assert curve[2].energy_j is not None
    assert curve[2].energy_j > before["joules"] > 0


def test_energy_that_was_not_counted_before_a_kill_is_not_known_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Meter, "joules", lambda self: None)
    with pytest.raises(Killed):
        ran(die_in=3)
    monkeypatch.setattr(Meter, "joules", lambda self: 100.0)
    found = learnt(ran())
    assert [point.energy_j for point in found.curve] == [None] * 4
    assert found.energy_j is None


def test_a_run_whose_checkpoints_cannot_be_kept_goes_on_and_says_so(checkpoints: Path) -> None:
    checkpoints.write_text("a file where a folder should be")
    heard: list[Any] = []
    record = learned(SPEC, hear=heard.append)
    assert (record.outcome, len(learnt(record).curve)) == ("ok", 4)
    (note,) = record.notes
    assert note.startswith("a checkpoint could not be kept at ")
    assert {"unkept": note} in heard


def test_a_full_disk_leaves_no_half_checkpoint(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    record = ran()
    assert record.notes[0].endswith(": No space left on device")
    assert list(checkpoints.iterdir()) == []


def test_want_of_memory_is_no_fault_of_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        ran(die_in=3)

    def no_room(self: Any, kept: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer_class("autoenc"), "load_state_dict", no_room)
    record = ran()
    assert record.outcome == "failed"
    assert "CUDA out of memory" in str(record.reason)


def test_a_checkpoint_of_another_lesson_is_not_gone_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        ran(die_in=3)
    other = replace(Autoenc.lesson.quality, protocol="judged otherwise")
    monkeypatch.setattr(Autoenc, "lesson", replace(Autoenc.lesson, quality=other))
    with pytest.raises(DataError, match="remove it to begin anew: the lesson was another one then"):
        ran()


def test_the_first_round_is_kept_however_short_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "INTERVAL_S", 1e9)
    with pytest.raises(Killed):
        ran(die_in=2)
    assert learnt(ran()).resumed == 1


def test_time_items_and_energy_to_the_target_are_those_of_the_first_point_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """autoenc goes on to the end of its lesson, whatever it has reached."""
    joules = iter(range(0, 1000, 100))
    monkeypatch.setattr(Meter, "joules", lambda self: float(next(joules)))
    second = learnt(ran(replace(SPEC, evaluations=2))).curve[1]
    monkeypatch.delenv(FOLDER)
    quality = replace(Autoenc.lesson.quality, target=second.quality)
    monkeypatch.setattr(Autoenc, "lesson", replace(Autoenc.lesson, quality=quality))
    joules = iter(range(0, 1000, 100))
    found = learnt(ran())
    assert found.to_target == found.curve[1]
    assert [point.energy_j for point in found.curve] == [100, 200, 300, 400]
    assert found.energy_j == 400
    assert replace(found, target=None).to_target is None
    assert replace(found, target=1e9).to_target is None
    assert replace(found, target=-1e9, better="lower").to_target is None


def test_a_record_says_when_its_run_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "moment", lambda: "before the first step")
    assert ran(replace(SPEC, evaluations=1)).started == "before the first step"


def test_a_protocol_that_was_not_kept_says_so() -> None:
    said = learnt(ran(replace(SPEC, options={**Autoenc.lesson.options, "latent": 3}))).protocol
    assert said.endswith("; not as in the lesson: synthetic data, preset tiny, rounds 4, latent 3")
    other = learnt(ran(replace(SPEC, precision="bf16", evaluations=1))).protocol
    assert "precision bf16" in other
    left_out = learnt(ran(replace(SPEC, options={"adam": True, "batch": 500, "graphs": True}))).protocol
    assert left_out.endswith(
        "; not as in the lesson: synthetic data, preset tiny, rounds 4, batch 500, learning_rate 0.01, warm_up None"
    )


def test_a_checkpoint_of_another_version_is_told_in_one_line(checkpoints: Path) -> None:
    with pytest.raises(Killed):
        ran(die_in=2)
    (path,) = checkpoints.glob("*.pt")
    kept = torch.load(path, weights_only=True)
    del kept["shared"]
    torch.save(kept, path)
    with pytest.raises(DataError, match="remove it to begin anew"):
        ran()


def test_company_on_the_gpu_is_noted_even_if_it_left_before_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(replace(SPEC, evaluations=1)).notes == []
    monkeypatch.setattr(Meter, "shared", True)
    with pytest.raises(Killed):
        ran(die_in=3)
    monkeypatch.setattr(Meter, "shared", False)
    assert ran().disturbance.gpu_shared


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


def test_who_plays_is_named_by_the_game() -> None:
    one = ran()
    played = replace(one, spec=replace(SPEC, workload="deepq", options={"game": "pong"}))
    assert learning.analyse([played]).tables[0].rows[0][0] == "deepq on pong"
    assert learning.analyse([one]).tables[0].rows[0][0] == "autoenc on synthetic data"


@pytest.mark.parametrize("name", ["autoenc", "residual", "seq2seq", "speech"])
def test_what_is_shown_is_computed_as_what_is_judged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the precision of the run, with the network that is judged, in evaluation mode."""
    spec = RunSpec(workload=name, preset="tiny", device="cpu", precision="bf16", kind="training")
    seen: list[tuple[bool, bool, int]] = []
    with Session(spec).setup() as session:
        trainer = trainer_for(session, recipe_for(session.spec), session.workload.unseen(1))
        kind = type(session.workload)
        for method, result in (("evaluate", 0.0), ("artifacts", [])):

            def spied(self: Workload, state: State, held_out: Any, result: Any = result) -> Any:
                seen.append((torch.is_autocast_enabled("cpu"), state.model.training, id(state.model)))
                return result  # nothing is computed, as bfloat16 takes minutes on many a CPU

            monkeypatch.setattr(kind, method, spied)
        trainer.evaluate()
        trainer.artifacts()
    assert seen[0] == seen[1]
    assert seen[0][:2] == (True, False)
