"""deepq: the deep Q-network of Mnih et al. (Nature 2015), which learns Atari games from their pictures and scores.

Harvard's 2016 code acted on every frame, learned from stacks that crossed the ends of games and could not see a
negative value; this is the agent of the paper. Two things differ from it. Many games are played at once, so that the
emulators' threads and the learner keep each other busy: there is still one update for four actions, but with n games
these come as n / 4 updates between two actions. And torch's RMSProp divides by sqrt(E[g^2] - E[g]^2) + 0.01, where the
authors' code has sqrt(E[g^2] - E[g]^2 + 0.01): their steps are up to ten times smaller where gradients are small.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer, RMSprop

from fathom.dataset import Batch
from fathom.datasets import atari
from fathom.errors import BadOption, DoesNotFit
from fathom.replay import STACK, Replay
from fathom.workload import Output, State, Workload, phase


class QNetwork(nn.Module):
    """From four frames to the value of each action; torch's default weights are also those of the authors' code."""

    def __init__(self, actions: int, filters: int, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(STACK, filters, 8, stride=4)
        self.conv2 = nn.Conv2d(filters, 2 * filters, 4, stride=2)
        self.conv3 = nn.Conv2d(2 * filters, 2 * filters, 3)
        self.hidden = nn.Linear(2 * filters * 7 * 7, hidden)
        self.value = nn.Linear(hidden, actions)

    def forward(self, observation: Tensor) -> Tensor:
        x = F.relu(self.conv1(observation / 255))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        x = F.relu(self.hidden(x.flatten(1)))
        values: Tensor = self.value(x)
        return values


@dataclass
class Agent:
    """Who plays: the emulators, the memory of what was seen, and in training the network that sets the targets."""

    environment: atari.Environment
    memory: Replay
    random: np.random.Generator  # on the host, where the actions are needed: the same play on every device
    target: nn.Module | None  # None in inference
    score: NDArray[np.float32]  # points so far in each running game
    finished: list[float] = field(default_factory=list)  # final scores of the games played to their end
    frames: int = 0  # seen since learning began
    updates: int = 0
    _sent: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def act(self, best: Tensor | None, epsilon: float) -> NDArray[np.int64]:
        """Sets the emulators off, with the network's choice or, by chance epsilon, any action; does not wait."""
        envs = self.environment.envs
        any_action = self.random.integers(len(self.environment.actions), size=envs)
        exploring = self.random.random(envs) < epsilon
        # the one place where the host waits for the device: emulators live on the host
        self._sent = any_action if best is None else np.where(exploring, any_action, best.cpu().numpy())
        self.environment.send(self._sent)
        return self._sent

    def observe(self) -> NDArray[np.float32]:
        """Waits for the emulators and remembers what they bring; gives the score of each game after this step."""
        arrival = self.environment.recv()
        learning = self.target is not None
        terminal = arrival.game_over | arrival.life_lost if learning else arrival.game_over
        reward = np.clip(arrival.reward, -1, 1)
        self.memory.add(arrival.frames, self._sent, reward, terminal, arrival.truncated)
        score = self.score + arrival.reward
        over = arrival.game_over | arrival.truncated
        self.finished += score[over].tolist()
        self.score = np.where(over, np.float32(0), score)
        return score


