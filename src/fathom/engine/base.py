"""Engine: how a step is executed. Forward, backward, clip and apply are written here, once.

An engine is one file of engines/, an entry point of group `fathom.engines`, or `package.module:Class`. Engines that
change different parts of a step combine: `compile+cudagraph` captures what was compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from fathom.core import plugins
from fathom.core.errors import BadOption
from fathom.core.spec import SEPARATOR
from fathom.data.base import Batch
from fathom.engine.marks import mark
from fathom.workloads.base import Output, State, Workload

Result = TypeVar("Result")
Loss = Callable[[Batch], Tensor]  # a scalar, or a vector whose sum is minimised
Infer = Callable[[Batch], Output]


class Engine:
    """Executes the steps of one state. A subclass changes a part of what stands here and leaves the rest to super().

    Combined engines are one class that inherits from each: constructors run from the lowest layer to the highest, so
    that a graph captures what was compiled, of a network in its final memory format.
    """

    name: ClassVar[str]
    layer: ClassVar[int] = 0  # what it changes: 0 the network or the optimizer, 1 forward and backward, 2 the step
    alone: ClassVar[bool] = False  # it runs a network of its own making, which no other engine can change

    def __init__(self, state: State, loss: Loss, infer: Infer, clip: Callable[[], object] | None = None) -> None:
        """`clip` bounds the gradients in place, between backward and the optimizer."""
        self.state = state
        self._loss, self._infer, self._clip = loss, infer, clip
        state.forward = self.forward  # type: ignore[method-assign]

    @classmethod
    def refusal(cls, workload: Workload, device: torch.device, phase: str) -> str | None:
        """Why this engine cannot run the workload there, in words that follow its name; None where it can."""
        return None

    def update(self, batch: Batch) -> Tensor:
        """One update of the weights; gives the loss, still on the device."""
        loss = self.gradients(batch)
        self.clip()
        self.apply()
        return loss

    def infer(self, batch: Batch) -> Output:
        """What inference gives for a batch, still on the device."""
        return self.output(batch)

    def forward(self, work: Callable[[], Result]) -> Result:
        """A pass without gradients beside the step's own, as when an agent values its actions."""
        with mark("forward"), torch.no_grad(), self.state.autocast():
            return work()

    def gradients(self, batch: Batch) -> Tensor:
        """Forward and backward; gives the loss, and leaves gradients in the weights."""
        for weight in self.state.weights:
            weight.grad = None  # optimizer.zero_grad() would ask a profiler first, which takes longer than this
        with mark("forward"), self.state.autocast():
            loss = self._loss(batch)
        with mark("backward"):
            (loss if loss.dim() == 0 else loss.sum()).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def clip(self) -> None:
        if self._clip is not None:
            with mark("optimizer"):
                self._clip()

    def apply(self) -> None:
        """The optimizer's step."""
        assert self.state.optimizer is not None, "an inference run cannot train"
        with mark("optimizer"):
            self.state.optimizer.step()

    def output(self, batch: Batch) -> Output:
        """The forward pass of inference."""
        with torch.inference_mode(), mark("forward"), self.state.autocast():
            return self._infer(batch)


def engine_class(name: str) -> type[Engine]:
    """The engine of this name, or one class of several that are joined by "+"."""
    parts = {part: plugins.load_class("engines", part, Engine) for part in name.split(SEPARATOR)}
    if len(parts) == 1:
        return next(iter(parts.values()))
    if single := next((part for part, found in parts.items() if found.alone), None):
        raise BadOption(f"engine {single} does not combine with others")
    highest_first = sorted(_most_derived([*parts.values()]), key=lambda part: -part.layer)
    return type(name, tuple(highest_first), {"name": name, "refusal": classmethod(_first_refusal(highest_first))})


def _most_derived(parts: list[type[Engine]]) -> list[type[Engine]]:
    """Without a part that another one extends: it is in there already, and a class cannot inherit from it first."""
    once = dict.fromkeys(parts)
    return [part for part in once if not any(issubclass(other, part) for other in once if other is not part)]


def _first_refusal(parts: list[type[Engine]]) -> Callable[..., str | None]:
    def refusal(_: type[Engine], workload: Workload, device: torch.device, phase: str) -> str | None:
        return next((why for part in parts if (why := part.refusal(workload, device, phase)) is not None), None)

    return refusal


def model_to_look_at(workload: Workload) -> nn.Module:
    """The network without memory for its weights; with it, where the constructor reads what it has initialised."""
    try:
        with torch.device("meta"):
            return workload.model()
    except RuntimeError:
        return workload.model()


def clipping(state: State, norm: float | None) -> Callable[[], object] | None:
    """Rescales gradients whose global norm is larger; None where nothing is to be clipped."""
    return None if norm is None else lambda: clip_grad_norm_(state.weights, norm)
