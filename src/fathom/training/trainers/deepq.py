"""How deepq learns: it plays and learns at once, is judged when it seems ready, and can be taken up again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fathom.data import atari
from fathom.data.base import Batch
from fathom.engine.engines.cudagraph import Recorded
from fathom.engine.session import Session
from fathom.training.trainer import Trainer
from fathom.workloads._player import Agent
from fathom.workloads.deepq import JUDGED, Deepq

PROMISING = 0.5  # points: training games that come so close to the target are reason to look


class DeepqTrainer(Trainer):
    """The step of the workload, with its updates recorded: on a GPU the host launches them as one."""

    workload: Deepq

    def __init__(self, session: Session, held_out: atari.Environment) -> None:
        super().__init__(session, held_out)
        self.agent: Agent = self.state.extra
        assert self.state.optimizer is not None
        assert self.agent.target is not None
        for network in (self.state.model, self.agent.target):
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as tensor cores want it
        self._batch: Batch = {}
        self._learn: Callable[[], Tensor] = lambda: self.workload.learn(self.state, self._batch)
        if self.workload.graphs:
            if self.state.device.type == "cuda":
                for group in self.state.optimizer.param_groups:
                    group["capturable"] = True  # it counts its steps on the GPU, where a recording can count on
            self._learn = Recorded(self._learn, self.state.device)

    @property
    def steps_per_round(self) -> int:
        return -(-self.workload.round_frames // self.workload.envs)

    def train(self, told: Callable[[int], None]) -> tuple[float, int]:
        """One round, broken off when the games just played came close to the target: an evaluation takes seconds."""
        total = torch.zeros((), device=self.state.device)
        before, done = len(self.agent.finished), 0
        while done < self.steps_per_round and not self._promising(self.agent.finished[before:]):
            total += self._step()
            done += 1
            self.steps_done += 1
            told(self.steps_done)
        return float(total) / done, done * self.items_per_step

    def _promising(self, scores: list[float]) -> bool:
        """Not before every emulator may have had its turn: games that end first are not like the others."""
        target = self.lesson.quality.target
        if target is None or len(scores) < max(JUDGED, self.workload.envs):
            return False
        return float(np.mean(scores[-JUDGED:])) >= target - PROMISING

    def _step(self) -> Tensor:
        batch = self.workload.play(self.state)
        if not self._batch:
            self._batch = {name: torch.empty_like(column) for name, column in batch.items()}
        for name, column in batch.items():
            self._batch[name].copy_(column)
        loss = self._learn()
        self.workload.observe(self.state)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Everything, where the games can be kept.

        The emulators cannot, and the memory of what was seen in them would be gigabytes: these are left out.
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
            "judged": agent.judged,
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
        agent.finished, agent.judged = kept["finished"], kept["judged"]
        if isinstance(agent.environment, atari.Checkpointable):
            agent.environment.load_state_dict(kept["games"])
            agent.memory.load_state_dict(kept["memory"])
            agent.score = kept["score"].numpy()
        else:
            self.workload.remember_anew(self.state)
