"""tensor: every rank has a part of each Linear layer, by torch's DTensor, and all work on the same batch.

Pairs of layers with only elementwise work between them are divided by columns and then by rows, with one all-reduce in
the forward and one in the backward pass; single layers by columns, and their outputs are gathered. All else is computed
by every rank alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from fathom.core.errors import EngineError
from fathom.core.ranks import ALL_GATHER, ALL_REDUCE
from fathom.data.base import Batch
from fathom.engine.base import Engine, Loss
from fathom.engine.ranks.agreement import difference, loss_and_gradients
from fathom.engine.ranks.base import Parallel, Rank, Strategy
from fathom.engine.ranks.divisible import Division, calm, division_of, linear_layers
from fathom.workloads.base import State, Workload

EXAMPLE = 2  # items that a network is tried on


@dataclass(frozen=True, kw_only=True)
class TensorParallel(Strategy):
    name: ClassVar = "tensor"
    divides: ClassVar = "network"
    same_random: ClassVar = True  # what all ranks compute alike must be alike
    checkpointed: ClassVar = False
    whole_weights: ClassVar = False

    pairs: bool = True  # else every layer is divided alone, and its output gathered

    def refusal(self, workload: Workload, ranks: int) -> str | None:
        if workload.interactive:
            return "cannot run a network that acts in an environment of each rank: all ranks must compute the same"
        return None

    def prepare(self, rank: Rank, workload: Workload, state: State, loss: Loss) -> Parallel:
        return _Divided(self, rank, workload, state, loss)


class _Divided(Parallel):
    def __init__(self, settings: TensorParallel, rank: Rank, workload: Workload, state: State, loss: Loss) -> None:
        super().__init__(rank, state, loss)
        self._clip_norm = workload.clip_norm
        few = {name: column.to(state.device) for name, column in replace(workload, batch=EXAMPLE).example().items()}
        layers, ranks = linear_layers(state.model), rank.group.ranks
        with state.autocast():
            found = division_of(state.model, loss, few, ranks)
        choices = [*([found] if settings.pairs else []), found.unpaired(layers, ranks)]
        self._whole = list(state.model.parameters())
        reason = f"has no Linear layer whose outputs can be divided by {ranks}"
        for division, copied in ((each, copied) for each in choices if each.layers for copied in (False, True)):
            reason = self._apply(division, layers, copied, loss, few) if ranks > 1 else ""
            if not reason:
                self._division = division
                break
        else:
            raise EngineError(f"strategy tensor cannot divide {workload.name}: it {reason}")
        _follow(state, self._whole)

    @property
    def notes(self) -> list[str]:
        pairs = [f"{first} + {', '.join(readers)}" for first, readers in self._division.pairs.items()]
        if self.rank.group.ranks == 1:
            return ["one rank: no layer is divided, and none is a DTensor"]
        told = "; ".join([*pairs, *(f"{name} alone" for name in self._division.singles)])
        held = sum(weight.to_local().numel() for weight in self.state.weights if isinstance(weight, DTensor))
        held += sum(weight.numel() for weight in self.state.weights if not isinstance(weight, DTensor))
        notes = [f"tensor parallel layers: {told}", f"weights on a rank: {held:,} of {self.parameters:,}"]
        if self._division.pairs:
            notes.append("dropout between two layers of a pair draws the same numbers on every rank")
        return notes

    def update(self, engine: Engine, batch: Batch) -> Tensor:
        self.rank.drag.begin()
        loss = engine.gradients(batch)
        self._clip()
        engine.apply()
        self.rank.drag.pull()
        return loss

    def _apply(self, division: Division, layers: dict[str, nn.Linear], copied: bool, loss: Loss, batch: Batch) -> str:
        """Divides the network, if loss and gradients stay the same; else leaves it as it was and gives the reason.

        Outputs are copied where the network overwrites them: they are views, of which autograd allows no change.
        """
        mesh = init_device_mesh(self.state.device.type, (self.rank.group.ranks,))
        styles: dict[str, ParallelStyle] = {}
        for first, readers in division.pairs.items():
            styles |= {first: ColwiseParallel(), **{name: RowwiseParallel() for name in readers}}
        styles |= {name: ColwiseParallel(output_layouts=Replicate()) for name in division.singles}
        plain = self._tried(loss, batch)
        kept = {name: _Kept(layers[name]) for name in styles}
        for name, style in styles.items():
            operation = None if name in division.pairs else _operation(style)
            with _timed(layers[name], _Timed(self.rank, operation, copied)):
                parallelize_module(layers[name], mesh, style)
        try:
            found = self._tried(loss, batch)
        except (RuntimeError, ValueError) as error:  # something else than the layers uses their weights or outputs
            problem = " ".join(str(error).split())[:120]
        else:
            problem = difference(plain, found)
        if not problem:
            return ""
        for each in kept.values():
            each.restore()
        return f"does not compute the same with divided layers: {problem}"

    def _tried(self, loss: Loss, batch: Batch) -> list[Tensor]:
        """The loss, and the gradient of each weight; cuDNN has no backward pass of recurrent layers in evaluation."""
        model = self.state.model
        with calm(model), torch.backends.cudnn.flags(enabled=False):
            return [_whole(each) for each in loss_and_gradients(model, self._autocast(loss), batch)]

    def _autocast(self, loss: Loss) -> Loss:
        def in_precision(batch: Batch) -> Tensor:
            with self.state.autocast():
                return loss(batch)

        return in_precision

    def _clip(self) -> None:
        """By the norm over whole weights; torch takes divided and other tensors apart alone."""
        if self._clip_norm is None:
            return
        sorts = [list[nn.Parameter](), list[nn.Parameter]()]
        for weight in self.state.weights:
            if weight.grad is not None:
                sorts[isinstance(weight.grad, DTensor)].append(weight)
        squares = [_whole(get_total_norm([weight.grad for weight in sort])).square() for sort in sorts if sort]  # type: ignore[misc]
        norm = torch.stack(squares).sum().sqrt()
        for sort in sorts:
            clip_grads_with_norm_(sort, self._clip_norm, norm)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _operation(style: ParallelStyle) -> str:
    return ALL_REDUCE if isinstance(style, RowwiseParallel) else ALL_GATHER


class _Kept:
    """A layer's weights and hooks, to put them back."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer, self.attributes = layer, dict(vars(layer))
        self.contents = [(held, dict(held)) for held in self.attributes.values() if isinstance(held, dict)]

    def restore(self) -> None:
        vars(self.layer).clear()
        vars(self.layer).update(self.attributes)
        for held, before in self.contents:
            held.clear()
            held.update(before)


