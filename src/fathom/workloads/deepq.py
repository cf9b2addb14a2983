"""deepq: the deep Q-network of Mnih et al. (Nature 2015), which learns Atari games from their pictures and scores.

Harvard's 2016 code acted on every frame, learned from stacks that crossed the ends of games and could not see a
negative value; this is the agent of the paper. Two things differ from it. Many games are played at once, so that the
emulators' threads and the trainer keep each other busy: there is still one update for four actions, but with n games
these come as n / 4 updates between two actions. And torch's RMSProp divides by sqrt(E[g^2] - E[g]^2) + 0.01, where the
authors' code has sqrt(E[g^2] - E[g]^2 + 0.01): their steps are up to ten times smaller where gradients are small.

The lesson is Pong. What it changes of the paper's settings is in its options and said in its protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, Optimizer, RMSprop

from fathom.core.errors import BadOption, DoesNotFit
from fathom.core.record import Artifact
from fathom.data import atari
from fathom.data.base import Batch
from fathom.workloads._player import Agent, QNetwork
from fathom.workloads._replay import STACK, ReplayBuffer
from fathom.workloads.base import Output, State, Workload, phase
from fathom.workloads.recipe import Lesson, Quality

JUDGED = 30  # games of one evaluation
JUDGED_FRAMES = 18_000  # of the emulator, for each of them: five minutes of play
PROTOCOL = """\
the mean score of 30 games in the emulator, as the 2015 paper plays them: up to 30 no-ops first, one action in 20 at \
random, five minutes at most; they are played at once, the first of each emulator counts. The same 30 openings are \
played after every round of 320,000 actions, or earlier, when 64 training games have ended in it and the last 30 came \
within half a point of the target; the first look that reaches it ends the run. Learnt with the paper's algorithm, \
network and preparation, but with Adam for RMSProp, a batch of 64 every 2 actions for 32 every 4, a target network \
renewed every 1,000 updates for 10,000, a memory of 200,000 frames for a million, and exploration that falls to 0.05 \
in 200,000 actions for 0.1 in a million; 64 games are played at once"""
STABILISER = 0.01  # keeps the optimizer's steps small where gradients are; chosen for sums over a batch


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
    plays: ClassVar = True
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
            "round_frames": 4_000,
        },
        "small": {"batch": 32, "envs": 4, "capacity": 20_000, "learning_starts": 1_000},
        # 32 games keep 16 cores at work, and the batch and the ratio of updates to actions stay those of the paper
        "paper": {"batch": 32, "envs": 32, "capacity": 1_000_000, "learning_starts": 50_000},
    }

    trainer: ClassVar = "deepq"  # it plays while it learns
    lesson: ClassVar = Lesson(
        quality=Quality(
            metric="score in Pong",
            unit="points",
            target=18.9,
            better="higher",
            protocol=PROTOCOL,
        ),
        rounds=60,
        options={
            "game": "pong",
            "envs": 64,
            "batch": 64,
            "update_frequency": 2,
            "adam": True,
            "learning_rate": 1e-4,
            "target_every": 1_000,
            "capacity": 200_000,
            "learning_starts": 20_000,
            "final_epsilon": 0.05,
            "final_exploration_frame": 200_000,
        },
        precision="tf32",
    )

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

    # of learning alone
    adam: bool = False  # in place of RMSProp: far fewer games to the same score
    double: bool = False  # van Hasselt et al., 2016: the network chooses the action that the target network values
    round_frames: int = 320_000  # actions between two evaluations, at most
    graphs: bool = True  # on a GPU, learn by replaying a CUDA graph of a step's updates

    @classmethod
    def taught(cls, data: str | None, options: Mapping[str, Any]) -> Lesson:
        if (game := options.get("game", "pong")) not in ("pong", atari.CATCH):
            raise BadOption(f"the lesson of deepq is Pong: what a good score in {game} would be is not said")
        return super().taught(data, options)

    def __post_init__(self) -> None:
        counts = ("frame_skip", "actions", "filters", "hidden", "update_frequency", "target_every", "round_frames")
        for name in counts:
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
        return atari.make(self.game, self.envs, seed, frame_skip=self.frame_skip, threads=self.emulator_threads)

    def real(self, folder: Path, split: str = "train") -> atari.Environment:
        raise BadOption("deepq reads no data: it plays the games that ale-py carries, so leave --data out")

    def unseen(self, seed: int) -> atari.Environment:
        """The games that quality is judged by, with openings of their own."""
        return atari.make(self.game, JUDGED, seed, frame_skip=self.frame_skip, threads=self.emulator_threads)

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

    def target_value(self, target: nn.Module, batch: Batch, model: nn.Module | None = None) -> Tensor:
        """What an action turned out to be worth: its reward, and what the target network expects after it.

        That is the best that it sees, or where a model is given the action that the model would take.
        """
        values: Tensor = target(batch["next_observation"]).float()
        if model is None:
            expected = values.amax(1)
        else:
            expected = values.gather(1, model(batch["next_observation"]).argmax(1, keepdim=True)).squeeze(1)
        return batch["reward"] + self.discount * expected * ~batch["terminal"]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The paper's clipped error, which is Huber's loss; summed, as RMSProp's 0.01 was chosen for sums."""
        chosen = self.forward(model, batch).float().gather(1, batch["action"][:, None]).squeeze(1)
        return F.huber_loss(chosen, batch["target_value"], reduction="sum")

    def optimizer(self, model: nn.Module) -> Optimizer:
        if self.adam:
            return Adam(model.parameters(), lr=self.learning_rate, eps=STABILISER, fused=True)
        return RMSprop(model.parameters(), lr=self.learning_rate, alpha=0.95, eps=STABILISER, centered=True)

    def epsilon(self, frames: int) -> float:
        """The chance of a random action, falling in a straight line and then constant."""
        done = min(1.0, frames / self.final_exploration_frame)
        return self.initial_epsilon + done * (self.final_epsilon - self.initial_epsilon)

    def begin(self, state: State) -> None:
        """Starts the games; in training, plays at random until there is something to learn from."""
        training = state.optimizer is not None
        agent = state.extra = self._agent(state, state.source, self.capacity if training else STACK * self.envs)
        if training:
            agent.target = state.beside["target"] = deepcopy(state.model).requires_grad_(False)
            for _ in range(self._opening):
                agent.act(None, 1.0)
                agent.observe()

    def remember_anew(self, state: State) -> None:
        """Starts the games again, and plays as it has learnt to until there is as much to learn from as before."""
        agent: Agent = state.extra
        agent.memory.start(agent.environment.reset())
        agent.score = np.zeros_like(agent.score)
        for _ in range(min(self._opening + agent.frames // self.envs, self.capacity // self.envs)):
            agent.act(self.best(state, agent), self.epsilon(agent.frames))
            agent.observe()

    @property
    def _opening(self) -> int:
        """Actions in every game before the first update."""
        return -(-self.learning_starts // self.envs)

    def _agent(self, state: State, environment: atari.Environment, capacity: int) -> Agent:
        """One who begins to play, and has not learnt yet that he is to learn."""
        agent = Agent(
            environment=environment,
            memory=self._memory(state, capacity, environment.envs),
            random=np.random.default_rng(state.seed),
            target=None,
            score=np.zeros(environment.envs, np.float32),
            over=np.zeros(environment.envs, np.bool_),
        )
        agent.memory.start(environment.reset())
        return agent

    def _memory(self, state: State, capacity: int, envs: int) -> ReplayBuffer:
        try:
            return ReplayBuffer(capacity, envs, atari.SIDE, state.device, state.seed)
        except (MemoryError, RuntimeError) as error:  # torch's own out-of-memory error is a RuntimeError
            problem = f"deepq's replay memory of {capacity} frames ({capacity * atari.SIDE**2 / 1e9:.1f} GB)"
            raise DoesNotFit(f"{problem} does not fit on {state.device}; try a smaller capacity") from error

    def train_step(self, state: State) -> Tensor:
        """All games advance by one action while the network learns; gives the mean loss of the updates."""
        batch = self.play(state)
        loss = self.learn(state, batch)
        self.observe(state)
        return loss

    def play(self, state: State) -> Batch:
        """Sets the emulators off and does not wait for them; gives what to learn from meanwhile."""
        agent: Agent = state.extra
        best = self.best(state, agent)
        with phase("data"):
            agent.act(best, self.epsilon(agent.frames))
            return agent.memory.sample(self.batch * self.updates_per_step)

    def best(self, state: State, agent: Agent) -> Tensor:
        """The action that the network values most, in every game."""
        with phase("forward"), torch.no_grad(), state.autocast():
            values: Tensor = state.model(agent.memory.latest())
            return values.argmax(1)

    def learn(self, state: State, batch: Batch) -> Tensor:
        """The updates of one step, each from its part of the batch; gives their mean loss."""
        target = state.extra.target
        assert target is not None, "an inference run cannot train"
        with phase("forward"), torch.no_grad(), state.autocast():  # the target stands still: one pass for all updates
            value = self.target_value(target, batch, state.model if self.double else None)
        parts = self._parts({**batch, "target_value": value})
        return torch.stack([self.update(state, partial(self.loss, state.model, part)) for part in parts]).mean()

    def observe(self, state: State) -> None:
        """Waits for the emulators, and renews the target network when it is due."""
        agent: Agent = state.extra
        assert agent.target is not None, "an inference run cannot train"
        with phase("data"):
            agent.observe()
        agent.frames += self.envs
        copies_due = agent.updates // self.target_every
        agent.updates += self.updates_per_step
        if agent.updates // self.target_every > copies_due:
            agent.target.load_state_dict(state.model.state_dict())

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

    def evaluate(self, state: State, held_out: atari.Environment) -> float:
        state.extra.judged = self.first_games(state, held_out)
        return float(np.mean([score for score, _ in state.extra.judged]))

    def first_games(self, state: State, games: atari.Environment) -> list[tuple[float, int]]:
        """Score and actions of the first game of each environment.

        The first alone: whoever counts what ends first has counted short games too often.
        """
        score = np.full(games.envs, np.nan, np.float32)
        actions = np.full(games.envs, JUDGED_FRAMES // self.frame_skip)
        for done, (agent, points) in enumerate(islice(self._played(state, games), int(actions[0])), 1):
            first = agent.over & np.isnan(score)
            score[first], actions[first] = points[first], done
            if not np.isnan(score).any():
                break
        score = np.where(np.isnan(score), points, score)  # what was won until time was up
        return list(zip(score.tolist(), actions.tolist(), strict=True))

    def _played(self, state: State, games: atari.Environment) -> Iterator[tuple[Agent, NDArray[np.float32]]]:
        """All games from their openings on; gives who plays, and the points of each game after every action."""
        agent = self._agent(state, games, STACK * games.envs)
        while True:
            agent.act(self.best(state, agent), self.infer_epsilon)
            yield agent, agent.observe()

    def artifacts(self, state: State, held_out: atari.Environment) -> list[Artifact]:
        """The score of every game of the last evaluation, and a game's first moments as the network saw them."""
        judged = state.extra.judged
        scores = [score for score, _ in judged]
        title = f"Scores of {len(judged)} games: mean {np.mean(scores):.2f}, standard deviation {np.std(scores):.2f}"
        rows = [[number, score, actions] for number, (score, actions) in enumerate(judged, 1)]
        frames = [agent.memory.latest()[0, -1].cpu().numpy() for agent, _ in islice(self._played(state, held_out), 80)]
        film = atari.tiled_png(np.stack(frames[3::4]), across=10)
        return [
            Artifact(title=title, columns=["game", "score", "actions"], rows=rows),
            Artifact(title="The first of them from its beginning, every fourth action", png=film),
        ]
