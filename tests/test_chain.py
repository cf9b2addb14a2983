"""Which networks are sequences of modules, and where they are cut: found out by running them."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations, pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathom.engine.ranks.chain import Link, NotAChain, chain_of, cut, input_of


class Odd(nn.Module):
    """Children called out of order and through a list, with a reshape between them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(12, 3)
        self.layers = nn.ModuleList([nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.BatchNorm2d(3)])
        self.inner = nn.Sequential(nn.Sequential(nn.MaxPool2d(2), nn.Identity()), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.last(torch.flatten(self.inner(x), 1))
        return result


class Between(nn.Module):
    """Two layers with something of the network's own between them."""

    def __init__(self, between: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.between(self, self.first(x)))
        return result


def links_of(model: nn.Module, x: Tensor) -> list[Link]:
    return chain_of(model, lambda batch: model(batch["x"]).square().mean(), {"x": x})


def test_a_chain_is_taken_apart_in_the_order_of_its_calls() -> None:
    torch.manual_seed(0)
    links = links_of(Odd(), torch.randn(2, 1, 6, 6))
    assert [link.name for link in links] == [
        *("layers.0", "layers.1", "layers.2", "inner.0.0", "inner.0.1", "inner.1", "last")
    ]
    assert [link.shape for link in links] == [None] * 6 + [(12,)]
    assert [link.in_place for link in links] == [False, True, *[False] * 5]
    assert links[0].flop == 2 * 2 * (4 * 4) * 3 * 9  # two items


def test_a_network_is_left_as_it_was() -> None:
    torch.manual_seed(0)
    model = Odd()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    links_of(model, torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(1)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(weight.grad is None for weight in model.parameters())
    assert "forward" not in vars(model)


@pytest.mark.parametrize(
    ("between", "reason"),
    [
        (lambda _, x: F.relu(x), "second gets something else than first gives"),
        (lambda _, x: x.flip(0), "second gets something else than first gives"),
        (lambda module, x: F.dropout(x, 0.5, module.training), "second gets something else than first gives"),
        (lambda _, x: x.detach(), "a gradient differs"),
        (lambda _, x: x.reshape(1, -1).reshape(-1, 4), None),
        (lambda _, x: x, None),
    ],
)
def test_what_a_network_does_by_itself_between_two_modules_is_found(
    between: Callable[[nn.Module, Tensor], Tensor], reason: str | None
) -> None:
    torch.manual_seed(0)
    model = Between(between)
    if reason is None:
        assert len(links_of(model, torch.randn(2, 4))) == 2
    else:
        with pytest.raises(NotAChain, match=reason):
            links_of(model, torch.randn(2, 4))


def test_weights_outside_the_modules_and_shared_weights_are_refused() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    with pytest.raises(NotAChain, match="same weights in two"):
        links_of(tied, torch.randn(2, 4))
    outside = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    outside.register_parameter("unused", nn.Parameter(torch.ones(1)))
    with pytest.raises(NotAChain, match="weights outside"):
        links_of(outside, torch.randn(2, 4))


def test_a_network_with_several_inputs_or_that_runs_twice_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    batch = {"x": torch.randn(2, 4)}
    two = nn.Bilinear(4, 4, 2)
    with pytest.raises(NotAChain, match="several inputs"):
        chain_of(two, lambda each: two(each["x"], each["x"]).mean(), batch)
    with pytest.raises(NotAChain, match="run 2 times"):
        chain_of(model, lambda each: model(model(each["x"])).mean(), batch)


def test_the_input_of_a_network_is_what_its_loss_prepares() -> None:
    model = nn.Linear(4, 2)
    given = input_of(model, lambda batch: model(batch["x"] / 2).sum(), {"x": torch.ones(3, 4)})
    assert torch.equal(given, torch.full((3, 4), 0.5))
    with pytest.raises(NotAChain, match="not called by its loss"):
        input_of(model, lambda batch: batch["x"].sum(), {"x": torch.ones(3, 4)})


def made(flops: list[int], weights: bool = True) -> list[Link]:
    modules = [nn.Linear(1, 1) if weights else nn.Identity() for _ in flops]
    empty = torch.zeros(0)
    return [
        Link(str(place), module, None, False, False, empty, flop)
        for place, (module, flop) in enumerate(zip(modules, flops, strict=True))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_stage_is_as_small_as_it_can_be(seed: int) -> None:
    chance = random.Random(seed)
    flops = [chance.randint(1, 100) for _ in range(chance.randint(4, 9))]
    stages = chance.randint(1, 4)
    found = cut(made(flops), stages)
    assert [link.flop for stage in found for link in stage] == flops
    assert all(found)
    ends = [(0, *middle, len(flops)) for middle in combinations(range(1, len(flops)), stages - 1)]
    best = min(max(sum(flops[a:b]) for a, b in pairwise(each)) for each in ends)
    assert max(sum(link.flop for link in stage) for stage in found) == best


def test_no_stage_begins_with_a_module_that_overwrites_its_input_or_before_the_first_weight() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Identity(), nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)
    )
    links = links_of(model, torch.randn(2, 4))
    assert [[link.name for link in stage] for stage in cut(links, 4)] == [["0", "1", "2"], ["3"], ["4"], ["5"]]
    with pytest.raises(NotAChain, match="4 stages at most, and there are 5 ranks"):
        cut(links, 5)
