"""deepq: the network, its targets and losses by hand, and the agent followed step by step through scripted games."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fathom.core.errors import BadOption, DoesNotFit, UnknownName
from fathom.core.spec import RunSpec
from fathom.data import atari
from fathom.data.base import Batch
from fathom.engine.session import Session, load
from fathom.workloads._player import Agent, QNetwork
from fathom.workloads.base import State
from fathom.workloads.deepq import Deepq

QUICK = {"batch": 4, "filters": 1, "hidden": 4, "capacity": 400, "learning_starts": 40}


def catch(phase: str = "train", **options: Any) -> Session:
    """The whole of deepq on the game that needs no emulator."""
    return load("deepq", phase=phase, device="cpu", preset="tiny", **{"game": "catch", **QUICK, **options})


@dataclass
class Scripted:
    """Four games in which everything happens on cue; a frame is as bright as its step."""

    rewards: Sequence[float] = ()
    lives_lost_at: Sequence[int] = ()
    over_at: Sequence[int] = ()
    truncated_at: Sequence[int] = ()
    log: list[str] = field(default_factory=list)
    step: int = 0
    envs: int = 4
    actions: tuple[str, ...] = ("NOOP", "FIRE", "RIGHT", "LEFT")

    def reset(self) -> NDArray[np.uint8]:
        self.step = 0
        return self._frames()

    def send(self, actions: NDArray[np.int64]) -> None:
        self.step += 1
        self.log.append("send")

    def recv(self) -> atari.StepResult:
        self.log.append("recv")
        reward = self.rewards[self.step % len(self.rewards)] if self.rewards else 0.0
        happens = [np.full(4, self.step in at) for at in (self.lives_lost_at, self.over_at, self.truncated_at)]
        return atari.StepResult(self._frames(), np.full(4, reward, np.float32), *happens)

    def close(self) -> None: ...

    def _frames(self) -> NDArray[np.uint8]:
        return np.full((4, 84, 84), self.step + 1, np.uint8)


def begun(game: Scripted, phase: str = "train", **options: Any) -> Session:
    """A session on a scripted game."""
    workload = ScriptedDeepq.configured("tiny", **{**QUICK, **options})
    object.__setattr__(workload, "environment", game)
    return Session(RunSpec(workload="deepq", phase=phase, device="cpu"), workload).setup()


class ScriptedDeepq(Deepq):
    """deepq in an environment that the test has made."""

    environment: Scripted

    def synthetic(self, seed: int) -> Scripted:
        return self.environment


def brightness(stack: Tensor) -> list[int]:
    """The steps a stack was drawn in, counted from 1; 0 where it is blank."""
    assert (stack == stack[..., :1, :1]).all()
    return [int(value) for value in stack[..., 0, 0].flatten()]


@pytest.mark.parametrize(("actions", "parameters"), [(4, 1_686_180), (18, 1_693_362)])
def test_parameters_are_those_of_the_nature_paper(actions: int, parameters: int) -> None:
    with torch.device("meta"):
        model = Deepq.configured("paper", actions=actions).model()
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    assert [tuple(weight.shape) for name, weight in model.named_parameters() if name.endswith("weight")] == [
        (32, 4, 8, 8),
        (64, 32, 4, 4),
        (64, 64, 3, 3),
        (512, 3136),
        (actions, 512),
    ]


def test_network_sees_pixels_between_0_and_1() -> None:
    network = QNetwork(actions=4, filters=2, hidden=8)
    white = torch.full((1, 4, 84, 84), 255, dtype=torch.uint8)
    x = torch.relu(network.conv1(torch.ones(1, 4, 84, 84)))
    x = torch.relu(network.conv3(torch.relu(network.conv2(x))))
    expected = network.value(torch.relu(network.hidden(x.reshape(1, -1))))
    torch.testing.assert_close(network(white), expected)


def test_costs_can_be_counted_on_meta_tensors_without_an_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari, "find_spec", lambda _: None)
    workload = Deepq.configured("paper")
    with torch.device("meta"):
        model = workload.model()
    batch = {name: column.to("meta") for name, column in workload.example().items()}
    values = workload.forward(model, batch)
    assert values.shape == (32, 4)
    values.sum().backward()  # type: ignore[no-untyped-call]
    assert all(weight.grad is not None for weight in model.parameters())


class Constant(nn.Module):
    """A network that answers the same values whatever it sees."""

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, observation: Tensor) -> Tensor:
        return self.values + 0


def test_target_value_by_hand() -> None:
    workload = Deepq.configured("paper", discount=0.5)
    batch = {
        "reward": torch.tensor([1.0, 0.0, -1.0]),
        "terminal": torch.tensor([False, False, True]),
        "next_observation": torch.zeros(3, 4, 84, 84, dtype=torch.uint8),
    }
    target = Constant([[2.0, 4.0], [-3.0, -1.0], [9.0, 8.0]])
    assert workload.target_value(target, batch).tolist() == [3.0, -0.5, -1.0], "the end is worth its reward alone"


def test_loss_by_hand() -> None:
    """Half the squared error up to one, then the error less a half; only the chosen action counts; summed."""
    batch = {
        "observation": torch.zeros(3, 4, 84, 84, dtype=torch.uint8),
        "action": torch.tensor([1, 0, 1]),
        "target_value": torch.tensor([0.5, -2.0, 5.0]),
    }
    model = Constant([[7.0, 1.0], [-2.0, 7.0], [7.0, 1.0]])
    loss = Deepq.configured("paper").loss(model, batch)
    assert loss.item() == pytest.approx(0.125 + 0 + 3.5)
    loss.backward()  # type: ignore[no-untyped-call]
    assert model.values.grad is not None
    assert model.values.grad.tolist() == [[0, 0.5], [0, 0], [0, -1]], "the error is clipped to one"


def test_optimizer_is_the_papers() -> None:
    workload = Deepq.configured("paper")
    with torch.device("meta"):
        settings = workload.optimizer(workload.model()).defaults
    assert {name: settings[name] for name in ("lr", "alpha", "eps", "centered", "momentum")} == {
        "lr": 2.5e-4,
        "alpha": 0.95,
        "eps": 0.01,
        "centered": True,
        "momentum": 0,
    }


def test_epsilon_falls_in_a_line_and_stays() -> None:
    workload = Deepq.configured("paper")
    frames = (0, 250_000, 500_000, 1_000_000, 9_000_000)
    assert [workload.epsilon(count) for count in frames] == pytest.approx([1, 0.775, 0.55, 0.1, 0.1])


@pytest.mark.parametrize(("best", "epsilon"), [(3, 0.0), (3, 0.25), (None, 1.0)])
def test_a_share_of_epsilon_of_the_actions_is_random(best: int | None, epsilon: float) -> None:
    agent: Agent = begun(Scripted()).state.extra
    choice = None if best is None else torch.full((4,), best)
    actions = np.concatenate([agent.act(choice, epsilon) for _ in range(1000)])
    counts = np.bincount(actions, minlength=4) / len(actions)
    expected = [epsilon / 4 + (1 - epsilon) * (action == best) for action in range(4)]
    assert counts == pytest.approx(expected, abs=0.03 if epsilon else 0)


def test_same_seed_same_losses() -> None:
    first, again, other = (catch(seed=seed).setup().run(steps=12) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_same_seed_same_losses_in_the_emulator() -> None:
    pytest.importorskip("ale_py", reason="the extra 'atari' is not installed")
    losses = []
    for _ in range(2):
        with load("deepq", device="cpu", preset="tiny", **QUICK).setup() as session:
            losses.append(session.run(steps=4))
    assert losses[0] == losses[1]
    assert 0 not in losses[0]


def test_learning_starts_with_enough_random_play() -> None:
    agent: Agent = catch(learning_starts=50).setup().state.extra
    assert agent.memory.written == 1 + 13, "the first frames, and 13 actions in 4 games to come to 50"
    assert agent.frames == 0, "exploration is counted from the first update on"


def test_one_update_for_four_actions_while_the_emulators_work() -> None:
    game = Scripted()
    session = begun(game, update_frequency=2)
    workload, optimizer = session.workload, session.state.optimizer
    game.log.clear()
    assert isinstance(workload, Deepq)
    assert optimizer is not None
    optimizer.register_step_post_hook(lambda *_: game.log.append("update"))
    session.train_step()
    assert game.log == ["send", "update", "update", "recv"]
    assert workload.items_per_step("train") == 2 * workload.batch
    assert workload.items_per_step("infer") == 4
    assert workload.frames_per_step == 16
    assert Deepq.configured("paper").updates_per_step == 8


def test_target_network_is_copied_when_due_and_stands_still_between() -> None:
    session = begun(Scripted(rewards=[1, -1, 0]), target_every=3)
    agent: Agent = session.state.extra

    def agrees() -> bool:
        assert agent.target is not None
        pairs = zip(agent.target.parameters(), session.state.model.parameters(), strict=True)
        return all(torch.equal(ours, theirs) for ours, theirs in pairs)

    assert agrees()
    followed = []
    for _ in range(7):
        session.train_step()
        followed.append(agrees())
    assert followed == [False, False, True, False, False, True, False]


def test_targets_come_from_the_target_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a target network that promises ten everywhere, and no ends, every target is the reward plus 9.9."""
    session = begun(Scripted(rewards=[0.5]))
    session.state.extra.target = Constant([[10.0, 0.0, 0.0, 0.0]])
    seen: list[Tensor] = []
    loss = Deepq.loss

    def watched(self: Deepq, model: nn.Module, batch: Batch) -> Tensor:
        seen.append(batch["target_value"])
        return loss(self, model, batch)

    monkeypatch.setattr(Deepq, "loss", watched)
    workload, model = session.workload, session.state.model
    session.prepare(partial(workload.loss, model), partial(workload.infer, model), None)
    session.train_step()
    assert seen[0].tolist() == pytest.approx([0.5 + 9.9] * 4)