@dataclass(frozen=True, kw_only=True)
class Deepq(Workload):
    name: ClassVar = "deepq"
    year: ClassVar = 2013
    paper: ClassVar = "Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015"
    style: ClassVar = "Convolutional, Full"
    layers: ClassVar = 5
    task: ClassVar = "Reinforcement"
    dataset: ClassVar = "Atari ALE"
    item: ClassVar = "transition"
    expects: ClassVar = atari.EXPECTS
    presets: ClassVar = {
        # Skiing costs points at every step: there is something to learn from the first one on
        "tiny": {
            "game": "skiing",
            "actions": 3,
            "batch": 16,
            "envs": 4,
            "capacity": 2_000,
            "learning_starts": 200,
            "filters": 8,
            "hidden": 64,
        },
        "small": {"batch": 32, "envs": 4, "capacity": 20_000, "learning_starts": 1_000},
        # 32 games keep 16 cores at work, and the batch and the ratio of updates to actions stay those of the paper
        "paper": {"batch": 32, "envs": 32, "capacity": 1_000_000, "learning_starts": 50_000},
    }

    game: str = "breakout"
    envs: int  # games played at once
    emulator_threads: int = 0  # 0: one a core, and no more than games
    frame_skip: int = 4
    actions: int = 4  # fit() sets it to what the game has
    filters: int = 32
    hidden: int = 512

    capacity: int  # frames in the replay memory; a frame is one the agent sees, four of the emulator's
    learning_starts: int  # frames of random play before the first update
    update_frequency: int = 4  # actions between updates
    target_every: int = 10_000  # updates between copies to the target network
    discount: float = 0.99
    learning_rate: float = 2.5e-4
    initial_epsilon: float = 1.0
    final_epsilon: float = 0.1
    final_exploration_frame: int = 1_000_000
    infer_epsilon: float = 0.05

    def __post_init__(self) -> None:
        for name in ("frame_skip", "actions", "filters", "hidden", "update_frequency", "target_every"):
            if getattr(self, name) < 1:
                raise BadOption(f"{name} of deepq must be at least 1, not {getattr(self, name)}")
        if self.envs < 1 or self.envs % self.update_frequency:
            raise BadOption(f"envs of deepq must be a multiple of {self.update_frequency}, not {self.envs}")
        if not self.envs <= self.learning_starts <= self.capacity:
            raise BadOption(f"learning_starts of deepq must be between envs and capacity, not {self.learning_starts}")
        if self.capacity < 10 * self.envs:
            raise BadOption(f"capacity of deepq must be at least ten frames a game, not {self.capacity}")

    @property
    def updates_per_step(self) -> int:
        return self.envs // self.update_frequency

    @property
    def frames_per_step(self) -> int:
        """Frames the emulators play in one step, of training or inference."""
        return self.envs * self.frame_skip

    def items_per_step(self, phase: str) -> int:
        return self.batch * self.updates_per_step if phase == "train" else self.envs

    def model(self) -> QNetwork:
        return QNetwork(self.actions, self.filters, self.hidden)

    def synthetic(self, seed: int) -> atari.Environment:
        """The real emulator: there is no better source of its pictures."""
        return atari.play(self.game, self.envs, seed, frame_skip=self.frame_skip, threads=self.emulator_threads)

    def real(self, folder: Path, split: str = "train") -> atari.Environment:
        raise BadOption("deepq reads no data: it plays the games that ale-py carries, so leave --data out")

    def fit(self, source: atari.Environment) -> Self:
        return replace(self, actions=len(source.actions))

    def example(self, seed: int = 0) -> Batch:
        """Transitions of noise, for counting costs where there is no emulator."""
        random = torch.Generator().manual_seed(seed)
        size = (self.batch, STACK + 1, atari.SIDE, atari.SIDE)
        frames = torch.randint(256, size, generator=random, dtype=torch.uint8)
        reward = torch.randint(-1, 2, (self.batch,), generator=random).float()
        return {
            "observation": frames[:, :-1],
            "action": torch.randint(self.actions, (self.batch,), generator=random),
            "reward": reward,
            "terminal": reward != 0,
            "next_observation": frames[:, 1:],
            "target_value": reward,  # what target_value() gives where every reward ends the episode
        }

    def feed(self, source: atari.Environment, device: torch.device, seed: int, start: int = 0) -> Iterator[Batch]:
        """Nothing: batches come from the agent's own memory."""
        return iter(())

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        values: Tensor = model(batch["observation"])
        return values

    def target_value(self, target: nn.Module, batch: Batch) -> Tensor:
        """What an action turned out to be worth: its reward, and what the target network expects after it."""
        expected: Tensor = target(batch["next_observation"]).float().amax(1)
        return batch["reward"] + self.discount * expected * ~batch["terminal"]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The paper's clipped error, which is Huber's loss; summed, as RMSProp's 0.01 was chosen for sums."""
        chosen = self.forward(model, batch).float().gather(1, batch["action"][:, None]).squeeze(1)
        return F.huber_loss(chosen, batch["target_value"], reduction="sum")

    def optimizer(self, model: nn.Module) -> Optimizer:
        return RMSprop(model.parameters(), lr=self.learning_rate, alpha=0.95, eps=0.01, centered=True)

    def epsilon(self, frames: int) -> float:
        """The chance of a random action, falling in a straight line and then constant."""
        done = min(1.0, frames / self.final_exploration_frame)
        return self.initial_epsilon + done * (self.final_epsilon - self.initial_epsilon)

    def begin(self, state: State) -> None:
        """Starts the games; in training, plays at random until there is something to learn from."""
        training = state.optimizer is not None
        state.extra = agent = Agent(
            environment=state.source,
            memory=self._memory(state, self.capacity if training else STACK * self.envs),
            random=np.random.default_rng(state.seed),
            target=deepcopy(state.model).requires_grad_(False) if training else None,
            score=np.zeros(self.envs, np.float32),
        )
        if agent.target is not None:
            state.beside["target"] = agent.target
        agent.memory.start(agent.environment.reset())
        if training:
            for _ in range(-(-self.learning_starts // self.envs)):
                agent.act(None, 1.0)
                agent.observe()

    def _memory(self, state: State, capacity: int) -> Replay:
        try:
            return Replay(capacity, self.envs, atari.SIDE, state.device, state.seed)
        except (MemoryError, RuntimeError) as error:  # torch's own out-of-memory error is a RuntimeError
            problem = f"deepq's replay memory of {capacity} frames ({capacity * atari.SIDE**2 / 1e9:.1f} GB)"
            raise DoesNotFit(f"{problem} does not fit on {state.device}; try a smaller capacity") from error

    def train_step(self, state: State) -> Tensor:
        """All games advance by one action while the network learns; gives the mean loss of the updates."""
        agent: Agent = state.extra
        assert agent.target is not None, "an inference run cannot train"
        with phase("forward"), torch.no_grad(), state.autocast():
            best = state.model(agent.memory.latest()).argmax(1)
        with phase("data"):
            agent.act(best, self.epsilon(agent.frames))
            batch = agent.memory.sample(self.batch * self.updates_per_step)
        with phase("forward"), torch.no_grad(), state.autocast():
            batch["target_value"] = self.target_value(agent.target, batch)  # it stands still: one pass for all updates
        losses = [self.update(state, partial(self.loss, state.model, part)) for part in self._parts(batch)]
        with phase("data"):
            agent.observe()
        agent.frames += self.envs
        copies_due = agent.updates // self.target_every
        agent.updates += self.updates_per_step
        if agent.updates // self.target_every > copies_due:
            agent.target.load_state_dict(state.model.state_dict())
        return torch.stack(losses).mean()

    def _parts(self, batch: Batch) -> list[Batch]:
        columns = zip(*(column.chunk(self.updates_per_step) for column in batch.values()), strict=True)
        return [dict(zip(batch, part, strict=True)) for part in columns]

    def infer(self, model: nn.Module, batch: Batch) -> Output:
        """The best action and its value."""
        value, action = self.forward(model, batch).float().max(1)
        return {"action": action, "value": value}

    def infer_step(self, state: State) -> Output:
        """One action in every game, nearly always the best; gives what was done, its value, and the score after it."""
        agent: Agent = state.extra
        with torch.inference_mode(), phase("forward"), state.autocast():
            output = self.infer(state.model, {"observation": agent.memory.latest()})
        with phase("data"):
            done = agent.act(output["action"], self.infer_epsilon)
            score = agent.observe()
        return {"action": torch.from_numpy(done), "value": output["value"], "score": torch.from_numpy(score)}

    def answers(self, output: Output, source: atari.Environment) -> list[str]:
        """Each game's action by its name, the value the network saw in the position, and the points so far."""
        actions, values = output["action"].tolist(), output["value"].tolist()
        words = [f"{source.actions[action]}, value {value:.3f}" for action, value in zip(actions, values, strict=True)]
        if "score" in output:
            return [f"{word}, score {score:g}" for word, score in zip(words, output["score"].tolist(), strict=True)]
        return words
