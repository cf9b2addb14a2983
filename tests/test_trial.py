"""Trials: ratios, what starting costs and when it is regained, and agreement with eager, on made-up numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from sample_records import engine_run, trial_of, trial_record
from torch import Tensor

import fathom as suite
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.trial import FACTOR, FIRST_STEPS, FLOORS, Trial
from fathom.engine.engines.channels_last import ChannelsLast
from fathom.engine.session import Session
from fathom.experiments.engines import best
from fathom.measure import trial as measuring

# times


def test_ratios_are_of_the_same_turn() -> None:
    trial = trial_of(
        eager=engine_run(1, turn_step_s=[0.2, 0.6, 0.4]), engine=engine_run(1, turn_step_s=[0.1, 0.2, 0.4])
    )
    assert trial.speedups == pytest.approx([2, 3, 1])
    assert trial.speedup == pytest.approx(2)
    assert trial.update_speedups == []


def test_updates_alone_have_a_ratio_of_their_own() -> None:
    eager, engine = engine_run(1, turn_update_s=[0.9, 0.8]), engine_run(1, turn_update_s=[0.3, 0.2])
    assert trial_of(eager=eager, engine=engine).update_speedups == pytest.approx([3, 4])


def test_preparation_is_what_first_steps_take_beyond_later_ones() -> None:
    assert engine_run(0.1, start_s=30.0).preparation_s == pytest.approx(30 - 0.1 * FIRST_STEPS)
    assert engine_run(0.1, start_s=0.1).preparation_s == 0  # no less than nothing


@pytest.mark.parametrize(
    ("eager", "engine", "steps"),
    [
        ({"step_s": 0.2}, {"step_s": 0.1, "start_s": 0.1 * FIRST_STEPS + 30}, 300),
        ({"step_s": 0.2, "start_s": 0.2 * FIRST_STEPS + 5}, {"step_s": 0.1, "start_s": 0.1 * FIRST_STEPS + 30}, 250),
        ({"step_s": 0.2, "start_s": 0.2 * FIRST_STEPS + 50}, {"step_s": 0.1}, 0),
        ({"step_s": 0.1}, {"step_s": 0.1, "start_s": 30}, None),
        ({"step_s": 0.1}, {"step_s": 0.2}, None),
    ],
)
def test_when_starting_is_regained(eager: dict[str, Any], engine: dict[str, Any], steps: float | None) -> None:
    found = trial_of(eager=engine_run(**eager), engine=engine_run(**engine)).pays_back_after
    assert found == (None if steps is None else pytest.approx(steps))


def test_energy_and_busy_time_are_of_a_step() -> None:
    run = engine_run(0.1, energy_j=60.0, busy_s=0.09)
    assert [run.step_j, run.busy] == pytest.approx([2, 0.9])
    assert engine_run(0.1, energy_j=60.0, metered_steps=20).step_j == pytest.approx(3)
    assert (engine_run(0.1).step_j, engine_run(0.1).busy) == (None, None)


# agreement


def trained(engine: list[float], rounded: list[list[float]], eager: tuple[float, ...] = (2.0, 1.0, 0.5)) -> Trial:
    return Trial(eager=engine_run(1, eager), engine=engine_run(1, engine), rounded_losses=rounded)


SAME = [2.0, 1.0, 0.5]


def test_a_step_at_which_rounded_runs_meet_by_chance_does_not_make_an_engine_wrong() -> None:
    """Losses of residual over steps, relative to eager's, as they were measured with compile on two cores."""
    engine = [0.0, 3e-05, 0.001888, 0.0017, 0.0004, 0.003151]
    rounded = [
        [0.0, 2.5e-05, 0.000277, 0.003516, 0.000782, 0.006149],
        [0.0, 8.1e-05, 0.00054, 0.000924, 0.0067, 0.0009],
    ]
    eager = [1.0] * len(engine)

    def trial(found: list[float]) -> Trial:
        return Trial(
            eager=engine_run(0.2, eager),
            engine=engine_run(0.1, [1 + each for each in found]),
            rounded_losses=[[1 + each for each in changes] for changes in rounded],
        )

    assert trial(engine).disagreement("fp32") is None
    wrong = trial([0.0, 0.01, *engine[2:]]).disagreement("fp32")  # the second step is no place for such a difference
    assert wrong == "the loss of step 1 differs by 0.01, 0.0016 is allowed"
    later = trial([*engine[:-1], 0.03]).disagreement("fp32")
    assert later == "the loss of step 5 differs by 0.03, 0.02 is allowed"


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ([0.0, 2e-5, 0.0004, 0.02, 0.01], None),
        ([0.0, 2e-5, 0.0004, 0.03, 0.01], "the loss of step 3 differs by 0.03, 0.028 is allowed"),
        ([0.0, 0.01, 0.0004, 0.02, 0.01], "the loss of step 1 differs by 0.01, 0.0009 is allowed"),
    ],
)
def test_once_rounding_has_carried_runs_far_apart_it_may_at_any_step(engine: list[float], told: str | None) -> None:
    """Differences of residual's losses with one thread instead of two, shortened."""
    changes = [0.0, 5e-5, 0.0003, 0.0058, 0.0093]
    eager = [1.0] * len(changes)
    found = Trial(
        eager=engine_run(0.2, eager),
        engine=engine_run(0.1, [1 + each for each in engine]),
        rounded_losses=[[1 + each for each in changes], eager],
    )
    assert found.disagreement("fp32") == told


