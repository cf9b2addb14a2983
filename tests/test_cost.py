"""Costs counted on the meta device, against hand counts and published ones."""

from __future__ import annotations

import pytest

from fathom import published
from fathom.engine.cost import cost
from fathom.workloads.base import workload_class as workload

HAND = {  # forward MACs of one item
    "alexnet": 105_415_200 + 223_948_800 + 149_520_384 + 112_140_288 + 74_760_192 + 37_748_736 + 16_777_216 + 4_096_000,
    "autoenc": 784 * 500 + 2 * 500 * 20 + 20 * 500 + 500 * 784,
    "deepq": 20 * 20 * 32 * 256 + 9 * 9 * 64 * 512 + 7 * 7 * 64 * 576 + 3136 * 512 + 512 * 4,
}
FIRST_LAYER = {"alexnet": 105_415_200, "autoenc": 784 * 500, "deepq": 20 * 20 * 32 * 256}


@pytest.mark.parametrize("name", sorted(HAND))
def test_forward_and_training_costs_equal_the_hand_count(name: str) -> None:
    counted = cost(workload(name).configured("small"))
    assert counted.macs_per_item == HAND[name]
    # backward is two products for each of the forward's, but nobody asks for the gradient of the input
    assert counted.train_flop_per_item == 2 * (3 * HAND[name] - FIRST_LAYER[name])


def test_costs_do_not_depend_on_the_batch() -> None:
    small, large = (cost(workload("residual").configured("tiny", batch=batch)) for batch in (2, 8))
    assert small == large


@pytest.mark.parametrize(("name", "cookbook"), [("alexnet", "AlexNet"), ("vgg", "VGG-19")])
def test_costs_round_to_the_cookbooks(name: str, cookbook: str) -> None:
    row = next(row for row in published.cookbook_models() if row.name == cookbook)
    counted = cost(workload(name).configured("small"))
    assert counted.parameters == row.parameters
    assert round(counted.macs_per_item / 1e9, 1) == row.forward_gmac