@contextmanager
def _timed(layer: nn.Linear, timed: _Timed) -> Iterator[None]:
    """Notes what the hooks that are added inside communicate: hooks before and after them, in the order of adding.

    Forward, it is the operation on the output; backward, a layer divided by columns adds up its input's gradient.
    """
    layer.register_forward_pre_hook(timed.whole_input)
    layer.register_forward_hook(timed.computed)
    yield
    layer.register_forward_pre_hook(timed.divided_input)
    layer.register_forward_hook(timed.exchanged)


class _Timed:
    """The communication of one layer on the timeline; a step waits for all of it."""

    def __init__(self, rank: Rank, operation: str | None, copied: bool) -> None:
        self._rank, self._operation, self._copied = rank, operation, copied
        self._begun: Any = None
        self._summed = operation != ALL_REDUCE  # backward: a layer divided by rows gets its own features alone

    def whole_input(self, _: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x = given[0]
        if not (self._summed and x.requires_grad):
            return given
        own = x.view_as(x)  # whose gradient is that of this layer alone
        own.register_hook(self._end)
        return (own, *given[1:])

    def divided_input(self, _: nn.Module, given: tuple[Any, ...]) -> None:
        x = given[0]
        if self._summed and x.requires_grad:
            x.register_hook(lambda gradient: self._begin(ALL_REDUCE, gradient))

    def computed(self, _: nn.Module, given: Any, output: Tensor) -> None:
        if self._operation is not None:
            self._begin(self._operation, output)

    def exchanged(self, _: nn.Module, given: Any, output: Tensor) -> Tensor:
        if self._operation is not None:
            self._end(output)
        return output.clone() if self._copied else output

    def _begin(self, operation: str, whole: Tensor) -> None:
        """Of a divided tensor, torch counts the bytes of the whole."""
        self._rank.drag.pull()
        self._begun = self._rank.timeline.begin(operation, whole.numel() * whole.element_size())

    def _end(self, result: Tensor) -> None:
        wait = getattr(result, "trigger_wait", None)  # of an AsyncCollectiveTensor
        if wait is not None:
            wait()
        timeline = self._rank.timeline
        timeline.done(self._begun)
        if timeline.steps:
            timeline.exposed_since(self._begun)
        self._rank.drag.begin()


def _follow(state: State, whole: list[nn.Parameter]) -> None:
    """The optimizer, with its settings, over the weights as they are now: divided ones in groups of their own."""
    assert state.optimizer is not None
    state.weights = list(state.model.parameters())
    now = {id(before): weight for before, weight in zip(whole, state.weights, strict=True)}
    groups = []
    for group in state.optimizer.param_groups:
        weights = [now[id(weight)] for weight in group["params"]]
        divided = [weight for weight in weights if isinstance(weight, DTensor)]
        others = [weight for weight in weights if not isinstance(weight, DTensor)]
        if divided:
            unfused = {"fused": False} if group.get("fused") else {}  # torch has no fused optimizer for divided weights
            groups.append({**group, "params": divided, **unfused})
        if others:
            groups.append({**group, "params": others})
    make: Any = type(state.optimizer)  # every group has all settings
    state.optimizer = make(groups)