@pytest.mark.parametrize(
    ("engine", "rounded", "told"),
    [
        (SAME, [SAME], None),
        ([2.0, 1.0001, 0.5], [SAME], None),  # relative to the largest loss so far, which is 2
        ([2.01, 1.0, 0.5], [SAME], "the loss of step 0 differs by 0.005, 0.0001 is allowed"),
        ([2.0, 1.0, 0.51], [SAME], "the loss of step 2 differs by 0.005, 0.0001 is allowed"),
        # as far off as other rounding carries eager, and a bit more
        ([2.0, 1.0, 0.51], [SAME, [2.0, 1.0, 0.496]], None),
        ([2.0, 1.0, 0.51], [SAME, [2.0, 1.0, 0.497]], "the loss of step 2 differs by 0.005, 0.0045 is allowed"),
        ([2.0, 1.0, 0.51], [[2.0, 1.01, 0.5]], None),  # what has once been carried off stays so
        ([2.01, 1.0, 0.5], [[2.0, 1.0, 0.6]], "the loss of step 0 differs by 0.005, 0.0001 is allowed"),
        ([2.0, math.nan, 0.5], [SAME], "the loss of step 1 differs by nan, 0.0001 is allowed"),
        ([2.0, math.inf, 0.5], [SAME], "the loss of step 1 differs by inf, 0.0001 is allowed"),
        ([2.0, 1.0, 0.51], [[2.0, 1.0, math.nan]], "the loss of step 2 differs by 0.005, 0.0001 is allowed"),
    ],
)
def test_losses_agree_as_far_as_rounding_goes(
    engine: list[float], rounded: list[list[float]], told: str | None
) -> None:
    assert FACTOR == 3
    assert trained(engine, rounded).disagreement("fp32") == told


def test_a_lower_precision_allows_more() -> None:
    off = trained([2.01, 1.0, 0.5], [SAME])
    assert [off.disagreement(precision) is None for precision in ("fp32", "tf32", "bf16")] == [False, False, True]
    assert off.difference() == pytest.approx(0.005)


def test_a_loss_that_comes_to_zero_is_compared_with_what_it_was() -> None:
    assert trained([2.0, 1.0, 1e-6], [SAME], (2.0, 1.0, 0.0)).disagreement("fp32") is None
    nothing = trained([0.0, 1e-5, 1e-3], [[0.0, 0.0, 0.0]], (0.0, 0.0, 0.0))
    assert nothing.disagreement("fp32") == "the loss of step 2 differs by 0.001, 0.0001 is allowed"
    assert trained([1e30], [], (5e-324,)).difference() == 1e30  # relative to that it would be no number


@pytest.mark.parametrize(
    ("difference", "rounded", "told"),
    [
        (FLOORS["fp32"], 0.0, None),
        (0.01, 0.004, None),
        (0.01, 0.003, "the outputs differ by 0.01, 0.009 is allowed"),
        (math.nan, 0.1, "the outputs differ by nan, 0.3 is allowed"),
    ],
)
def test_outputs_agree_as_far_as_rounding_goes(difference: float, rounded: float, told: str | None) -> None:
    trial = trial_of(phase="infer", output_difference=difference, rounded_output_difference=rounded)
    assert trial.disagreement("fp32") == told


def test_outputs_that_cannot_be_compared_disagree() -> None:
    trial = trial_of(phase="infer", output_difference=None, mismatch="the output a has shape [2], not [3]")
    assert trial.disagreement("bf16") == "the output a has shape [2], not [3]"
    assert trial.difference() is None