def samples(state: State) -> Iterator[tuple[int, float, bool, list[int], list[int]]]:
    """Draws from the memory: the step acted in, the reward, whether it ended all, and both stacks."""
    batch = state.extra.memory.sample(500)
    for before, reward, terminal, after in zip(
        batch["observation"], batch["reward"], batch["terminal"], batch["next_observation"], strict=True
    ):
        yield brightness(before)[-1], float(reward), bool(terminal), brightness(before), brightness(after)


def test_a_lost_life_ends_the_episode_in_training_but_not_the_game() -> None:
    state = begun(Scripted(rewards=[1], lives_lost_at=[6]), learning_starts=40).state
    agent: Agent = state.extra
    seen = {step: (terminal, after) for step, _, terminal, _, after in samples(state)}
    assert [step for step, (terminal, _) in seen.items() if terminal] == [6], "step 6 led to the loss"
    assert seen[7] == (False, [0, 0, 7, 8]), "stacks after it start anew"
    assert agent.finished == []
    assert agent.score.tolist() == [10] * 4, "the score runs on"


def test_a_lost_life_changes_nothing_in_inference() -> None:
    session = begun(Scripted(rewards=[1], lives_lost_at=[2], over_at=[5]), phase="infer")
    agent: Agent = session.state.extra
    stacks = []
    for _ in range(6):
        session.infer_step()
        stacks.append(brightness(agent.memory.latest()[0]))
    assert stacks == [[0, 0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [0, 0, 0, 6], [0, 0, 6, 7]]
    assert agent.finished == [5] * 4


def test_a_game_broken_off_is_no_end_of_what_could_be_won() -> None:
    """The end by the rules masks what follows; the end of time does not, and is not learned from at all."""
    state = begun(Scripted(over_at=[3], truncated_at=[7]), learning_starts=40).state
    seen = {step: (terminal, before, after) for step, _, terminal, before, after in samples(state)}
    assert seen[3] == (True, [0, 1, 2, 3], [0, 0, 0, 4])
    assert sorted(seen) == [1, 2, 3, 4, 5, 6, 8, 9, 10]
    assert [step for step, (terminal, _, _) in seen.items() if terminal] == [3]
    assert seen[8] == (False, [0, 0, 0, 8], [0, 0, 8, 9])
    assert state.extra.finished == [0.0] * 8


def test_rewards_are_clipped_for_learning_and_counted_in_full_for_the_score() -> None:
    state = begun(Scripted(rewards=[-7, 0.5, 3]), learning_starts=12).state
    assert {step: reward for step, reward, *_ in samples(state)} == {1: 0.5, 2: 1, 3: -1}
    assert state.extra.score.tolist() == [-3.5] * 4


def test_inference_acts_on_the_stack_that_replay_would_give() -> None:
    session = catch("infer").setup()
    seen: list[Tensor] = []
    session.state.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    frames = [torch.from_numpy(session.state.source.reset())]
    recv = session.state.source.recv

    def recorded() -> atari.StepResult:
        arrival: atari.StepResult = recv()
        frames.append(torch.from_numpy(arrival.frames))
        return arrival

    session.state.source.recv = recorded
    session.run(steps=20)
    for step, stack in enumerate(seen):
        opening = step - step % 6  # every game of Catch takes six steps
        expected = [frames[at] if at >= opening else torch.zeros_like(frames[0]) for at in range(step - 3, step + 1)]
        assert torch.equal(stack, torch.stack(expected, dim=1)), f"step {step}"


def test_inference_gives_actions_by_name() -> None:
    with catch("infer", infer_epsilon=0.0).setup() as session:
        output = session.run(steps=9)[-1]
        assert isinstance(output, dict)
        assert {name: tuple(column.shape) for name, column in output.items()} == {
            "action": (4,),
            "value": (4,),
            "score": (4,),
        }
        name = session.state.source.actions[int(output["action"][0])]
        words = session.workload.answers(output, session.state.source)
        assert words[0] == f"{name}, value {float(output['value'][0]):.3f}, score {float(output['score'][0]):g}"


def test_the_network_fits_the_game() -> None:
    session = catch().setup()
    assert session.workload.forward(session.state.model, session.workload.example()).shape == (4, 3)


def test_half_precision_keeps_the_loss_in_full() -> None:
    session = catch(precision="bf16").setup()
    for _ in range(3):
        loss = session.train_step()
        assert loss.dtype == torch.float32
        assert loss.isfinite()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"envs": 6}, "envs of deepq must be a multiple of 4, not 6"),
        ({"envs": 0}, "envs of deepq must be a multiple of 4, not 0"),
        ({"learning_starts": 500}, "learning_starts of deepq must be between envs and capacity, not 500"),
        ({"learning_starts": 3}, "learning_starts of deepq must be between envs and capacity, not 3"),
        ({"capacity": 40, "learning_starts": 40, "envs": 8}, "capacity of deepq must be at least ten frames a game"),
        ({"frame_skip": 0}, "frame_skip of deepq must be at least 1, not 0"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        catch(**options)


def test_a_game_that_is_none() -> None:
    pytest.importorskip("ale_py", reason="the extra 'atari' is not installed")
    with pytest.raises(UnknownName, match="no game 'breakuot'; did you mean breakout"):
        catch(game="breakuot").setup()


def test_a_memory_that_does_not_fit() -> None:
    with pytest.raises(DoesNotFit, match="replay memory of 1000000000000 frames .* try a smaller capacity"):
        catch(capacity=10**12).setup()


def test_a_data_folder_is_declined(tmp_path: Path) -> None:
    spec = RunSpec(workload="deepq", preset="tiny", device="cpu", data=str(tmp_path))
    with pytest.raises(BadOption, match="deepq reads no data"):
        Session(spec).setup()


def test_options_still_go_by_their_old_names() -> None:
    assert Deepq.configured("tiny", round_frames=40) == Deepq.configured("tiny", evaluation_frames=40)
    with pytest.raises(UnknownName, match="no option of deepq 'round_frame'"):
        Deepq.configured("tiny", round_frame=40)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"capacity": 48, "learning_starts": 40, "return_steps": 5}, "capacity of deepq must be at least 56"),
        ({"return_steps": 60}, "learning_starts of deepq must be at least 240"),
    ],
)
def test_a_memory_that_could_not_be_sampled_is_refused(options: dict[str, int], problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        Deepq.configured("tiny", envs=4, **options)
