"""Training: a killed run resumes to the very same numbers, a target ends it, a divergence fails it."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import torch
import training_runs
from training_runs import Killed, learning_of, numbers

from fathom.analysis.questions import learning
from fathom.core.errors import DataError
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.data import mnist
from fathom.engine.session import Session
from fathom.machine import host
from fathom.machine.meter import Counters
from fathom.measure import loop
from fathom.training import checkpoint, run
from fathom.training.checkpoint import FOLDER
from fathom.training.run import train
from fathom.training.trainer import HeldOut, Trainer, held_out_for, recipe_for, trainer_for
from fathom.workloads.autoenc import Autoenc
from fathom.workloads.base import State, Workload

SPEC = RunSpec(workload="autoenc", preset="tiny", device="cpu", threads=1, kind="training", evaluations=4)

ITEMS = 150  # of synthetic data: no multiple of the batch


def trained(spec: RunSpec = SPEC, die_at: int | None = None) -> Record:
    return training_runs.trained(spec, die_at)


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER, str(tmp_path / "checkpoints"))
    monkeypatch.setattr(checkpoint, "INTERVAL_S", 0.0)  # after every evaluation
    monkeypatch.setattr(Autoenc, "synthetic", lambda self, seed: mnist.synthetic(seed, items=ITEMS))
    return tmp_path / "checkpoints"


def test_a_killed_run_resumes_to_the_very_same_numbers(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        trained(die_at=3)  # the checkpoint is of evaluation 2
    resumed = trained()
    monkeypatch.delenv(FOLDER)
    whole = trained()
    assert numbers(resumed) == numbers(whole)
    assert len(numbers(whole)) == 4
    assert (learning_of(resumed).resumed, learning_of(whole).resumed) == (1, 0)


def test_a_run_that_is_resumed_on_another_machine_says_which_and_after_what(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[str | None] = []

    def trained_on(host_id: str, die_at: int | None = None) -> Record:
        def on_event(event: Mapping[str, Any]) -> None:
            left.extend([event["left"]] if "resumed" in event else [])
            if die_at is not None and event.get("evaluation") == die_at:
                raise Killed

        monkeypatch.setattr(host, "host_id", lambda: host_id)
        return train(SPEC, on_event=on_event)

    for host_id, die_at in (("a", 2), ("a", 3), ("b", 4)):
        with pytest.raises(Killed):
            trained_on(host_id, die_at)
    record = trained_on("a")
    found = learning_of(record)
    assert [(each.host_id, each.evaluations) for each in found.earlier] == [("a", 2), ("b", 3)]
    assert {each.name for each in found.earlier} == {record.machine_label}, "a name tells less than an id"
    assert left == [None, record.machine_label, record.machine_label]
    assert found.resumed == 3
    assert learning_of(Record.from_json(record.to_json(), "")).earlier == found.earlier


def test_a_checkpoint_that_does_not_say_where_it_was_made_is_resumed(checkpoints: Path) -> None:
    with pytest.raises(Killed):
        trained(die_at=3)
    (path,) = checkpoints.iterdir()
    kept = torch.load(path, weights_only=True)
    torch.save({key: value for key, value in kept.items() if key not in ("machine", "earlier")}, path)
    found = learning_of(trained())
    assert (found.resumed, found.earlier) == (1, [])


def test_time_and_energy_spent_before_a_kill_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second and 100 J for every look at the clock and the meter, as many in an interval of either process."""
    clock, joules = count(), count(step=100)
    monkeypatch.setattr(checkpoint, "TIME_SHARE", 1e9)
    for module in (run, checkpoint):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    monkeypatch.setattr(Counters, "joules", lambda self: float(next(joules)))
    with pytest.raises(Killed):
        trained(die_at=3)
    before = torch.load(next(Path(os.environ[FOLDER]).iterdir()), weights_only=True)
    clock, joules = count(1000), count(step=100)  # those of another process
    curve = learning_of(trained()).curve
    assert [point.seconds for point in curve] == sorted(point.seconds for point in curve)
    assert curve[1].seconds < before["seconds"] < curve[2].seconds < before["seconds"] + 100
    assert curve[2].energy_j is not None
    assert curve[2].energy_j > before["joules"] > 0


def test_energy_that_was_not_counted_before_a_kill_is_not_known_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counters, "joules", lambda self: None)
    with pytest.raises(Killed):
        trained(die_at=3)
    monkeypatch.setattr(Counters, "joules", lambda self: 100.0)
    found = learning_of(trained())
    assert [point.energy_j for point in found.curve] == [None] * 4
    assert found.energy_j is None


