"""Trainer: one training run, in intervals that each end with an evaluation, and one test at its end.

This one serves every workload that learns from a data set batch by batch; a recipe that does otherwise (many networks
at once, playing a game) names another, of trainers/.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from fathom.core import plugins
from fathom.core.errors import BadOption, first_line
from fathom.core.record import Artifact
from fathom.core.spec import RunSpec
from fathom.data.base import folder_at, notes_of, repeated
from fathom.engine.session import Session
from fathom.workloads.base import State, workload_class
from fathom.workloads.recipe import Recipe

TOLERATED_NONFINITE = 0.01  # of an interval's steps, and one in any case: more often is divergence


@dataclass(frozen=True)
class HeldOut:
    """What a run is evaluated on: validation after every interval, test once. Their kinds are the recipe's own."""

    validation: Any
    test: Any


class Trainer:
    """Trains a session's workload. What state_dict() gives is enough to resume in another process."""

    def __init__(self, session: Session, recipe: Recipe[Any], held_out: HeldOut) -> None:
        self.session, self.recipe, self.held_out = session, recipe, held_out
        self.workload, self.state = session.workload, session.state
        self.evaluations = session.spec.evaluations or recipe.evaluations
        self.steps_done = 0
        assert self.state.optimizer is not None, "training needs an optimizer"
        steps = self.evaluations * self.steps_per_evaluation
        self.schedule = recipe.schedule(self.workload, self.state.optimizer, steps)
        self.guard = FiniteGradients(self.state) if recipe.skips_nonfinite_gradients else None
        self.mean = WeightMean(self.state.model, self.workload.averaging) if self.workload.averaging else None
        self.best: dict[str, Tensor] | None = None  # the weights that did best in validation so far
        self.not_shown: str | None = None  # why the result has no artifacts, where that is an error

    @property
    def steps_per_evaluation(self) -> int:
        return math.ceil((self.recipe.items_per_evaluation or len(self.state.source)) / self.workload.batch)

    @property
    def items_per_step(self) -> int:
        return self.session.items_per_step

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        return sum(weight.numel() for weight in self.state.weights)

    def train(self, on_step: Callable[[int], None]) -> tuple[float, int]:
        """One interval; gives its mean loss and the items it took. on_step() is called with the steps done so far."""
        losses: list[Tensor] = []
        for _ in range(self.steps_per_evaluation):
            losses.append(self.step())
            if self.schedule is not None:
                self.schedule.step()
            self.steps_done += 1
            on_step(self.steps_done)
        return self.mean_loss(losses), self.steps_per_evaluation * self.items_per_step

    def mean_loss(self, losses: Sequence[Tensor]) -> float:
        values = torch.stack(list(losses))
        return float(values.mean()) if self.guard is None else self.guard.mean_of_finite(values)

    def step(self) -> Tensor:
        """One step of the session; gives the loss, still on the device."""
        loss = self.session.train_step()
        if self.mean is not None:
            self.mean.add(self.steps_done)
        return loss

    def validate(self) -> float:
        """The quality of the candidate on the validation split."""
        return self._evaluate(self.held_out.validation)

    def select(self) -> None:
        """Keeps the candidate's weights: no others did better in validation."""
        self.best = {name: value.detach().clone() for name, value in self.candidate().model.state_dict().items()}

    def test(self) -> tuple[float, list[Artifact]]:
        """The result of the selected weights, and what is worth showing of them; training is over after this."""
        if self.best is not None:
            self.candidate().model.load_state_dict(self.best)
        return self._evaluate(self.held_out.test), self.shown(self.artifacts)

    def shown(self, artifacts: Callable[[], list[Artifact]]) -> list[Artifact]:
        """None, with the reason in the notes, where they cannot be made: a result is not lost for want of a picture."""
        try:
            return artifacts()
        except Exception as error:
            self.not_shown = f"no tables or images of the result: {type(error).__name__}: {first_line(error)}"
            return []

    def _evaluate(self, data: Any) -> float:
        candidate = self.candidate()
        candidate.model.eval()
        with torch.inference_mode(), self.state.autocast():
            value = self.recipe.evaluate(self.workload, candidate, data)
        candidate.model.train()
        return value

    def artifacts(self) -> list[Artifact]:
        """Tables and images of the network and its answers to the test split."""
        candidate = self.candidate()
        candidate.model.eval()
        with torch.inference_mode(), self.state.autocast():
            return self.recipe.artifacts(self.workload, candidate, self.held_out.test)

    def candidate(self) -> State:
        """What is evaluated and shown: the network as it is now, or the mean of its weights."""
        return self.state if self.mean is None else replace(self.state, model=self.mean.model)

    def notes(self) -> list[str]:
        """What should be known of how it was trained."""
        skipped = self.guard.skipped if self.guard else 0
        notes = [f"{skipped} update{'s' if skipped > 1 else ''} skipped: non-finite gradients"] if skipped else []
        return notes + ([self.not_shown] if self.not_shown else [])

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and words alone, so that a checkpoint can be read without running anything in it."""
        assert self.state.optimizer is not None
        return {
            "model": self.state.model.state_dict(),
            "optimizer": self.state.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "mean": None if self.mean is None else self.mean.model.state_dict(),
            "best": self.best,
            "steps_done": self.steps_done,
            "skipped": self.guard.skipped if self.guard else 0,
        }

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        assert self.state.optimizer is not None
        self.state.model.load_state_dict(kept["model"])
        self.state.optimizer.load_state_dict(kept["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(kept["schedule"])
        if self.guard is not None:
            self.guard.resume(kept["skipped"])
        if self.mean is not None:
            self.mean.model.load_state_dict(kept["mean"])
        self.best = kept["best"]
        self.steps_done = int(kept["steps_done"])
        if not self.workload.interactive:  # an environment goes on by itself
            state, spec = self.state, self.session.spec
            state.batches = self.workload.feed(state.source, state.device, spec.seed or 0, start=self.steps_done)


class WeightMean:
    """A running mean of a network's weights, which does better than the last of them: their noise is averaged out.

    Statistics of activations are averaged too: those of the last weights do not fit the mean of many.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.network, self.model, self.decay = network, copy.deepcopy(network), decay
        for module in self.model.modules():
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # a copy's weights lie apart, which cuDNN does not like
        self._averaged: list[tuple[Tensor, Tensor]] = []
        self._copied: list[tuple[Tensor, Tensor]] = []  # counters, and masks of -inf: inf - inf is no number

    @torch.no_grad()
    def add(self, steps_done: int) -> None:
        """The network as it is now; a mean over few steps at first, so that the first weights are soon forgotten."""
        if not self._averaged:
            self._gather()
        new = max(1 - self.decay, 9 / (10 + steps_done))
        torch._foreach_lerp_([mean for mean, _ in self._averaged], [value for _, value in self._averaged], new)
        for mean, value in self._copied:
            mean.copy_(value)

    def _gather(self) -> None:
        """Both networks' tensors, each once though it may have two names.

        At the first step and not before: a trainer may still change a network's memory format, which moves its weights.
        """
        own, others = ([*each.parameters(), *each.buffers()] for each in (self.model, self.network))
        for pair in zip(own, others, strict=True):
            averages = pair[0].is_floating_point() and bool(pair[0].isfinite().all())
            (self._averaged if averages else self._copied).append(pair)


