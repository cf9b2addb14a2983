"""Workload: the interface that every reference workload fills in: model, data, loss, inference, optimizer and facts.

A workload is frozen configuration plus single-device maths; it knows nothing of steps, timing, profiling, training
protocols or processes. What changes while it runs lives in a State, which the session makes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fathom.core import plugins
from fathom.core.errors import BadOption, UnknownName
from fathom.data.base import Batch, Dataset, feed, part_of_training, reader_for
from fathom.workloads.catalogue import SUITE, check_option, option_facts
from fathom.workloads.recipe import Recipe

Output = dict[str, Tensor]
Result = TypeVar("Result")


def workload_class(name: str) -> type[Workload]:
    """The workload of this name: a file of this folder, an entry point, or `package.module:Class`."""
    return plugins.load_class("workloads", name, Workload)  # type: ignore[type-abstract]


@dataclass
class State:
    """What one run of a workload holds and changes."""

    model: nn.Module
    device: torch.device
    source: Any  # what synthetic() or real() gave: a Dataset, or for deepq the emulators
    batches: Iterator[Batch]
    optimizer: Optimizer | None  # None in inference
    autocast: Callable[[], AbstractContextManager[Any]]  # the precision of the forward pass
    seed: int = 0
    extra: Any = None  # what begin() adds, e.g. deepq's replay buffer
    beside: dict[str, nn.Module] = field(default_factory=dict)  # networks that run beside the model: deepq's target
    weights: list[nn.Parameter] = field(init=False)  # the model's, gathered once: a step asks for them twice

    def __post_init__(self) -> None:
        self.weights = list(self.model.parameters())

    def forward(self, work: Callable[[], Result]) -> Result:
        """A pass without gradients beside the step's own; the session replaces this by its engine's."""
        with torch.no_grad(), self.autocast():
            return work()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a published network before it runs; counts are of preset small, and a test counts them again."""

    year: int
    paper: str
    style: str  # as in Table II of the 2016 paper, as are layers, task and dataset
    layers: int
    task: str
    dataset: str
    parameters: int
    macs_per_item: int  # forward
    train_flop_per_item: int  # forward and backward
    cookbook: str | None = None  # its name in the Cookbook's tables of models, where it is there
    cookbook_biases: int = 0  # that the Cookbook's network has and the published one has not


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """The fields of a subclass ARE its configuration; the class attributes are facts about it."""

    name: ClassVar[str]
    facts: ClassVar[Facts | None] = None  # of the published network; None where there is none
    item: ClassVar[str] = "item"  # what one row of a batch is: "image", "sentence pair", ...
    infer_item: ClassVar[str | None] = None  # the same of inference, where it is something else
    expects: ClassVar[str] = "nothing: this workload brings its own data"  # what a --data folder must hold
    suites: ClassVar[tuple[str, ...]] = (SUITE,)  # that it belongs to: `fathom list --suite NAME`
    interactive: ClassVar[bool] = False  # it acts in an environment, which is no synthetic stand-in for real data
    sweeps_threads: ClassVar[bool] = False  # the study runs it at 1, 2, 4, ... threads, as the paper's Fig. 6 does
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"small": {}}  # tiny, small (the full network) and paper
    recipe: ClassVar[Recipe[Any] | None] = None  # what it shall reach on real data
    renamed: ClassVar[Mapping[str, str]] = {}  # options that had another name up to the last release: old -> new
    algorithms: ClassVar[int] = 10  # that cuDNN may try for each convolution, in the order of its own guesses

    batch: int
    clip_norm: float | None = None  # rescale gradients whose global norm is larger
    averaging: float = 0.0  # in training to a target, how much of the weights' running mean stays at each step

    @classmethod
    def configured(cls, preset: str, **changes: Any) -> Self:
        """The preset with some fields changed; a wrong name or value is the user's to correct."""
        if preset not in cls.presets:
            raise UnknownName.among("preset", preset, cls.presets)
        described = option_facts(cls)
        for name, value in changes.items():
            check_option(described, name, value)
        changes = {cls.renamed.get(name, name): value for name, value in changes.items()}
        workload = cls(**{**cls.presets[preset], **changes})
        if workload.batch < 1:
            raise BadOption(f"batch must be at least 1, not {workload.batch}")
        if not 0 <= workload.averaging < 1:
            problem = f"must be at least 0 and less than 1, not {workload.averaging}"
            raise BadOption(f"option averaging of {cls.name} {problem}")
        return workload

    @abstractmethod
    def model(self) -> nn.Module:
        """The network, initialised as its paper says."""

    @abstractmethod
    def synthetic(self, seed: int) -> Any:
        """A learnable stand-in for the real data: same names, types and shapes."""

    @abstractmethod
    def real(self, folder: Path, split: str = "train") -> Any:
        """A split (of data.base.SPLITS) of the real data in its owner's format."""

    def open(self, folder: Path, split: str = "train") -> Any:
        """real(), or what an installed reader makes of a folder that it recognises."""
        reader = reader_for(self.name, folder)
        if reader is None:
            return self.real(folder, split)
        return part_of_training(partial(reader.read, self, folder), split)

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """The network's predictions for a batch, differentiable; what the cost of the network is counted on."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The training loss of the paper, a scalar."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> Optimizer:
        """The optimizer of the paper."""

    @abstractmethod
    def infer(self, model: nn.Module, batch: Batch) -> Output:
        """What a user would want of a batch: classes, a reconstruction, a sentence, ..."""

    @abstractmethod
    def answers(self, output: Output, source: Any) -> list[str]:
        """The output of infer() in words, one line per item."""

    def fit(self, source: Any) -> Self:
        """This configuration adapted to the data (a vocabulary's size, say)."""
        return self

    @property
    def synthetic_name(self) -> str:
        """What synthetic() gives, in a word or two; an environment has a name of its own."""
        return "synthetic data"

    def item_of(self, phase: str) -> str:
        """What one item is in this phase."""
        return self.infer_item or self.item if phase == "infer" else self.item

    def example(self, seed: int = 0) -> Batch:
        """One synthetic batch on the CPU."""
        dataset: Dataset = self.synthetic(seed)
        return dataset[[index % len(dataset) for index in range(self.batch)]]

    def shaped(self, items: int) -> Any:
        """A batch of so many items on the meta device: names, types and shapes, and no data."""
        few = min(items, 2)
        columns = _shapes(replace(self, batch=few)).items()
        sizes = {name: (items if len(column) == few else len(column), *column.shape[1:]) for name, column in columns}
        return {name: column.new_empty(sizes[name]) for name, column in columns}

    def kept_bytes(self, phase: str) -> int:
        """Device memory that a run keeps beside its network, its optimizer and its batch: deepq's replay buffer."""
        return 0

    def feed(self, source: Any, device: torch.device, seed: int, start: int = 0) -> Iterator[Batch]:
        """Batches on the device, for ever, from batch number start on."""
        return feed(source, self.batch, device, seed, start)

    def begin(self, state: State) -> None:
        """Called once before the first step; may fill state.extra."""
        return

    def items_per_step(self, phase: str) -> int:
        return self.batch

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates in one training step; each takes one batch."""
        return 1

    def passes_beside(self) -> tuple[int, ...]:
        """Items of each pass without gradients that a training step makes beside its updates: an agent's actions."""
        return ()

    def augment(self, batch: Batch) -> Batch:
        """A training batch, randomly changed on the device; inference and evaluation see it as it is."""
        return batch

    def interact(self, state: State, output: Output | None) -> Output | None:
        """What the environment does after a step, with what inference gave (None in training): emulators play on."""
        return output


_SHAPES: dict[str, Batch] = {}


def _shapes(workload: Workload) -> Batch:
    """An example on the meta device, made once for each configuration: its data may take a second to make."""
    key = f"{type(workload)} {workload}"
    if key not in _SHAPES:
        _SHAPES[key] = {name: column.to("meta") for name, column in workload.example().items()}
    return _SHAPES[key]