def test_the_best_is_the_fastest_that_agrees_and_is_faster() -> None:
    wrong = trial_record(engine="wrong", trial=trained([3.0, 1.0, 0.5], [SAME]))
    slow = trial_record(engine="slow", trial=trial_of(0.1, 0.2))
    good, better = trial_record(engine="good"), trial_record(engine="better", trial=trial_of(0.2, 0.05))
    failed = trial_record(engine="failed", trial=trial_of(1.0, 0.01), outcome="failed", reason="x")
    assert best([wrong, slow, good, better, failed]) is better
    assert best([wrong, slow, failed]) is None
    assert best([]) is None


# outputs of two engines


def test_what_makes_outputs_incomparable_is_told() -> None:
    logits, labels = torch.tensor([[1.0, -math.inf]]), torch.tensor([1])
    expected = {"logits": logits, "labels": labels}
    mismatch = measuring._mismatch
    assert mismatch({"logits": logits + 1, "labels": labels + 1}, expected) is None
    assert mismatch({"logits": logits}, expected) == "the outputs are logits, not logits, labels"
    assert mismatch({**expected, "labels": labels[None]}, expected) == "the output labels has shape [1, 1], not [1]"
    assert mismatch({**expected, "logits": logits.flip(1)}, expected) == "the output logits is -inf elsewhere"
    assert mismatch({**expected, "logits": logits.abs()}, expected) == "the output logits is -inf elsewhere"


@pytest.mark.parametrize(
    ("found", "expected", "difference"),
    [
        ([1.0, 4.1], [1.0, 4.0], 0.025),  # relative to the largest
        ([0.0, 0.5], [0.0, 0.0], 0.5),  # relative to nothing
        ([1, 2, 3, 5], [1, 2, 3, 4], 0.25),  # of integers, the share that differs
        ([True, False], [True, True], 0.5),
        ([1.0, -math.inf], [1.1, -math.inf], 0.1 / 1.1),
        ([-math.inf], [-math.inf], 0.0),
    ],
)
def test_differences_of_outputs(found: list[Any], expected: list[Any], difference: float) -> None:
    same = {"same": torch.ones(3)}
    pair = {**same, "a": torch.tensor(found)}, {**same, "a": torch.tensor(expected)}
    assert measuring._difference(*pair) == pytest.approx(difference)


def test_empty_outputs_differ_by_nothing() -> None:
    for kind in (torch.float32, torch.int64):
        assert measuring._difference({"a": torch.empty(0, dtype=kind)}, {"a": torch.empty(0, dtype=kind)}) == 0
    assert measuring._difference({}, {}) == 0


# a trial in this process


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "TURNS", 2)


def measured(**spec: Any) -> Record:
    asked = {"workload": "memnet", "preset": "tiny", "device": "cpu", "kind": "trial", "budget_s": 0.01, **spec}
    record = measuring.measured(RunSpec(**asked), lambda done, total: None, 0.0)
    return Record.from_json(json.loads(json.dumps(record.to_json())))  # it can be read again