def test_a_run_whose_checkpoints_cannot_be_written_goes_on_and_says_so(checkpoints: Path) -> None:
    checkpoints.write_text("a file where a folder should be")
    events: list[Any] = []
    record = train(SPEC, on_event=events.append)
    assert (record.outcome, len(learning_of(record).curve)) == ("ok", 4)
    (note,) = record.notes
    assert note.startswith("no checkpoint could be written to ")
    assert {"no_checkpoint": note} in events


def test_a_full_disk_leaves_no_half_checkpoint(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    record = trained()
    assert record.notes[0].endswith(": No space left on device")
    assert list(checkpoints.iterdir()) == []


def test_a_disk_that_fills_up_while_torch_writes_leaves_no_half_checkpoint(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(document: object, file: BinaryIO) -> None:
        file.write(b"half")
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 1024 vs 918")  # as torch's zip writer does when it is closed

    monkeypatch.setattr(torch, "save", half)
    record = trained()
    assert (record.outcome, len(learning_of(record).curve)) == ("ok", 4)
    assert record.notes[0].endswith(": No space left on device")
    assert list(checkpoints.iterdir()) == []


def test_running_out_of_memory_is_no_fault_of_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        trained(die_at=3)

    def no_room(self: Any, kept: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "load_state_dict", no_room)
    record = trained()
    assert record.outcome == "failed"
    assert "CUDA out of memory" in str(record.reason)


@pytest.mark.parametrize("change", [{"target": -90.0}, {"options": {"adam": False}}, {"precision": "tf32"}])
def test_a_checkpoint_of_another_recipe_is_refused_in_one_line(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Killed):
        trained(die_at=3)
    monkeypatch.setattr(Autoenc, "recipe", replace(Autoenc.recipe, **change))
    with pytest.raises(DataError, match="remove it to start over: the recipe was another one then") as refused:
        trained()
    assert "\n" not in str(refused.value)


def test_a_protocol_in_other_words_is_the_same_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        trained(die_at=3)
    monkeypatch.setattr(Autoenc, "recipe", replace(Autoenc.recipe, protocol="the same in other words"))
    assert learning_of(trained()).resumed == 1


def test_the_first_evaluation_is_checkpointed_however_early_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "INTERVAL_S", 1e9)
    with pytest.raises(Killed):
        trained(die_at=2)
    assert learning_of(trained()).resumed == 1


def test_time_items_and_energy_to_the_target_are_those_of_the_first_point_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """autoenc goes on to the end of its recipe, whatever it has reached."""
    joules = iter(range(0, 1000, 100))
    monkeypatch.setattr(Counters, "joules", lambda self: float(next(joules)))
    second = learning_of(trained(replace(SPEC, evaluations=2))).curve[1]
    monkeypatch.delenv(FOLDER)
    monkeypatch.setattr(Autoenc, "recipe", replace(Autoenc.recipe, target=second.quality))
    joules = iter(range(0, 1000, 100))
    found = learning_of(trained())
    assert found.to_target == found.curve[1]
    assert [point.energy_j for point in found.curve] == [100, 200, 300, 400]
    assert found.energy_j == 400
    assert replace(found, target=None).to_target is None
    missed = replace(found, reached=False)
    assert replace(missed, target=1e9).to_target is None
    assert replace(missed, target=-1e9, better="lower").to_target is None


def test_a_record_says_when_its_run_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "moment", lambda: "before the first step")
    assert trained(replace(SPEC, evaluations=1)).started == "before the first step"


def test_a_record_names_the_settings_that_depart_from_the_recipe() -> None:
    found = learning_of(trained(replace(SPEC, options={**Autoenc.recipe.options, "latent": 3}, evaluations=1)))
    assert found.departures == ["synthetic data", "preset tiny", "evaluations 1", "latent 3"]
    assert (found.protocol, found.recipe) == (Autoenc.recipe.protocol, Autoenc.recipe.id)
    assert (found.data, found.split) == ("synthetic data", "test")
    assert "precision bf16" in departures(replace(SPEC, precision="bf16"))
    settings = ["preset tiny", "evaluations 4", "batch 500", "learning_rate 0.01", "warm_up None"]
    assert departures(replace(SPEC, options={"adam": True, "batch": 500})) == ["synthetic data", *settings]


def departures(spec: RunSpec) -> list[str]:
    with Session(spec).setup() as session:
        return run.departures(trainer_for(session, recipe_for(spec), HeldOut(None, None)))


