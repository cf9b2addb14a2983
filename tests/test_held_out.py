"""Validation selects the weights and the test split is evaluated once, after training; a kill changes nothing of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_runs import Killed, learning_of, numbers, trained

from fathom.core.errors import BadOption
from fathom.core.record import Learning, Point, Record
from fathom.core.spec import RunSpec
from fathom.data import mnist
from fathom.training import checkpoint
from fathom.training.checkpoint import FOLDER
from fathom.training.trainer import Trainer, WeightMean
from fathom.workloads.autoenc import Autoenc, AutoencRecipe
from fathom.workloads.base import State, workload_class

SPEC = RunSpec(workload="autoenc", preset="tiny", device="cpu", threads=1, kind="training", evaluations=4)
STEPS = 5  # of an interval: 150 items in batches of 32
PEAK = [1.0, 5.0, 3.0, 2.0]


def fingerprint(state: State) -> float:
    return float(sum(weight.double().abs().sum() for weight in state.model.parameters()))


class Scripted:
    """In place of evaluation: the validation qualities are given, and the test's is what the weights sum up to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, qualities: list[float] = PEAK) -> None:
        self.qualities = qualities
        self.looks: list[str] = []  # which split was evaluated, in order
        self.weights: dict[int, float] = {}  # of every evaluation, from 1 on
        monkeypatch.setattr(Autoenc, "synthetic", lambda self, seed: mnist.synthetic(seed, items=150))
        monkeypatch.setattr(AutoencRecipe, "synthetic_evaluation_data", lambda self, workload, seed: seed // 1_000_003)
        monkeypatch.setattr(AutoencRecipe, "evaluate", lambda _, workload, state, data: self.evaluate(state, data))
        monkeypatch.setattr(AutoencRecipe, "artifacts", lambda _, workload, state, data: self.shown(data))

    def evaluate(self, state: State, data: int) -> float:
        assert state.optimizer is not None
        number = int(next(iter(state.optimizer.state.values()))["step"]) // STEPS
        if data == 2:
            self.looks.append("test")
            return fingerprint(state)
        self.looks.append("validation")
        self.weights[number] = fingerprint(state)
        return self.qualities[number - 1]

    def shown(self, data: int) -> list[Any]:
        assert data == 2, "artifacts are of the test split"
        return []


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "checkpoints"))
    monkeypatch.setattr(checkpoint, "INTERVAL_S", 0.0)  # after every evaluation