@pytest.mark.parametrize(("step_s", "turns", "steps"), [(0.001, 15, (233, 233)), (0.35, 10, (1, 1)), (2.0, 7, (1, 1))])
def test_turns_are_as_many_as_the_budget_holds(
    monkeypatch: pytest.MonkeyPatch, step_s: float, turns: int, steps: tuple[int, int]
) -> None:
    sides = []
    with Session(RunSpec(workload="memnet", preset="tiny", device="cpu")) as session:
        for _ in range(2):
            sides.append(measuring.Running(session, 0.0, 0.0, []))
        monkeypatch.setattr(measuring.Running, "timed", lambda self, count: step_s)
        seen: list[tuple[int, int]] = []
        found = measuring.in_turns(sides, 7.0, lambda turn, of: seen.append((turn, of)))
    assert [len(side.turn_step_s) for side in found] == [turns, turns]
    assert tuple(side.steps // turns for side in found) == steps
    assert seen == [(turn + 1, turns) for turn in range(turns)]


class Counted:
    """Counters of a machine that takes 40 W."""

    spent = 0.0

    def __init__(self, target: object) -> None:
        self.begun = Counted.spent

    def joules(self) -> float:
        return Counted.spent - self.begun


def test_energy_is_counted_over_two_seconds_of_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(self: measuring.Running, steps: int) -> float:
        Counted.spent += 40 * steps * self.setup_s
        return self.setup_s

    monkeypatch.setattr(measuring, "Counters", Counted)
    monkeypatch.setattr(measuring.Running, "timed", timed)
    with Session(RunSpec(workload="memnet", preset="tiny", device="cpu")) as session:
        sides = [measuring.Running(session, step_s, 0.0, []) for step_s in (0.5, 0.125)]
        runs = measuring.in_turns(sides, 1.0, lambda turn, of: None)
        assert [run.energy_j for run in runs] == [None, None], "settings are tried without"
        found = [measuring.with_energy(*pair) for pair in zip(runs, sides, strict=True)]
    assert [side.metered_steps for side in found] == [4, 16]
    assert [side.energy_j for side in found] == [80.0, 80.0]
    assert [side.step_j for side in found] == [20.0, 5.0]


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("phase", "engine"), [("train", "fused"), ("infer", "eager")])
def test_a_trial_compares_and_times_both(phase: str, engine: str) -> None:
    record = measured(phase=phase, engine=engine)
    assert record.outcome == "ok"
    assert record.trial is not None
    assert record.spec.engine == engine
    assert [len(side.turn_step_s) for side in (record.trial.eager, record.trial.engine)] == [2, 2]
    assert len(record.trial.engine.losses) == (20 if phase == "train" else 0)
    assert len(record.trial.rounded_losses) == (2 if phase == "train" else 0)
    assert record.trial.disagreement("fp32") is None
    assert record.trial.output_difference == (0 if phase == "infer" else None)
    assert record.trial.engine.turn_update_s == []  # a step of this one is an update


@pytest.mark.usefixtures("short")
def test_outputs_that_go_wrong_after_the_first_steps_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured graph replays only then."""
    calls: list[int] = []
    usual = ChannelsLast.infer

    def late(self: ChannelsLast, batch: Any) -> Any:
        calls.append(1)
        found = usual(self, batch)
        return found if len(calls) <= 3 else {name: torch.zeros_like(value) for name, value in found.items()}

    monkeypatch.setattr(ChannelsLast, "infer", late)
    monkeypatch.setattr(ChannelsLast, "refusal", classmethod(lambda *_: None))
    record = measured(phase="infer", engine="channels_last")
    assert record.trial is not None
    assert str(record.trial.disagreement("fp32")).startswith("the outputs differ by ")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("broken", "reason"),
    [("fused", "the loss is nan at step 5"), ("eager", "eager, beside the engine: the loss is nan at step 5")],
)
def test_losses_that_are_no_numbers_fail_the_trial(broken: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measuring._first_results

    def diverging(session: suite.Session) -> list[Any]:
        found = first(session)
        return [*found[:5], math.nan, *found[6:]] if session.spec.engine == broken else found

    monkeypatch.setattr(measuring, "_first_results", diverging)
    record = measured(engine="fused")
    assert (record.outcome, record.reason, record.trial) == ("failed", reason, None)


def test_weights_are_rounded_up_and_down() -> None:
    """By one unit in the last place at most, about half of them each way."""
    with suite.load("memnet", preset="tiny", device="cpu").setup() as session:
        before = [weight.detach().clone() for weight in session.state.weights]
        measuring._round_otherwise(session, 1)
        moved = torch.cat(list(_moved(before, [weight.detach() for weight in session.state.weights])))
    assert moved.abs().max() <= 2**-23
    assert (moved > 0).double().mean() > 0.3
    assert (moved < 0).double().mean() > 0.3


def _moved(before: list[Tensor], after: list[Tensor]) -> Iterator[Tensor]:
    for old, new in zip(before, after, strict=True):
        there = old != 0
        yield ((new.double() - old.double()) / old.double().abs())[there]


def noted(work: Callable[..., Any], name: str, calls: list[str]) -> Callable[..., Any]:
    def run(*given: Any) -> Any:
        calls.append(name)
        return work(*given)

    return run


def test_a_fixed_batch_leaves_the_environment_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each action that was sent is waited for before the next: an emulator may hang otherwise."""
    calls: list[str] = []
    with suite.load("deepq", preset="tiny", device="cpu").setup() as session:
        environment = session.state.extra.environment
        for name in ("send", "recv"):
            monkeypatch.setattr(environment, name, noted(getattr(environment, name), name, calls))
        batch = measuring._fixed_batch(session)
        assert batch is not None
        assert "target_value" in batch
        session.run(2)
    assert calls == ["send", "recv"] * 3
