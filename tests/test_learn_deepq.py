"""deepq learns: better than chance on the game without an emulator, the same after a kill, evaluated by hand."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_runs
from numpy.typing import NDArray
from PIL import Image
from test_deepq import QUICK, Constant, Scripted
from training_runs import Killed, learning_of

from fathom.core.errors import BadOption
from fathom.core.record import Learning
from fathom.core.spec import RunSpec
from fathom.data import atari
from fathom.engine.engines.eager import Eager
from fathom.engine.session import load
from fathom.training import checkpoint
from fathom.training.checkpoint import FOLDER
from fathom.training.trainer import HeldOut, recipe_for, trainer_for
from fathom.training.trainers.deepq import PROMISING, DeepqTrainer
from fathom.workloads._player import Agent
from fathom.workloads.deepq import EVALUATION_GAMES, PROTOCOL, Deepq

SHORT = {**QUICK, "game": "catch", "capacity": 80, "evaluation_frames": 40, "target_every": 7}


def trained(options: Mapping[str, Any], evaluations: int, die_at: int | None = None, seed: int = 0) -> Learning:
    spec = RunSpec(
        workload="deepq",
        preset="tiny",
        device="cpu",
        threads=1,
        kind="training",
        evaluations=evaluations,
        seed=seed,
        options=dict(options),
    )
    return learning_of(training_runs.trained(spec, die_at))


def playing(environment: atari.Environment, monkeypatch: pytest.MonkeyPatch, **options: Any) -> DeepqTrainer:
    """A trainer before its first step, of a game that is scripted."""
    monkeypatch.setattr(Deepq, "synthetic", lambda self, seed: environment)
    session = load("deepq", preset="tiny", device="cpu", **{**SHORT, **options}).setup()
    trainer = trainer_for(session, recipe_for(session.spec), HeldOut(environment, environment))
    assert isinstance(trainer, DeepqTrainer)
    return trainer


@pytest.mark.slow
def test_it_beats_random_play() -> None:
    """Who moves at random catches one ball in seven, which is -0.71 points a game; who sees the ball misses none.

    The mean of 30 games at random has a standard deviation of 0.13: -0.2 is four of them above chance.
    """
    options = {
        **{"game": "catch", "envs": 32, "batch": 32, "filters": 4, "hidden": 128, "learning_rate": 2e-3},
        **{"capacity": 20_000, "learning_starts": 320, "final_exploration_frame": 400, "target_every": 20},
        **{"update_frequency": 8, "return_steps": 6, "evaluation_frames": 32 * 80},  # 320 updates
    }
    quality = trained(options, evaluations=1).quality
    assert quality is not None
    assert quality > -0.2


@pytest.mark.parametrize("adam", [False, True])
def test_a_killed_run_resumes_to_the_very_same_numbers(
    adam: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring has been round before the kill, and the target network is between two renewals."""
    monkeypatch.setattr(checkpoint, "INTERVAL_S", 0.0)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    options = {**SHORT, "adam": adam}
    with pytest.raises(Killed):
        trained(options, evaluations=4, die_at=4)  # the checkpoint is of evaluation 3
    resumed = trained(options, evaluations=4)
    monkeypatch.delenv(FOLDER)
    whole = trained(options, evaluations=4)
    assert resumed.resumed == 1
    timeless = [[replace(point, seconds=0) for point in each.curve] for each in (resumed, whole)]
    assert timeless[0] == timeless[1]
    assert resumed.artifacts == whole.artifacts
    assert len({point.loss for point in whole.curve}) == 4