def of_recipe(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    monkeypatch.setattr(Autoenc, "recipe", replace(Autoenc.recipe, **changes))


@pytest.mark.parametrize("averaging", [0.0, 0.9])
def test_the_test_split_is_evaluated_once_with_the_weights_that_were_best_in_validation(
    averaging: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Scripted(monkeypatch)
    found = learning_of(trained(replace(SPEC, options={"averaging": averaging})))
    assert script.looks == ["validation"] * 4 + ["test"]
    assert found.quality == script.weights[2]
    assert len(set(script.weights.values())) == 4, "the weights went on changing"
    assert (found.selected, found.split, found.curve_split) == (2, "test", "validation")
    assert [point.quality for point in found.curve] == PEAK


@pytest.mark.parametrize(
    ("better", "qualities", "selected"),
    [
        ("higher", [3.0, 3.0, 2.0, 3.0], 1),
        ("lower", [3.0, 2.0, 1.0, 4.0], 3),
        ("higher", [math.nan, 1.0, math.nan, 2.0], 4),
        ("lower", [math.nan, 1.0, math.nan, 2.0], 2),
        ("higher", [-math.inf, -5.0, -6.0, -7.0], 2),
    ],
)
def test_the_first_of_the_best_is_selected_and_nan_is_never_the_best(
    better: str, qualities: list[float], selected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Scripted(monkeypatch, qualities)
    of_recipe(monkeypatch, better=better)
    found = learning_of(trained(SPEC))
    assert (found.selected, found.quality) == (selected, script.weights[selected])


def test_a_quality_that_is_no_number_is_told_and_the_record_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted(monkeypatch, [1.0, math.nan, 2.0, 0.5])
    of_recipe(monkeypatch, better="higher")
    record = trained(SPEC)
    assert (record.outcome, record.reason) == ("failed", "the quality is nan in evaluation 2")
    again = Record.from_json(json.loads(json.dumps(record.to_json())))
    assert learning_of(again).quality == script.weights[3]


def test_where_nothing_is_held_out_the_last_weights_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted(monkeypatch)
    of_recipe(monkeypatch, validated_on="train")
    found = learning_of(trained(SPEC))
    assert script.looks == ["validation"] * 4 + ["test"]
    assert (found.quality, found.selected, found.curve_split) == (script.weights[4], None, "train")


def test_validation_ends_training_and_the_test_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is the test's, and no validation quality is held against it."""
    script = Scripted(monkeypatch)
    of_recipe(monkeypatch, stop_at=5.0, target=1e9)
    found = learning_of(trained(SPEC))
    assert script.looks == ["validation"] * 2 + ["test"]
    assert (found.reached, found.quality) == (False, script.weights[2])
    of_recipe(monkeypatch, stop_at=None, target=2.0)
    script.looks.clear()
    assert learning_of(trained(replace(SPEC, seed=1))).reached
    assert script.looks == ["validation"] * 4 + ["test"], "a target that validation reached ends nothing"


def test_a_run_that_diverges_is_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted(monkeypatch)
    monkeypatch.setattr(Trainer, "mean_loss", lambda self, losses: math.nan if self.steps_done > STEPS else 1.0)
    record = trained(SPEC)
    found = learning_of(record)
    assert (record.outcome, found.quality, found.reached) == ("failed", None, False)
    assert script.looks == ["validation"]


@pytest.mark.parametrize("averaging", [0.0, 0.9])
@pytest.mark.parametrize("die_at", [2, 3, 4])
def test_a_resumed_run_keeps_the_best_weights_and_has_the_same_result(
    die_at: int, averaging: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before, at and after the checkpoint of the best weights."""
    spec = replace(SPEC, options={"averaging": averaging})
    script = Scripted(monkeypatch)
    with pytest.raises(Killed):
        trained(spec, die_at=die_at)
    assert "test" not in script.looks
    resumed = learning_of(trained(spec))
    monkeypatch.delenv(FOLDER)
    whole = learning_of(trained(spec))
    assert (resumed.resumed, whole.resumed) == (1, 0)
    assert (resumed.quality, resumed.selected) == (whole.quality, whole.selected) == (script.weights[2], 2)
    assert script.looks.count("test") == 2, "once each"


def test_a_run_that_was_killed_in_its_test_trains_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Scripted(monkeypatch)
    test = Trainer.test

    def killed(self: Trainer) -> Any:
        monkeypatch.setattr(Trainer, "test", test)
        raise Killed

    monkeypatch.setattr(Trainer, "test", killed)
    with pytest.raises(Killed):
        trained(SPEC)
    resumed = trained(SPEC)
    assert script.looks == ["validation"] * 4 + ["test"]
    assert learning_of(resumed).quality == script.weights[2]
    assert len(numbers(resumed)) == 4


@pytest.mark.parametrize(
    ("validated_on", "opened"),
    [("validation", ["train_subset", "validation", "test"]), ("train", ["train", "train", "test"])],
)
def test_what_validation_takes_is_not_trained_on(
    validated_on: str, opened: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits: list[str] = []

    def real(self: Autoenc, folder: Path, split: str = "train") -> mnist.Digits:
        splits.append(split)
        return mnist.synthetic(len(splits), items=40)

    monkeypatch.setattr(Autoenc, "real", real)
    of_recipe(monkeypatch, validated_on=validated_on)
    monkeypatch.setattr("fathom.workloads.autoenc.INTERVAL", 40)
    trained(replace(SPEC, data=str(tmp_path), evaluations=1))
    assert splits == opened


# --- what a target took


def learnt(**changes: Any) -> Learning:
    qualities = enumerate((28.0, 30.0, 32.0, 31.0), 1)
    points = [Point(items=n, seconds=float(n), loss=1.0, quality=quality) for n, quality in qualities]
    told: dict[str, Any] = {"metric": "BLEU", "unit": "points", "target": 30.0, "better": "higher", "protocol": ""}
    told |= {"quality": 31.0, "reached": True, "seconds": 9.0, "items": 9, "energy_j": None, "metered": None}
    return Learning(**{**told, "curve": points, "curve_split": "validation", "selected": 3, **changes})


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({}, 2),
        ({"target": 33.0, "quality": 33.1}, 3),  # no validation came so far: the weights that were tested did
        ({"target": 33.0, "quality": 32.0, "reached": False}, None),
        ({"curve_split": "train", "selected": None}, 4),
        ({"curve_split": "train", "selected": None, "reached": False}, None),
        ({"curve_split": "test", "selected": None, "target": 33.0, "reached": False}, None),
        ({"target": 29.0, "better": "lower", "quality": 20.0}, 1),
        ({"curve": []}, None),
    ],
)
def test_what_a_target_took(changes: dict[str, Any], at: int | None) -> None:
    point = learnt(**changes).to_target
    assert (point and point.items) == at


# --- the mean of the weights


class Counted(nn.Module):
    """A weight that has two names, a kernel, a statistic, a counter and a mask."""

    statistic: torch.Tensor
    count: torch.Tensor
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.tied = self.weight
        self.kernel = nn.Parameter(torch.zeros(2, 3, 4, 4))
        self.register_buffer("statistic", torch.zeros(2))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]), persistent=False)

    def now(self, value: float) -> None:
        with torch.no_grad():
            self.weight.fill_(value)
            self.kernel.fill_(value)
            self.statistic.fill_(value)
            self.count += 1


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        (0.999, lambda w: (0.1 * w[0] + 0.9 * w[1]) * (2 / 11) + w[2] * (9 / 11)),  # 9 / (10 + steps) at first
        (0.05, lambda w: (0.05 * w[0] + 0.95 * w[1]) * 0.05 + w[2] * 0.95),
    ],
)
def test_the_mean_of_the_weights_after_two_steps(
    decay: float, expected: Callable[[list[float]], float], channels_last: bool
) -> None:
    """Whatever becomes of the network's memory format between: a trainer may change it for the GPU's tensor cores."""
    model = Counted()
    values = [4.0, 1.0, -2.0]
    model.now(values[0])
    mean = WeightMean(model, decay)
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for steps_done, value in enumerate(values[1:]):
        model.now(value)
        mean.add(steps_done)
    found = mean.model
    assert isinstance(found, Counted)
    for tensor in (found.weight, found.kernel, found.statistic):
        torch.testing.assert_close(tensor, torch.full(tensor.shape, expected(values)))
    assert found.tied is found.weight, "one weight, averaged once"
    assert found.count == 3, "as often as the network has counted"
    assert found.mask.tolist() == [0.0, -math.inf]
    assert model.weight.tolist() == [-2.0, -2.0]


@pytest.mark.parametrize("name", ["autoenc", "speech", "residual", "deepq", "seq2seq"])
def test_a_decay_that_is_no_share_is_refused(name: str) -> None:
    for wrong in (1.0, 1.5, -0.1):
        with pytest.raises(
            BadOption, match=f"option averaging of {name} must be at least 0 and less than 1, not {wrong}"
        ):
            workload_class(name).configured("tiny", averaging=wrong)


def test_the_mean_forgets_by_its_decay_in_the_long_run() -> None:
    model = Counted()
    mean = WeightMean(model, 0.9)
    model.now(1.0)
    mean.add(10_000)
    torch.testing.assert_close(mean.model.get_parameter("weight"), torch.full((2,), 0.1))