def test_an_option_by_its_old_name_departs_by_its_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Autoenc, "renamed", {"code": "latent"})
    found = departures(replace(SPEC, options={"code": 3}))
    assert [said for said in found if said.startswith(("latent", "code"))] == ["latent 3"]


def test_a_checkpoint_of_another_version_is_told_in_one_line(checkpoints: Path) -> None:
    with pytest.raises(Killed):
        trained(die_at=2)
    (path,) = checkpoints.glob("*.pt")
    kept = torch.load(path, weights_only=True)
    del kept["gpu_shared"]
    torch.save(kept, path)
    with pytest.raises(DataError, match="remove it to start over"):
        trained()


def test_other_programs_on_the_gpu_are_recorded_even_if_they_left_before_a_kill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert trained(replace(SPEC, evaluations=1)).disturbance.gpu_shared is None, "there is no GPU to share"
    monkeypatch.setattr(run, "gpu_shared", lambda device: True)
    with pytest.raises(Killed):
        trained(die_at=3)
    monkeypatch.setattr(run, "gpu_shared", lambda device: False)
    assert trained().disturbance.gpu_shared


def test_the_curve_counts_items_and_falls(checkpoints: Path) -> None:
    record = trained()
    items = [point.items for point in learning_of(record).curve]
    per_evaluation = 32 * math.ceil(ITEMS / 32)
    assert items == [per_evaluation * number for number in (1, 2, 3, 4)]
    assert learning_of(record).curve[-1].loss < learning_of(record).curve[0].loss


def test_it_stops_at_the_validation_quality_that_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    reachable = learning_of(trained()).curve[1].quality
    easier = replace(Autoenc.recipe, target=-1e9, stop_at=reachable)
    monkeypatch.setattr(Autoenc, "recipe", easier)
    monkeypatch.delenv(FOLDER)
    found = learning_of(trained())
    assert found.reached
    assert len(found.curve) == 2
    monkeypatch.setattr(Autoenc, "recipe", replace(easier, stop_at=None))
    assert len(learning_of(trained()).curve) == 4


def test_lower_may_be_better() -> None:
    error = replace(Autoenc.recipe, target=5.0, better="lower")
    assert [error.reached(value) for value in (4.9, 5.0, 5.1)] == [True, True, False]
    assert replace(error, target=None).reached(0.0) is None


def test_a_divergence_fails_the_run_and_says_where() -> None:
    record = train(replace(SPEC, options={"learning_rate": 1e12}))
    assert record.outcome == "failed"
    assert record.reason is not None
    assert "the loss is" in record.reason


def test_a_damaged_checkpoint_is_told_in_one_line(checkpoints: Path) -> None:
    trained()
    (path,) = checkpoints.iterdir()
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match="not a checkpoint of this run; remove it"):
        trained()


def test_a_checkpoint_needs_no_code_to_be_read(checkpoints: Path) -> None:
    trained()
    (path,) = checkpoints.iterdir()
    kept = torch.load(path, weights_only=True)
    assert len(kept["curve"]) == 4
    assert not list(checkpoints.glob("*.part"))


def test_a_finding_names_what_was_learnt_from() -> None:
    one = trained()
    pong = replace(SPEC, workload="deepq", options={"game": "pong"})
    played = replace(one, learning=replace(learning_of(one), data="pong"), spec=pong)
    assert learning.analyse([played]).tables[0].rows[0][0] == "deepq on pong"
    assert learning.analyse([one]).tables[0].rows[0][0] == "autoenc on synthetic data"


@pytest.mark.parametrize("name", ["autoenc", "residual", "seq2seq", "speech"])
def test_artifacts_are_computed_as_the_quality_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the precision of the run, with the network that is evaluated, in evaluation mode."""
    spec = RunSpec(workload=name, preset="tiny", device="cpu", precision="bf16", kind="training")
    seen: list[tuple[bool, bool, int]] = []
    with Session(spec).setup() as session:
        recipe = recipe_for(spec)
        trainer = trainer_for(session, recipe, held_out_for(session, recipe))
        for method, result in (("evaluate", 0.0), ("artifacts", [])):

            def spied(self: object, workload: Workload, state: State, data: Any, result: Any = result) -> Any:
                seen.append((torch.is_autocast_enabled("cpu"), state.model.training, id(state.model)))
                return result  # nothing is computed, as bfloat16 takes minutes on many a CPU

            monkeypatch.setattr(type(recipe), method, spied)
        trainer.validate()
        trainer.test()
    assert seen[0] == seen[1] == seen[2], "validation, test, artifacts"
    assert seen[0][:2] == (True, False)