def test_emulators_start_again_and_the_trained_network_refills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Games that cannot be kept leave a checkpoint without their frames."""
    before = playing(Scripted(rewards=[1], over_at=[12]), monkeypatch)
    for _ in range(3):
        before.step()
    kept = before.state_dict()
    assert (kept["memory"], kept["games"]) == (None, None)
    assert kept["finished"] == [12] * 4
    after = playing(Scripted(rewards=[1]), monkeypatch)
    chosen: list[int] = []
    after.state.model.register_forward_hook(lambda *_: chosen.append(1))
    after.load_state_dict(kept)
    agent = after.agent
    assert agent.memory.written == before.agent.memory.written == 1 + 10 + 3, "the opening's, and those of 3 steps"
    assert len(chosen) == 13, "each chosen by the network"
    assert (agent.frames, agent.updates, agent.finished) == (12, 3, [12] * 4)
    assert agent.score.tolist() == [13] * 4
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(weights(before), weights(after), strict=True))


def test_the_memory_is_refilled_to_its_capacity_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = playing(Scripted(), monkeypatch)
    for _ in range(30):
        trainer.step()
    trainer.load_state_dict(trainer.state_dict())
    assert trainer.agent.memory.written == 1 + 80 // 4
    trainer.step()


def weights(trainer: DeepqTrainer) -> list[torch.Tensor]:
    assert trainer.agent.target is not None
    return [*trainer.state.model.parameters(), *trainer.agent.target.parameters()]


@dataclass
class Staggered:
    """Games of 2, 3 and 5 actions that begin again when over; an action brings as many points as the game's number."""

    lengths: NDArray[np.int64] = field(default_factory=lambda: np.array([2, 3, 5]))
    step: int = 0
    envs: int = 3
    actions: tuple[str, ...] = ("NOOP", "FIRE", "RIGHT")

    def reset(self) -> NDArray[np.uint8]:
        self.step = 0
        return self._frames()

    def send(self, actions: NDArray[np.int64]) -> None:
        self.step += 1

    def recv(self) -> atari.StepResult:
        never = np.zeros(3, np.bool_)
        points = np.array([1, 2, 3], np.float32)
        later = np.where(self.step > self.lengths, 100, points)  # a second game would be worth much more
        return atari.StepResult(self._frames(), later.astype(np.float32), never, self.step % self.lengths == 0, never)

    def close(self) -> None: ...

    def _frames(self) -> NDArray[np.uint8]:
        return np.full((3, 84, 84), self.step, np.uint8)


def evaluated(monkeypatch: pytest.MonkeyPatch) -> tuple[float, list[tuple[float, int]]]:
    trainer = playing(Scripted(), monkeypatch)
    trainer.held_out = HeldOut(Staggered(), None)
    return trainer.validate(), trainer.agent.evaluated


def test_the_first_game_of_each_emulator_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    mean, games = evaluated(monkeypatch)
    assert games == [(2, 2), (6, 3), (15, 5)]
    assert mean == pytest.approx(23 / 3)


def test_a_game_counts_as_far_as_it_came_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fathom.workloads.deepq.EVALUATION_GAME_FRAMES", 16)  # four actions of four frames
    mean, games = evaluated(monkeypatch)
    assert games == [(2, 2), (6, 3), (12, 4)]
    assert mean == pytest.approx(20 / 3)


def test_five_minutes_are_4500_actions() -> None:
    from fathom.workloads import deepq

    assert deepq.EVALUATION_GAME_FRAMES / 60 == 5 * 60
    assert deepq.EVALUATION_GAME_FRAMES // Deepq.configured("paper").frame_skip == 4500


def test_an_evaluation_leaves_the_training_games_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = playing(Scripted(rewards=[1]), monkeypatch)
    agent: Agent = trainer.agent
    before = (agent.score.tolist(), agent.memory.written, agent.random.bit_generator.state, agent.frames)
    trainer.held_out = HeldOut(Staggered(), None)
    assert trainer.validate() == trainer.validate(), "the same openings, the same chances"
    assert (agent.score.tolist(), agent.memory.written, agent.random.bit_generator.state, agent.frames) == before


def test_an_evaluation_is_thirty_games_with_openings_of_their_own() -> None:
    workload = Deepq.configured("tiny", game="catch")
    games, training = Deepq.recipe.synthetic_evaluation_data(workload, 1), workload.synthetic(0)
    assert (games.envs, training.envs) == (EVALUATION_GAMES, 4) == (30, 4)
    assert not np.array_equal(games.reset()[:4], training.reset())


