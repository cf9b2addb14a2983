"""deepq: the deep Q-network of Mnih et al. (Nature 2015), which learns Atari games from their frames and scores.

Harvard's 2016 code acted on every frame, learned from stacks that crossed the ends of games and could not see a
negative value; this is the agent of the paper. Two things differ from it. Many games are played at once, so that the
emulators' threads and the trainer keep each other busy: there is still one update for four actions, but with n games
these come as n / 4 updates between two actions. And torch's RMSProp divides by sqrt(E[g^2] - E[g]^2) + 0.01, where the
authors' code has sqrt(E[g^2] - E[g]^2 + 0.01): their steps are up to ten times smaller where gradients are small.

The recipe is Pong. What it changes of the paper's settings is in its options and said in its protocol.
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
from torch.optim.lr_scheduler import LambdaLR

from fathom.core.errors import BadOption, DoesNotFit
from fathom.core.record import Artifact
from fathom.data import atari
from fathom.data.base import Batch
from fathom.workloads._player import Agent, QNetwork
from fathom.workloads._replay import STACK, ReplayBuffer
from fathom.workloads.base import Facts, Output, State, Workload
from fathom.workloads.recipe import Recipe

EVALUATION_GAMES = 30  # games of one evaluation
EVALUATION_GAME_FRAMES = 18_000  # of the emulator, for each of them: five minutes of play
PROTOCOL = """\
the mean score of 30 games in the emulator, as the 2015 paper plays them: up to 30 no-ops first, one action in 20 at \
random, five minutes at most; they are played at once, the first of each emulator counts. A mean of the weights \
plays the same 30 openings in validation after every 160,000 actions, or earlier, when 64 training games have ended \
since and the last 30 came within half a point of 20; the first validation that reaches 20 ends training, and the \
best weights then play 30 games with other openings once, which is the result. Trained with the paper's algorithm, \
network and preparation, but with double Q-learning, Adam for RMSProp at a rate that falls to nothing in the second \
half, a batch of 64 every 2 actions for 32 every 4, a target network renewed every 1,000 updates for 10,000, three \
rewards summed before its value for one, a replay buffer of 200,000 frames for a million, and exploration that falls \
to 0.05 in 200,000 actions for 0.1 in a million; 64 games are played at once"""
STABILISER = 0.01  # keeps the optimizer's steps small where gradients are; chosen for sums over a batch


@dataclass(frozen=True, kw_only=True)
class PongRecipe(Recipe["Deepq"]):
    """The mean score of games played to their end."""

    def for_run(self, folder: Path | None, options: Mapping[str, Any]) -> PongRecipe:
        if (game := options.get("game", "pong")) not in ("pong", atari.CATCH):
            raise BadOption(f"the recipe of deepq is Pong: no target score is known for {game}")
        if game == atari.CATCH:  # a game of a few frames, for trying
            return replace(self, metric=f"score in {game}", target=None)
        return self

    def schedule(self, workload: Deepq, optimizer: Optimizer, steps: int) -> LambdaLR:
        """Constant for a half of training, then falling to nothing: at a constant rate a good policy is lost again."""
        return LambdaLR(optimizer, lambda step: min(1.0, 2 * (1 - min(1.0, step / steps))))

    def synthetic_evaluation_data(self, workload: Deepq, seed: int) -> atari.Environment:
        """The games that quality is evaluated by, with openings of their own."""
        return atari.make(
            workload.game, EVALUATION_GAMES, seed, frame_skip=workload.frame_skip, threads=workload.emulator_threads
        )

    def evaluate(self, workload: Deepq, state: State, data: atari.Environment) -> float:
        state.extra.evaluated = workload.first_games(state, data)
        return float(np.mean([score for score, _ in state.extra.evaluated]))

    def artifacts(self, workload: Deepq, state: State, data: atari.Environment) -> list[Artifact]:
        """The score of every game of the last evaluation, and a game's first frames as the network saw them."""
        games = state.extra.evaluated
        scores = [score for score, _ in games]
        title = f"Scores of {len(games)} games: mean {np.mean(scores):.2f}, standard deviation {np.std(scores):.2f}"
        rows = [[number, score, actions] for number, (score, actions) in enumerate(games, 1)]
        frames = [agent.memory.latest()[0, -1].cpu().numpy() for agent, _ in islice(workload.played(state, data), 80)]
        film = atari.tiled_png(np.stack(frames[3::4]), across=10)
        return [
            Artifact(title=title, columns=["game", "score", "actions"], rows=rows),
            Artifact(title="A game from its beginning, every fourth action", png=film),
        ]


