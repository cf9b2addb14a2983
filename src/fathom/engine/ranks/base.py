"""Strategy: how ranks divide one training run. It wraps the pieces of an engine; workloads know nothing of it.

A strategy is one file of strategies/, an entry point of group `fathom.strategies`, or `package.module:Class`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from fathom.core import plugins
from fathom.core.errors import BadOption, UnknownName
from fathom.data.base import Batch
from fathom.engine.base import Engine, Loss
from fathom.engine.ranks.drag import Drag
from fathom.engine.ranks.group import Group
from fathom.engine.ranks.timeline import Timeline
from fathom.workloads.base import Output, State, Workload


@dataclass(frozen=True)
class Rank:
    """What a strategy works with on one rank."""

    group: Group
    timeline: Timeline
    drag: Drag


@dataclass(frozen=True, kw_only=True)
class Strategy(ABC):
    """The fields of a subclass ARE its configuration."""

    name: ClassVar[str]
    synchronous: ClassVar[bool] = True  # every rank takes part in every step
    divides: ClassVar[str] = "batch"  # among the ranks; or the network, and then all of them work on the same batch
    same_random: ClassVar[bool] = False  # every rank draws the same random numbers
    whole_weights: ClassVar[bool] = True  # a rank has all of them, so that it can evaluate the network by itself
    checkpointed: ClassVar[bool] = True  # a restarted job resumes from its last checkpoint, and not from the first step

    @classmethod
    def configured(cls, options: Mapping[str, Any]) -> Self:
        """With some fields changed; a wrong name or value is the user's to correct."""
        known = {each.name: each for each in dataclasses.fields(cls)}
        for name, value in options.items():
            if name not in known:
                raise UnknownName.among(f"option of strategy {cls.name}", name, known)
            usual = known[name].default
            fits = isinstance(value, int | float) if type(usual) is float else type(value) is type(usual)
            if not fits or isinstance(value, bool) != isinstance(usual, bool):
                raise BadOption(f"option {name} of strategy {cls.name} is such as {usual!r}, not {value!r}")
        strategy = cls(**options)
        strategy.check()
        return strategy

    def check(self) -> None:
        """Raises where a field has a value that cannot be."""
        return

    def refusal(self, workload: Workload, ranks: int) -> str | None:
        """Why so many ranks cannot run the workload in this way, in words that follow the name; None where they can."""
        return None

    @abstractmethod
    def prepare(self, rank: Rank, workload: Workload, state: State, loss: Loss) -> Parallel:
        """What one run of this rank needs, with the network as it is after set-up."""


class Parallel:
    """The run of a strategy on one rank."""

    def __init__(self, rank: Rank, state: State, loss: Loss) -> None:
        self.rank, self.state = rank, state
        self.loss = loss  # the engine's: its backward pass leaves the gradients that this rank's optimizer applies

    def update(self, engine: Engine, batch: Batch) -> Tensor:
        """One update of the weights; gives the loss of this rank's batch."""
        return engine.update(batch)

    def resume(self, updates: int) -> None:
        """So many updates were made by the processes before a restart."""
        return

    def finish(self) -> None:
        """After the last update of this rank; others may still be at theirs."""
        return

    @property
    def summed(self) -> bool:
        """Whether the losses of the ranks add up to that of the global batch; else it is their mean."""
        return False

    def learnt(self) -> list[Tensor]:
        """The weights that the job has learnt so far, on rank 0; called on every rank, between steps."""
        return [weight.detach().clone() for weight in self.state.weights]

    @property
    def parameters(self) -> int:
        """Of the whole network."""
        return sum(weight.numel() for weight in self.state.weights)

    @property
    def notes(self) -> list[str]:
        """What a reader of its numbers should know."""
        return []


class LossModule(nn.Module):
    """The loss as a module whose child is the network: torch wraps modules."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, batch: Batch) -> Tensor:
        return self._loss(batch)


class RankedEngine(Engine):
    """An engine whose updates are done by a strategy."""

    name: ClassVar = "ranked"

    def __init__(self, inner: Engine, parallel: Parallel) -> None:
        self.state, self.inner, self.parallel = inner.state, inner, parallel

    def update(self, batch: Batch) -> Tensor:
        return self.parallel.update(self.inner, batch)

    def infer(self, batch: Batch) -> Output:
        return self.inner.infer(batch)


def strategy_class(name: str) -> type[Strategy]:
    return plugins.load_class("strategies", name, Strategy)  # type: ignore[type-abstract]


def is_summed(rank: Rank, state: State, loss: Loss, batch: Batch) -> bool:
    """Whether a loss is a sum over the items of the batch, and not a mean: of every item twice, it is twice as large.

    The gradients of ranks are then added up and not averaged. Found out on a batch, without gradients and in evaluation
    mode, so that no workload has to say it. The ranks come to one answer.
    """
    twice = {name: torch.cat([column, column]) for name, column in batch.items()}
    training, random = state.model.training, torch.get_rng_state()
    state.model.eval()
    with torch.no_grad(), state.autocast():
        of_once, of_twice = float(loss(batch).sum()), float(loss(twice).sum())
    state.model.train(training)
    torch.set_rng_state(random)
    return rank.group.largest(abs(of_twice - 2 * of_once) < abs(of_twice - of_once)) > 0
