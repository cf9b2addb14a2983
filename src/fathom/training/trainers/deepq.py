"""How deepq is trained: it plays and learns at once, is evaluated when it seems ready, and can be resumed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fathom.data import atari
from fathom.engine.session import Session
from fathom.training.trainer import HeldOut, Trainer
from fathom.workloads._player import Agent
from fathom.workloads.deepq import EVALUATION_GAMES, Deepq
from fathom.workloads.recipe import Recipe

PROMISING = 0.5  # points: training games that come so close to the score that ends training are reason to evaluate


class DeepqTrainer(Trainer):
    """The session's own steps, in intervals that end early when recent games come close to the stopping score."""

    workload: Deepq

    def __init__(self, session: Session, recipe: Recipe[Any], held_out: HeldOut) -> None:
        super().__init__(session, recipe, held_out)
        self.agent: Agent = self.state.extra
        assert self.agent.target is not None
        if self.state.device.type == "cuda":  # tensor cores want it so; on a CPU a step takes twice as long
            for network in (self.state.model, self.agent.target, self.candidate().model):
                network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def steps_per_evaluation(self) -> int:
        return -(-self.workload.evaluation_frames // self.workload.envs)

    def train(self, on_step: Callable[[int], None]) -> tuple[float, int]:
        """One interval, ended early when the games just played came close to the score that ends training."""
        total = torch.zeros((), device=self.state.device)
        before, done = len(self.agent.finished), 0
        while done < self.steps_per_evaluation and not self._promising(self.agent.finished[before:]):
            total += self.step()
            if self.schedule is not None:
                self.schedule.step()
            done += 1
            self.steps_done += 1
            on_step(self.steps_done)
        return float(total) / done, done * self.items_per_step

    def _promising(self, scores: list[float]) -> bool:
        """Not before every emulator may have had its turn: games that end first are not like the others."""
        enough = self.recipe.stop_at
        if enough is None or len(scores) < max(EVALUATION_GAMES, self.workload.envs):
            return False
        return float(np.mean(scores[-EVALUATION_GAMES:])) >= enough - PROMISING

    def state_dict(self) -> dict[str, Any]:
        """Everything, where the games can be kept.

        The emulators cannot, and the replay buffer of what was seen in them would be gigabytes: these are left out.
        """
        agent = self.agent
        assert agent.target is not None
        games = agent.environment
        return {
            **super().state_dict(),
            "target": agent.target.state_dict(),
            "random": agent.random.bit_generator.state,
            "frames": agent.frames,
            "updates": agent.updates,
            "finished": agent.finished,
            "evaluated": agent.evaluated,
            "score": torch.from_numpy(agent.score),
            "games": games.state_dict() if isinstance(games, atari.Checkpointable) else None,
            "memory": agent.memory.state_dict() if isinstance(games, atari.Checkpointable) else None,
        }

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        super().load_state_dict(kept)
        agent = self.agent
        assert agent.target is not None
        agent.target.load_state_dict(kept["target"])
        agent.random.bit_generator.state = kept["random"]
        agent.frames, agent.updates = kept["frames"], kept["updates"]
        agent.finished, agent.evaluated = kept["finished"], kept["evaluated"]
        if isinstance(agent.environment, atari.Checkpointable):
            agent.environment.load_state_dict(kept["games"])
            agent.memory.load_state_dict(kept["memory"])
            agent.score = kept["score"].numpy()
        else:
            self.workload.refill_memory(self.state)