@dataclass(frozen=True, kw_only=True)
class Deepq(Workload):
    name: ClassVar = "deepq"
    facts: ClassVar = Facts(
        year=2015,
        paper="Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015",
        style="Convolutional, Full",
        layers=5,
        task="Reinforcement",
        dataset="Atari ALE",
        parameters=1_686_180,
        macs_per_item=9_345_024,
        train_flop_per_item=49_516_544,
    )
    item: ClassVar = "transition"
    infer_item: ClassVar = "action"
    expects: ClassVar = atari.EXPECTS
    interactive: ClassVar = True
    sweeps_threads: ClassVar = True
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
            "evaluation_frames": 4_000,
        },
        "small": {"batch": 32, "envs": 4, "capacity": 20_000, "learning_starts": 1_000},
        # 32 games keep 16 cores at work, and the batch and the ratio of updates to actions stay those of the paper
        "paper": {"batch": 32, "envs": 32, "capacity": 1_000_000, "learning_starts": 50_000},
    }

    recipe: ClassVar = PongRecipe(
        metric="score in Pong",
        unit="points",
        target=18.9,
        better="higher",
        protocol=PROTOCOL,
        evaluations=10,
        stop_at=20.0,  # thirty games tell a score to 0.3 points: the test shall not be lost by that
        trainer="deepq",  # it plays while it learns
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
            "evaluation_frames": 160_000,
            "averaging": 0.999,
            "return_steps": 3,
            "double": True,  # without it, one of three seeds ended below the target
        },
        precision="tf32",
        engine="cudagraph",
    )

    renamed: ClassVar = {"round_frames": "evaluation_frames"}
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
    return_steps: int = 1  # rewards that are summed before the target network's value: the paper's is 1
    learning_rate: float = 2.5e-4
    initial_epsilon: float = 1.0
    final_epsilon: float = 0.1
    final_exploration_frame: int = 1_000_000
    infer_epsilon: float = 0.05

    # of training to a target alone
    adam: bool = False  # in place of RMSProp: far fewer games to the same score
    double: bool = False  # van Hasselt et al., 2016: the network chooses the action that the target network values
    evaluation_frames: int = 320_000  # actions between two evaluations, at most

    def __post_init__(self) -> None:
        sizes = ("frame_skip", "actions", "filters", "hidden", "update_frequency", "target_every", "evaluation_frames")
        for name in (*sizes, "return_steps"):
            if getattr(self, name) < 1:
                raise BadOption(f"{name} of deepq must be at least 1, not {getattr(self, name)}")
        if self.envs < 1 or self.envs % self.update_frequency:
            raise BadOption(f"envs of deepq must be a multiple of {self.update_frequency}, not {self.envs}")
        if not self.envs <= self.learning_starts <= self.capacity:
            raise BadOption(f"learning_starts of deepq must be between envs and capacity, not {self.learning_starts}")
        if self.capacity < 10 * self.envs:
            raise BadOption(f"capacity of deepq must be at least ten frames a game, not {self.capacity}")
        if self.capacity // self.envs < STACK + 2 * self.return_steps:
            least = (STACK + 2 * self.return_steps) * self.envs
            raise BadOption(f"capacity of deepq must be at least {least} for {self.return_steps} return_steps")
        if self._opening < self.return_steps:
            least = self.return_steps * self.envs
            raise BadOption(f"learning_starts of deepq must be at least {least} for {self.return_steps} return_steps")

    @property
    def synthetic_name(self) -> str:
        return self.game

    @property
    def updates_per_step(self) -> int:
        return self.envs // self.update_frequency

    @property
    def frames_per_step(self) -> int:
        """Frames the emulators play in one step, of training or inference."""
        return self.envs * self.frame_skip

    def items_per_step(self, phase: str) -> int:
        return self.batch * self.updates_per_step if phase == "train" else self.envs

    def passes_beside(self) -> tuple[int, ...]:
        """The games' next actions, and the values of what came of earlier ones: in double learning by both networks."""
        valued = self.batch * self.updates_per_step
        return (self.envs, valued, valued) if self.double else (self.envs, valued)

    def model(self) -> QNetwork:
        return QNetwork(self.actions, self.filters, self.hidden)

    def synthetic(self, seed: int) -> atari.Environment:
        """The real emulator: there is no better source of its frames."""
        return atari.make(self.game, self.envs, seed, frame_skip=self.frame_skip, threads=self.emulator_threads)

    def real(self, folder: Path, split: str = "train") -> atari.Environment:
        raise BadOption("deepq reads no data: it plays the games that ale-py carries, so leave --data out")

    def fit(self, source: atari.Environment) -> Self:
        return replace(self, actions=len(source.actions))

    def kept_bytes(self, phase: str) -> int:
        """The replay buffer, a byte a pixel and five floats a frame; in training also the target network."""
        if phase == "infer":
            return 0
        with torch.device("meta"):
            target = sum(weight.nbytes for weight in self.model().parameters())
        return self.capacity * (atari.SIDE**2 + 5 * 4) + target

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
        """Nothing: begin() makes the batches, which come from the agent's own replay buffer."""
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
        return batch["reward"] + self.discount**self.return_steps * expected * ~batch["terminal"]

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
        state.batches = self._observations(state)
        capacity, steps = (self.capacity, self.return_steps) if training else (STACK * self.envs, 1)
        agent = state.extra = self._agent(state, state.source, capacity, steps)
        if training:
            agent.target = state.beside["target"] = deepcopy(state.model).requires_grad_(False)
            state.batches = self._transitions(state)
            for _ in range(self._opening):
                agent.act(None, 1.0)
                agent.observe()

    def refill_memory(self, state: State) -> None:
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

    def _agent(self, state: State, environment: atari.Environment, capacity: int, steps: int = 1) -> Agent:
        """One that begins to play, without a target network; its memory gives transitions of so many steps."""
        agent = Agent(
            environment=environment,
            memory=self._memory(state, capacity, environment.envs, steps),
            random=np.random.default_rng(state.seed),
            target=None,
            score=np.zeros(environment.envs, np.float32),
            over=np.zeros(environment.envs, np.bool_),
        )
        agent.memory.start(environment.reset())
        return agent

    def _memory(self, state: State, capacity: int, envs: int, steps: int) -> ReplayBuffer:
        try:
            side, device, seed = atari.SIDE, state.device, state.seed
            return ReplayBuffer(capacity, envs, side, device, seed, steps=steps, discount=self.discount)
        except (MemoryError, RuntimeError) as error:  # torch's own out-of-memory error is a RuntimeError
            problem = f"deepq's replay memory of {capacity} frames ({capacity * atari.SIDE**2 / 1e9:.1f} GB)"
            raise DoesNotFit(f"{problem} does not fit on {state.device}; try a smaller capacity") from error

    def _transitions(self, state: State) -> Iterator[Batch]:
        """Batches to learn from, for ever: before those of each step the emulators are set off, and not waited for."""
        agent: Agent = state.extra
        target = agent.target
        assert target is not None, "an inference run cannot train"
        while True:
            agent.act(self.best(state, agent), self.epsilon(agent.frames))
            batch = agent.memory.sample(self.batch * self.updates_per_step)
            other = state.model if self.double else None
            # the target network stands still: one pass for all updates
            value = state.forward(partial(self.target_value, target, batch, other))
            # only what loss() reads: an engine with inputs of its own copies every column, for every update
            learnt = {"observation": batch["observation"], "action": batch["action"], "target_value": value}
            yield from self._parts(learnt)

    def _observations(self, state: State) -> Iterator[Batch]:
        """What inference sees: the latest frames of every game."""
        while True:
            yield {"observation": state.extra.memory.latest()}

    def best(self, state: State, agent: Agent) -> Tensor:
        """The action that the network values most, in every game."""
        values: Tensor = state.forward(lambda: state.model(agent.memory.latest()))
        return values.argmax(1)

    def interact(self, state: State, output: Output | None) -> Output | None:
        """In training, waits for the emulators and renews the target network when it is due.

        In inference, plays an action in every game, nearly always the best; gives it, its value and the score after.
        """
        agent: Agent = state.extra
        if output is not None:
            done = agent.act(output["action"], self.infer_epsilon)
            score = agent.observe()
            return {"action": torch.from_numpy(done), "value": output["value"], "score": torch.from_numpy(score)}
        assert agent.target is not None, "an inference run cannot train"
        agent.observe()
        agent.frames += self.envs
        copies_due = agent.updates // self.target_every
        agent.updates += self.updates_per_step
        if agent.updates // self.target_every > copies_due:
            agent.target.load_state_dict(state.model.state_dict())
        return None

    def _parts(self, batch: Batch) -> list[Batch]:
        columns = zip(*(column.chunk(self.updates_per_step) for column in batch.values()), strict=True)
        return [dict(zip(batch, part, strict=True)) for part in columns]

    def infer(self, model: nn.Module, batch: Batch) -> Output:
        """The best action and its value."""
        value, action = self.forward(model, batch).float().max(1)
        return {"action": action, "value": value}

    def answers(self, output: Output, source: atari.Environment) -> list[str]:
        """Each game's action by its name, the value the network saw in the position, and the points so far."""
        actions, values = output["action"].tolist(), output["value"].tolist()
        words = [f"{source.actions[action]}, value {value:.3f}" for action, value in zip(actions, values, strict=True)]
        if "score" in output:
            return [f"{word}, score {score:g}" for word, score in zip(words, output["score"].tolist(), strict=True)]
        return words

    def first_games(self, state: State, games: atari.Environment) -> list[tuple[float, int]]:
        """Score and actions of the first game of each environment.

        The first alone: whoever counts what ends first has counted short games too often.
        """
        score = np.full(games.envs, np.nan, np.float32)
        actions = np.full(games.envs, EVALUATION_GAME_FRAMES // self.frame_skip)
        for done, (agent, points) in enumerate(islice(self.played(state, games), int(actions[0])), 1):
            first = agent.over & np.isnan(score)
            score[first], actions[first] = points[first], done
            if not np.isnan(score).any():
                break
        score = np.where(np.isnan(score), points, score)  # what was won until time was up
        return list(zip(score.tolist(), actions.tolist(), strict=True))

    def played(self, state: State, games: atari.Environment) -> Iterator[tuple[Agent, NDArray[np.float32]]]:
        """All games from their openings on; gives who plays, and the points of each game after every action."""
        agent = self._agent(state, games, STACK * games.envs)
        while True:
            agent.act(self.best(state, agent), self.infer_epsilon)
            yield agent, agent.observe()
