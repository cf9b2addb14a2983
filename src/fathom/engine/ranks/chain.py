"""chain: finds out whether a network is a sequence of modules, by running it, so that it can be cut into stages.

A network is a chain where every child gets what the one before it gave, at most reshaped item by item, and the last
one's output is the network's. Children that are chains themselves are taken apart. Nothing goes by names or types:
the loss and the gradients of the chain are compared with those of the whole network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fathom.data.base import Batch
from fathom.engine.base import Loss
from fathom.engine.ranks.agreement import difference, loss_and_gradients


class NotAChain(Exception):
    """Why a network cannot be cut, in words that follow its name."""


@dataclass(frozen=True)
class Link:
    """One module of the sequence, with what it gave for the example."""

    name: str
    module: nn.Module
    shape: tuple[int, ...] | None  # of an item, where what comes in is reshaped first
    in_place: bool  # it overwrites its input
    channels_last: bool  # its input is in that layout
    output: Tensor
    flop: int

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.module(x if self.shape is None else x.reshape(len(x), *self.shape))
        return result

    @property
    def weights(self) -> list[nn.Parameter]:
        return list(self.module.parameters())


@dataclass(frozen=True)
class _Call:
    """One call of a child, with copies of what went in and came out: the next one may overwrite it."""

    name: str
    module: nn.Module
    given: Tensor
    output: Tensor
    in_place: bool


def chain_of(model: nn.Module, loss: Loss, batch: Batch) -> list[Link]:
    """The network as a sequence; raises NotAChain with the reason. The network is left as it was."""
    with _unchanged(model):
        given = input_of(model, loss, batch)
        with torch.no_grad():
            links = _links(model, given, "")
        _check_weights(model, links)
        _verify(model, loss, batch, links)
    return links


def input_of(model: nn.Module, loss: Loss, batch: Batch) -> Tensor:
    """What the loss gives to the network; the network does not run."""

    def capture(*given: Any, **named: Any) -> Tensor:
        if named or len(given) != 1 or not isinstance(given[0], Tensor):
            raise NotAChain("takes several inputs, and a stage hands one tensor on")
        raise _Captured(given[0])

    with standing_in(model, capture):
        try:
            loss(batch)
        except _Captured as captured:
            return captured.given
    raise NotAChain("is not called by its loss")


@contextmanager
def standing_in(model: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    """Inside, whoever calls the network calls this."""
    model.forward = forward
    try:
        yield
    finally:
        del model.forward


def cut(links: Sequence[Link], stages: int) -> list[list[Link]]:
    """Consecutive links for each stage, so that the stage with the most FLOP has as few as possible."""
    units = _units(links)
    if len(units) < stages:
        raise NotAChain(f"can be cut into {len(units)} stages at most, and there are {stages} ranks")
    costs = [sum(link.flop + link.output.numel() for link in unit) for unit in units]

    @cache
    def best(begin: int, left: int) -> tuple[int, tuple[int, ...]]:
        """The cost of the dearest of `left` stages from this unit on, and where each of them ends."""
        if left == 1:
            return sum(costs[begin:]), (len(units),)
        ends = range(begin + 1, len(units) - left + 2)
        rest = ((max(sum(costs[begin:end]), best(end, left - 1)[0]), end) for end in ends)
        dearest, end = min(rest)
        return dearest, (end, *best(end, left - 1)[1])

    ends = best(0, stages)[1]
    return [
        [link for unit in units[begin:end] for link in unit] for begin, end in zip((0, *ends[:-1]), ends, strict=True)
    ]


def _units(links: Sequence[Link]) -> list[list[Link]]:
    """Links that stay together: one that overwrites its input with the one before, and those without a gradient.

    What a stage receives is a leaf of its backward pass, which nothing may overwrite; and before the first weight
    there is no gradient to send back.
    """
    units: list[list[Link]] = []
    weights = False
    for link in links:
        if units and (link.in_place or not weights or not units[-1][-1].output.is_floating_point()):
            units[-1].append(link)
        else:
            units.append([link])
        weights = weights or bool(link.weights)
    return units


def _links(module: nn.Module, given: Tensor, name: str) -> list[Link]:
    calls, output = _observed(module, given, name)
    if not calls:
        raise NotAChain(f"is not a sequence of modules: {name or 'the network'} computes by itself")
    found: list[Link] = []
    before, source = given, "the network's input"
    for call in calls:
        shape = _reshaping(before, call.given)
        if shape is None and not _same(before, call.given):
            raise NotAChain(f"is not a sequence of modules: {call.name} gets something else than {source} gives")
        found += _expanded(call, shape)
        before, source = call.output, call.name
    if not _same(before, output):
        raise NotAChain(f"is not a sequence of modules: its output is not what {source} gives")
    return found


def _expanded(call: _Call, shape: tuple[int, ...] | None) -> list[Link]:
    """The call as one link, or as those of a chain inside it; then the first has the reshaping."""
    try:
        inner = _links(call.module, call.given.clone(), call.name)
    except NotAChain:
        inner = []
    if len(inner) > 1 and (shape is None or inner[0].shape is None):
        first = inner[0]
        return [Link(**{**vars(first), "shape": first.shape if shape is None else shape}), *inner[1:]]
    with FlopCounterMode(display=False) as counter:
        call.module(call.given.clone())
    channels_last = call.given.dim() == 4 and not call.given.is_contiguous()
    flop = counter.get_total_flops()
    return [Link(call.name, call.module, shape, call.in_place, channels_last, call.output, flop)]


def _observed(module: nn.Module, given: Tensor, name: str) -> tuple[list[_Call], Tensor]:
    """The calls of the module's children in their order, and its output."""
    calls: list[_Call] = []
    pending: dict[int, tuple[Tensor, int]] = {}

    def before(child: nn.Module, args: Any, named: Any) -> None:
        if named or len(args) != 1 or not isinstance(args[0], Tensor):
            raise NotAChain(f"is not a sequence of modules: {names[id(child)]} takes several inputs")
        pending[id(child)] = args[0].detach().clone(), args[0]._version

    def after(child: nn.Module, args: Any, named: Any, output: Any) -> None:
        if not isinstance(output, Tensor):
            raise NotAChain(f"is not a sequence of modules: {names[id(child)]} gives several outputs")
        copy, version = pending.pop(id(child))
        calls.append(_Call(names[id(child)], child, copy, output.detach().clone(), args[0]._version != version))

    children = dict(_children(module, name))
    names = {id(child): path for path, child in children.items()}
    hooks = [child.register_forward_pre_hook(before, with_kwargs=True) for child in children.values()]
    hooks += [child.register_forward_hook(after, with_kwargs=True) for child in children.values()]
    try:
        output = module(given.clone())
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(output, Tensor):
        raise NotAChain("is not a sequence of modules: it gives several outputs")
    return calls, output


