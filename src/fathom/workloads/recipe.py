"""Recipe: the quality a workload shall reach on real data, and how it is trained, evaluated and shown to get there."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from fathom.core.record import Artifact

if TYPE_CHECKING:
    from fathom.workloads.base import State, Workload

WorkloadT = TypeVar("WorkloadT", bound="Workload")


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC, Generic[WorkloadT]):
    """The fields are what is trained and how it counts; the methods evaluate a network on its way.

    Training is stopped and weights are selected on a validation split; the test split is evaluated once, at the end.
    Two runs follow the same recipe where its fields are equal, but for `protocol` and `taken`, which are for people.
    """

    metric: str  # "top-1 accuracy"
    unit: str  # "%", "nats", "points"
    target: float | None  # None where no target is known
    better: Literal["higher", "lower"]
    protocol: str  # in words: on what data, counted how, evaluated when
    split: str = "test"  # the result is evaluated on, once
    validated_on: Literal["validation", "train"] = "validation"  # after every interval; "train" holds nothing out
    evaluations: int  # at most; training is cut into intervals, each of which ends with one
    items_per_evaluation: int | None = None  # whatever the batch; None is one epoch
    stop_at: float | None = None  # validation quality that ends training; None trains for all evaluations
    preset: str = "paper"
    options: Mapping[str, Any] = field(default_factory=dict)  # fields of the workload, changed
    precision: str = "fp32"  # on a GPU; a CPU trains in fp32
    engine: str = "eager"  # on a GPU; a CPU trains with eager
    trainer: str | None = None  # which of training/trainers, where not batch by batch
    skips_nonfinite_gradients: bool = False  # for networks that now and then have some
    taken: str = ""  # what follows from the data at hand, for people
    variants: Mapping[str, Recipe[Any]] = field(default_factory=dict)  # another recipe, where the option so named is on

    def reached(self, quality: float) -> bool | None:
        """None without a target."""
        return None if self.target is None else self.at_least(quality, self.target)

    def at_least(self, quality: float, other: float) -> bool:
        """Whether one quality is as good as another."""
        return quality >= other if self.better == "higher" else quality <= other

    @property
    def selects_best(self) -> bool:
        """Whether the best weights on the validation split are tested; without that split it is the last ones."""
        return self.validated_on == "validation"

    @property
    def id(self) -> str:
        """Twelve hex digits that are the same for equal recipes."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        identity = {name: value for name, value in fields.items() if name not in ("protocol", "taken", "variants")}
        text = json.dumps({"class": type(self).__name__, **identity}, sort_keys=True, default=dict)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def for_run(self, folder: Path | None, options: Mapping[str, Any]) -> Recipe[Any]:
        """This recipe, or the one that this data and these options ask for; no folder is synthetic data."""
        return next((recipe for option, recipe in self.variants.items() if options.get(option)), self)

    def without_target(self, known_for: str) -> Self:
        """For other data than the target is known for: nobody has told what is good there."""
        if self.target is None:
            return self
        told = f"no target: that of {self.target:g} {self.unit} is for {known_for}"
        return dataclasses.replace(self, target=None, taken=told)

    def schedule(self, workload: WorkloadT, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        """How the learning rate changes over so many steps; None where it does not."""
        return None

    def evaluation_data(self, workload: WorkloadT, folder: Path, split: str) -> Any:
        """The validation or the test split, which training has not seen."""
        return workload.open(folder, split)

    def synthetic_evaluation_data(self, workload: WorkloadT, seed: int) -> Any:
        """The same where there is no folder: synthetic data of a seed that neither training nor the other has."""
        return workload.synthetic(seed)

    @abstractmethod
    def evaluate(self, workload: WorkloadT, state: State, data: Any) -> float:
        """The quality; the network is in evaluation mode and no gradient is kept."""

    def artifacts(self, workload: WorkloadT, state: State, data: Any) -> list[Artifact]:
        """Tables and images of what was learnt, for the report."""
        return []


def warmup_cosine(optimizer: Optimizer, steps: int, warmup_steps: float) -> LambdaLR:
    """A learning rate with linear warm-up, and cosine decay to zero over all steps."""

    def share(step: int) -> float:
        return min((step + 1) / warmup_steps, 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / steps)))

    return LambdaLR(optimizer, share)
