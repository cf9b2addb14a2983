"""divisible: which Linear layers of a network can be divided among ranks, found out by running it.

Two layers form a pair where the second gets what the first gave, changed feature by feature: then each rank computes
its own features from one to the other, and nothing is sent between them. Other layers are divided alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fathom.data.base import Batch
from fathom.engine.base import Loss


@dataclass(frozen=True)
class Division:
    """Layers by their names: pairs are divided by columns and then by rows, singles by columns and gathered."""

    pairs: dict[str, tuple[str, ...]]  # a layer, and those that read what it gives
    singles: tuple[str, ...]

    @property
    def layers(self) -> int:
        return len(self.pairs) + sum(map(len, self.pairs.values())) + len(self.singles)

    def unpaired(self, layers: dict[str, nn.Linear], ranks: int) -> Division:
        """The same layers, each by itself, where its outputs can be divided."""
        held = {*self.pairs, *self.singles, *(name for readers in self.pairs.values() for name in readers)}
        return Division({}, tuple(name for name in layers if name in held and not layers[name].out_features % ranks))


def division_of(model: nn.Module, loss: Loss, batch: Batch, ranks: int) -> Division:
    """What can be divided among so many ranks; without layers where nothing can."""
    layers = linear_layers(model)
    given = _inputs(model, layers, loss, batch)
    layers = {name: layer for name, layer in layers.items() if name in given}
    pairs: dict[str, tuple[str, ...]] = {}
    readers: set[str] = set()
    for name, layer in layers.items():
        if name in readers or layer.out_features % ranks:
            continue
        wide = {other for other in layers if layers[other].in_features == layer.out_features}
        found = wide - {name, *readers, *pairs}
        if found:
            found = _reading(model, layers, loss, batch, given, name, found, layer.out_features // ranks)
        if found:
            pairs[name] = tuple(other for other in layers if other in found)
            readers |= found
    alone = (name for name in layers if name not in pairs and name not in readers)
    return Division(pairs, tuple(name for name in alone if not layers[name].out_features % ranks))


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Those whose weights nobody else has."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for weight in module.parameters(recurse=False):
            owners[id(weight)] = owners.get(id(weight), 0) + 1
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and all(owners[id(weight)] == 1 for weight in module.parameters())
    }


def _reading(
    model: nn.Module,
    layers: dict[str, nn.Linear],
    loss: Loss,
    batch: Batch,
    given: dict[str, Tensor],
    name: str,
    candidates: set[str],
    share: int,
) -> set[str]:
    """Of the candidates, those of whose inputs each rank's features depend on the same features of the layer alone.

    Found by changing the first rank's features of the layer's output, and then all others: the rest must stay.
    """
    own = torch.zeros(layers[name].out_features, dtype=torch.bool, device=next(model.parameters()).device)
    own[:share] = True
    found = set(candidates)
    for changed in (own, ~own):
        after = _inputs(model, layers, loss, batch, {name: partial(_plus_one, changed)})
        for other in candidates:
            before, now = given[other], after.get(other)
            kept = (
                now is not None and before.shape == now.shape and torch.equal(before[..., ~changed], now[..., ~changed])
            )
            if not kept or now is None or (changed.any() and torch.equal(before, now)):
                found.discard(other)
    return found


def _plus_one(features: Tensor, output: Tensor) -> Tensor:
    return output + features.to(output.dtype)


def _inputs(
    model: nn.Module,
    layers: dict[str, nn.Linear],
    loss: Loss,
    batch: Batch,
    change: dict[str, Callable[[Tensor], Tensor]] | None = None,
) -> dict[str, Tensor]:
    """What each layer that is called once gets, in evaluation mode, with some layers' outputs changed."""
    found: dict[str, list[Tensor]] = {}
    hooks = []
    for name, layer in layers.items():
        noted = found.setdefault(name, [])
        hooks.append(layer.register_forward_pre_hook(lambda _, args, noted=noted: noted.append(args[0].clone())))
        if change and name in change:
            hooks.append(layer.register_forward_hook(lambda _, args, output, by=change[name]: by(output)))
    try:
        with torch.no_grad(), calm(model):
            loss(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: values[0] for name, values in found.items() if len(values) == 1}


@contextmanager
def calm(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and the same random numbers each time."""
    training = model.training
    devices: Any = {weight.device for weight in model.parameters() if weight.device.type == "cuda"}
    model.eval()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        try:
            yield
        finally:
            model.train(training)