@pytest.mark.parametrize(("points", "steps"), [(3.91, 40), (3.89, 100)])
def test_an_interval_ends_early_when_training_games_come_close(
    points: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every fifth action ends four games with five times the points: 19.55 is close to 20, 19.45 is not."""
    game = Scripted(rewards=[points], over_at=range(5, 1000, 5))
    trainer = playing(game, monkeypatch, evaluation_frames=400)
    told: list[int] = []
    _, items = trainer.train(told.append)
    assert len(told) == steps, "eight times four games are the first to be thirty"
    assert items == steps * trainer.workload.batch
    _, items = trainer.train(told.append)
    assert len(told) == 2 * steps, "games of the interval before do not count again"


def test_many_games_at_once_must_all_have_had_their_turn() -> None:
    session = load("deepq", preset="tiny", device="cpu", **{**SHORT, "envs": 40, "capacity": 400}).setup()
    trainer = trainer_for(session, recipe_for(session.spec), HeldOut(None, None))
    assert isinstance(trainer, DeepqTrainer)
    assert not trainer._promising([21.0] * 39)
    assert trainer._promising([21.0] * 40)
    assert trainer._promising([-21.0] * 10 + [21.0] * 30)
    assert not trainer._promising([21.0] * 10 + [18.9] * 30), "the last thirty tell"


def test_without_a_score_that_ends_training_no_game_is_reason_to_evaluate(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = playing(Scripted(), monkeypatch)
    assert trainer._promising([21.0] * EVALUATION_GAMES)
    trainer.recipe = replace(trainer.recipe, stop_at=None)
    assert not trainer._promising([21.0] * EVALUATION_GAMES)


def test_the_game_is_named_in_the_record_and_is_no_departure() -> None:
    found = trained({**SHORT, "game": "catch"}, evaluations=1)
    assert (found.data, found.split) == ("catch", "test")
    assert "game catch" in found.departures
    assert "synthetic data" not in found.departures, "an emulator is the real thing"


def test_double_learning_values_what_the_network_would_do() -> None:
    workload = Deepq.configured("paper", discount=0.5, double=True)
    batch = {
        "reward": torch.tensor([1.0, 0.0]),
        "terminal": torch.tensor([False, True]),
        "next_observation": torch.zeros(2, 4, 84, 84, dtype=torch.uint8),
    }
    target, model = Constant([[2.0, 4.0], [9.0, 8.0]]), Constant([[1.0, 0.0], [0.0, 1.0]])
    assert workload.target_value(target, batch, model).tolist() == [2.0, 0.0]


def test_what_is_shown_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = playing(Scripted(), monkeypatch)
    trainer.held_out = HeldOut(None, Staggered())
    score, (table, film) = trainer.test()
    assert score == pytest.approx(23 / 3)
    assert table.title == "Scores of 3 games: mean 7.67, standard deviation 5.44"
    assert table.rows == [[1, 2, 2], [2, 6, 3], [3, 15, 5]]
    assert film.png is not None
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(film.png))))
    assert image.shape == (2 * 84, 10 * 84)
    assert image[::84, ::84].tolist() == [list(range(4, 44, 4)), list(range(44, 84, 4))], "every fourth action"


def test_the_recipe_is_the_game_it_speaks_of() -> None:
    recipe = Deepq.recipe
    workload = Deepq.configured(recipe.preset, **recipe.options)
    assert (workload.game, workload.frame_skip, workload.infer_epsilon, workload.filters) == ("pong", 4, 0.05, 32)
    assert workload.updates_per_step == 32
    frames = (workload.capacity, workload.final_exploration_frame, workload.evaluation_frames)
    for said in (workload.target_every, *frames):
        assert f"{said:,}" in PROTOCOL
    assert f"after every {workload.evaluation_frames:,} actions, or earlier, when {workload.envs} " in PROTOCOL
    assert f"the last {EVALUATION_GAMES} came within half a point" in PROTOCOL
    assert PROMISING == 0.5
    assert f"the first validation that reaches {recipe.stop_at:g} ends training" in PROTOCOL
    assert recipe.stop_at is not None
    assert recipe.target is not None
    assert recipe.stop_at > recipe.target
    assert f"a batch of {workload.batch} every {workload.update_frequency} actions" in PROTOCOL
    catch = recipe.for_run(None, {"game": "catch"})
    assert (catch.metric, catch.target) == ("score in catch", None)
    with pytest.raises(BadOption, match="the recipe of deepq is Pong: no target score is known for breakout"):
        recipe.for_run(None, {"game": "breakout"})


def test_a_training_step_is_the_timed_one() -> None:
    """On a CPU the trainer adds nothing to the arithmetic of a step."""
    with load("deepq", preset="tiny", device="cpu", **SHORT).setup() as plain:
        expected = plain.run(steps=3)
    with load("deepq", preset="tiny", device="cpu", **SHORT).setup() as session:
        trainer = trainer_for(session, recipe_for(session.spec), HeldOut(None, None))
        assert type(session.engine) is Eager
        assert [float(trainer.step()) for _ in range(3)] == expected


@pytest.mark.gpu
@pytest.mark.parametrize("adam", [False, True])
def test_steps_by_cuda_graph_are_the_eager_ones(adam: bool) -> None:
    """Warm-up, capture and replay: the losses are those of the step that captures nothing."""
    options = {**SHORT, "adam": adam, "double": True}
    with load("deepq", preset="tiny", device="cuda", **options).setup() as plain:
        expected = plain.run(steps=10)
    with load("deepq", preset="tiny", device="cuda", engine="cudagraph", **options).setup() as captured:
        trainer = trainer_for(captured, recipe_for(captured.spec), HeldOut(None, None))
        assert [float(trainer.step()) for _ in range(10)] == pytest.approx(expected, rel=1e-3)