class FiniteGradients:
    """Skips updates whose gradients are not finite, as after one of them every weight would be lost; momentum goes on.

    A gradient can overflow on the way back through hundreds of frames, or nineteen layers without normalisation, and
    then no clipping saves it.
    """

    def __init__(self, state: State) -> None:
        assert state.optimizer is not None
        self._weights = state.weights
        self._skipped = torch.zeros((), dtype=torch.long, device=state.device)
        self._before = 0  # this interval
        state.optimizer.register_step_pre_hook(self._zero_nonfinite)

    @property
    def skipped(self) -> int:
        return int(self._skipped)

    def resume(self, skipped: int) -> None:
        self._skipped.fill_(skipped)
        self._before = skipped

    def mean_of_finite(self, losses: Tensor) -> float:
        """The mean loss of the steps that counted; nan where too few did."""
        finite = losses[losses.isfinite()]
        lost = max(len(losses) - len(finite), self.skipped - self._before)
        self._before = self.skipped
        tolerated = lost < len(losses) and lost <= max(1, TOLERATED_NONFINITE * len(losses))
        return float(finite.mean()) if tolerated else float("nan")

    def _zero_nonfinite(self, *_: Any) -> None:
        """Decided on the device, so that the host need not wait."""
        gradients = [weight.grad for weight in self._weights if weight.grad is not None]
        lost = ~get_total_norm(gradients).isfinite()
        for gradient in gradients:
            gradient.masked_fill_(lost, 0)
        self._skipped += lost


def recipe_for(spec: RunSpec) -> Recipe[Any]:
    """The recipe of the spec's workload for its data and options."""
    kind = workload_class(spec.workload)
    if kind.recipe is None:
        raise BadOption(f"{kind.name} has no training recipe")
    folder = None if spec.data is None else folder_at(spec.data, kind.expects)
    return kind.recipe.for_run(folder, spec.options)


def trainer_for(session: Session, recipe: Recipe[Any], held_out: HeldOut) -> Trainer:
    """The trainer that the recipe asks for, or the one for all."""
    kind = Trainer if recipe.trainer is None else plugins.load_class("trainers", recipe.trainer, Trainer)
    return kind(session, recipe, held_out)


def training_split(recipe: Recipe[Any]) -> str:
    """What is trained on: the training data, less what validation takes of it."""
    return "train_subset" if recipe.validated_on == "validation" else "train"


def held_out_for(session: Session, recipe: Recipe[Any]) -> HeldOut:
    """Real data that training has not seen, or synthetic data of other seeds; both are opened before training."""
    spec, workload = session.spec, session.workload
    if spec.data is None:
        return HeldOut(
            *(recipe.synthetic_evaluation_data(workload, _other_seed(spec.seed or 0, each)) for each in (1, 2))
        )
    folder = folder_at(spec.data, workload.expects)
    validation = recipe.evaluation_data(workload, folder, recipe.validated_on)
    return HeldOut(validation, recipe.evaluation_data(workload, folder, recipe.split))


def data_notes(session: Session, held_out: HeldOut, validated_on: str = "validation") -> list[str]:
    """What the readers left out, and how many items of real data are in more than one split."""
    parts = {"validation": held_out.validation, "test": held_out.test}
    notes = [*session.data_notes, *notes_of(parts)]
    if session.spec.data is None:
        return notes
    compared = parts if validated_on == "validation" else {"test": held_out.test}  # the other is the training data
    items = f"{session.workload.item_of(session.spec.phase)}s"
    return notes + repeated({"training": session.state.source, **compared}, items)


def _other_seed(seed: int, number: int) -> int:
    """A seed that no run is likely to have: runs count theirs from 0."""
    return seed + number * 1_000_003