def _children(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Lists of modules are seen through: nobody calls them."""
    for own, child in module.named_children():
        path = f"{name}.{own}" if name else own
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from _children(child, path)
        else:
            yield path, child


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and bool(torch.equal(one, other))


def _reshaping(before: Tensor, given: Tensor) -> tuple[int, ...] | None:
    """The shape of an item, where the second is the first with each item reshaped; None where nothing or more is."""
    if before.shape == given.shape or before.numel() != given.numel() or before.shape[:1] != given.shape[:1]:
        return None
    return tuple(given.shape[1:]) if _same(before.reshape(given.shape), given) else None


def _check_weights(model: nn.Module, links: Sequence[Link]) -> None:
    held = [id(weight) for link in links for weight in link.weights]
    if len(held) != len(set(held)):
        raise NotAChain("uses the same weights in two of its modules, which may be in two stages")
    if len(held) < len({id(weight) for weight in model.parameters()}):
        raise NotAChain("has weights outside its sequence of modules")


def _verify(model: nn.Module, loss: Loss, batch: Batch, links: Sequence[Link]) -> None:
    """In training mode, with the same random numbers: what a module does by itself between two others shows here."""
    calls = 0

    def chained(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        for link in links:
            x = link(x)
        return x

    torch.manual_seed(0)
    plain = loss_and_gradients(model, loss, batch)
    torch.manual_seed(0)
    with standing_in(model, chained):
        found = loss_and_gradients(model, loss, batch)
    if calls != 1:
        raise NotAChain(f"is run {calls} times by its loss, and a pipeline runs it once")
    if problem := difference(plain, found):
        raise NotAChain(f"is not the sequence of its modules: {problem}")


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Random state and statistics of normalisation are put back."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {weight.device for weight in model.parameters() if weight.device.type == "cuda"}
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for buffer, before in kept:
                buffer.copy_(before)


class _Captured(Exception):
    def __init__(self, given: Tensor) -> None:
        self.given = given
