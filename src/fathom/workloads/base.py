"""Workload: the interface that every reference workload fills in, and the step that most of them share.

A workload is frozen configuration plus facts; it knows nothing of timing, profiling, arguments or processes.
What changes while it runs lives in a State, which the session makes and hands to every step.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.autograd import profiler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.profiler import record_function

from fathom.core import plugins
from fathom.core.errors import BadOption, UnknownName
from fathom.core.record import Artifact
from fathom.data.base import Batch, Dataset, feed, folder_at
from fathom.workloads.recipe import Lesson

Output = dict[str, Tensor]


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
    extra: Any = None  # what begin() adds, e.g. deepq's replay memory
    beside: dict[str, nn.Module] = field(default_factory=dict)  # networks that run beside the model: deepq's target
    weights: list[nn.Parameter] = field(init=False)  # the model's, gathered once: a step asks for them twice

    def __post_init__(self) -> None:
        self.weights = list(self.model.parameters())


class _NoMark(AbstractContextManager[Any]):
    """Does nothing, and in C: formatting nothing takes any arguments and gives what is false, without a Python frame.

    Steps enter four of these, and some steps take two milliseconds.
    """

    __enter__ = __exit__ = staticmethod("".format)  # type: ignore[assignment]


_NO_MARK = _NoMark()


def phase(name: str) -> AbstractContextManager[Any]:
    """Marks data, forward, backward or optimizer work for a profiler; next to nothing when none is listening."""
    return record_function(f"fathom.{name}") if profiler._is_profiler_enabled else _NO_MARK


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """The fields of a subclass ARE its configuration; the class attributes are facts about it."""

    name: ClassVar[str]
    year: ClassVar[int]
    paper: ClassVar[str]
    style: ClassVar[str]
    layers: ClassVar[int]
    task: ClassVar[str]
    dataset: ClassVar[str]
    item: ClassVar[str]  # what one row of a batch is: "image", "sentence pair", ...
    expects: ClassVar[str]  # what a --data folder must hold, for the error that says it does not
    plays: ClassVar[bool] = False  # with a real emulator: what it sees without a folder is nothing invented
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]  # tiny, small (the full network) and paper
    lesson: ClassVar[Lesson | None] = None  # what it shall learn from real data, and how that is judged
    trainer: ClassVar[str | None] = None  # which of learners/ it learns by, where not as most do
    algorithms: ClassVar[int] = 10  # that cuDNN may try for each convolution, in the order of its own guesses

    batch: int
    clip_norm: float | None = None  # rescale gradients whose global norm is larger

    @classmethod
    def configured(cls, preset: str, **changes: Any) -> Self:
        """The preset with some fields changed; a wrong name or value is the user's to correct."""
        if preset not in cls.presets:
            raise UnknownName.among("preset", preset, cls.presets)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in changes.items():
            if name not in fields:
                raise UnknownName.among(f"option of {cls.name}", name, fields)
            _check_type(cls.name, name, value, str(fields[name].type))
        workload = cls(**{**cls.presets[preset], **changes})
        if workload.batch < 1:
            raise BadOption(f"batch must be at least 1, not {workload.batch}")
        return workload

    @classmethod
    def taught(cls, data: str | None, options: Mapping[str, Any]) -> Lesson:
        """The lesson that this data and these options make."""
        lesson = cls.lesson if data is None else cls.lesson_from(folder_at(data, cls.expects))
        if lesson is None:
            raise BadOption(f"{cls.name} has no lesson to learn yet")
        return lesson.given(options)

    @classmethod
    def lesson_from(cls, folder: Path) -> Lesson | None:
        """What the data in a folder teaches: the same in any folder, unless a workload reads several corpora."""
        return cls.lesson

    @abstractmethod
    def model(self) -> nn.Module:
        """The network, initialised as its paper says."""

    @abstractmethod
    def synthetic(self, seed: int) -> Any:
        """A learnable stand-in for the real data: same names, types and shapes."""

    @abstractmethod
    def real(self, folder: Path, split: str = "train") -> Any:
        """The real data in its owner's format."""

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

    def example(self, seed: int = 0) -> Batch:
        """One synthetic batch on the CPU."""
        dataset: Dataset = self.synthetic(seed)
        return dataset[[index % len(dataset) for index in range(self.batch)]]

    def feed(self, source: Any, device: torch.device, seed: int, start: int = 0) -> Iterator[Batch]:
        """Batches on the device, for ever, from batch number start on."""
        return feed(source, self.batch, device, seed, start)

    def begin(self, state: State) -> None:
        """Called once before the first step; may fill state.extra."""
        return

    def items_per_step(self, phase: str) -> int:
        return self.batch

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler | None:
        """How the learning rate changes over so many steps of learning; None where it does not."""
        return None

    def held_out(self, folder: Path) -> Any:
        """The data that quality is judged on, which training has not seen."""
        return self.real(folder, "test")

    def unseen(self, seed: int) -> Any:
        """The same where there is no folder: synthetic data of a seed that training has not seen."""
        return self.synthetic(seed)

    def evaluate(self, state: State, held_out: Any) -> float:
        """The quality of the lesson; the network is in evaluation mode and no gradient is kept."""
        raise NotImplementedError(f"{self.name} does not say how it is judged")

    def artifacts(self, state: State, held_out: Any) -> list[Artifact]:
        """Tables and pictures of what was learnt, for the report."""
        return []

    def train_step(self, state: State) -> Tensor:
        """One update; gives the loss, still on the device."""
        with phase("data"):
            batch = next(state.batches)
        return self.update(state, lambda: self.loss(state.model, batch))

    def update(self, state: State, loss_of: Callable[[], Tensor]) -> Tensor:
        """Forward, backward, clip, apply."""
        assert state.optimizer is not None, "an inference run cannot train"
        for weight in state.weights:
            weight.grad = None  # optimizer.zero_grad() would ask a profiler first, which takes longer than this
        with phase("forward"), state.autocast():
            loss = loss_of()
        with phase("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        with phase("optimizer"):
            if self.clip_norm is not None:
                clip_grad_norm_(state.weights, self.clip_norm)
            state.optimizer.step()
        return loss.detach()

    def infer_step(self, state: State) -> Output:
        """One batch of answers."""
        with phase("data"):
            batch = next(state.batches)
        with torch.inference_mode(), phase("forward"), state.autocast():
            return self.infer(state.model, batch)


def warmup_cosine(optimizer: Optimizer, steps: int, rising: float) -> LambdaLR:
    """A learning rate that rises in a line over so many steps, and falls to nothing along half a cosine over all."""

    def share(step: int) -> float:
        return min((step + 1) / rising, 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / steps)))

    return LambdaLR(optimizer, share)


def _check_type(workload: str, name: str, value: Any, declared: str) -> None:
    """Fields are plain numbers, words and switches; tell a wrong one before the network is built."""
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
    wanted = kinds.get(declared.removesuffix(" | None"))
    optional = declared.endswith("None") and value is None
    if wanted and not optional and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
        raise BadOption(f"option {name} of {workload} must be {declared}, not {value!r}")
