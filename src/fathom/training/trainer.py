"""Trainer: one run of learning, in rounds of training with a look at held-out data after each.

This one serves every workload that learns from a data set batch by batch; one that does otherwise (many starts at
once, playing a game) names another, of learners/.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fathom.core import plugins
from fathom.core.record import Artifact
from fathom.engine.session import Session
from fathom.workloads.base import State, workload_class
from fathom.workloads.recipe import Lesson


class Trainer:
    """Trains a session's workload. What state_dict() gives is enough to go on in another process."""

    def __init__(self, session: Session, held_out: Any) -> None:
        self.session, self.held_out = session, held_out
        self.workload, self.state = session.workload, session.state
        self.lesson: Lesson = self.workload.taught(session.spec.data, session.spec.options)
        self.rounds = session.spec.evaluations or self.lesson.rounds
        self.steps_done = 0
        assert self.state.optimizer is not None, "learning is training"
        self.schedule = self.workload.schedule(self.state.optimizer, self.rounds * self.steps_per_round)

    @property
    def steps_per_round(self) -> int:
        return math.ceil((self.lesson.items or len(self.state.source)) / self.workload.batch)

    @property
    def items_per_step(self) -> int:
        return self.session.items_per_step

    @property
    def parameters(self) -> int:
        """Weights that are learnt."""
        return sum(weight.numel() for weight in self.state.weights)

    def train(self, told: Callable[[int], None]) -> tuple[float, int]:
        """One round; gives its mean loss and the items it took. told() hears of every step done so far."""
        losses: list[Tensor] = []
        for _ in range(self.steps_per_round):
            losses.append(self.step())
            if self.schedule is not None:
                self.schedule.step()
            self.steps_done += 1
            told(self.steps_done)
        return self.mean_loss(losses), self.steps_per_round * self.items_per_step

    def mean_loss(self, losses: Sequence[Tensor]) -> float:
        return float(torch.stack(list(losses)).mean())

    def step(self) -> Tensor:
        """One update; gives the loss, still on the device."""
        return self.workload.train_step(self.state)

    def evaluate(self) -> float:
        """The quality on held-out data."""
        candidate = self.candidate()
        candidate.model.eval()
        with torch.inference_mode(), self.state.autocast():
            value = self.workload.evaluate(candidate, self.held_out)
        candidate.model.train()
        return value

    def artifacts(self) -> list[Artifact]:
        """What is worth showing of the network that has learnt: tables and pictures."""
        candidate = self.candidate()
        candidate.model.eval()
        with torch.inference_mode(), self.state.autocast():
            return self.workload.artifacts(candidate, self.held_out)

    def candidate(self) -> State:
        """What is judged and shown: the network as it is now."""
        return self.state

    def notes(self) -> list[str]:
        """What should be known of how it was learnt."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and words alone, so that a checkpoint can be read without running anything in it."""
        assert self.state.optimizer is not None
        return {
            "model": self.state.model.state_dict(),
            "optimizer": self.state.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "steps_done": self.steps_done,
        }

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        assert self.state.optimizer is not None
        self.state.model.load_state_dict(kept["model"])
        self.state.optimizer.load_state_dict(kept["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(kept["schedule"])
        self.steps_done = int(kept["steps_done"])
        state, spec = self.state, self.session.spec
        state.batches = self.workload.feed(state.source, state.device, spec.seed, start=self.steps_done)


def trainer_class(name: str) -> type[Trainer]:
    """The trainer that the workload of this name asks for, or the one for all."""
    wanted = workload_class(name).trainer
    return Trainer if wanted is None else plugins.load_class("trainers", wanted, Trainer)
