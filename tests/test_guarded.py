"""What is not finite is left out of learning while it is rare, and called divergence when it is not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fathom import registry
from fathom.learners.guarded import GuardedLearner
from fathom.session import Session
from fathom.spec import RunSpec

SPEC = RunSpec(workload="alexnet", preset="tiny", device="cpu", learn=True)


@pytest.mark.parametrize("name", ["alexnet", "vgg", "speech"])
def test_networks_without_norms_are_guarded(name: str) -> None:
    assert issubclass(registry.learner(name), GuardedLearner)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_one_gradient_that_is_lost_costs_one_update_and_no_weight(clip_norm: float | None) -> None:
    """Clipping by a norm that is not finite would spread it over every weight."""
    with Session(replace(SPEC, options={"clip_norm": clip_norm})).setup() as session:
        learner = registry.learner("alexnet")(session, None)
        model = session.state.model
        weight = next(model.parameters())
        learner.step()
        before = weight.detach().clone()
        hook = weight.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[no-untyped-call]
        learner.step()
        hook.remove()
        assert all(bool(each.isfinite().all()) for each in model.parameters())
        assert learner.notes() == ["updates left out, as their gradients were not finite: 1"]
        assert learner.state_dict()["left_out"] == 1
        learner.step()
        assert not torch.equal(weight, before)


@pytest.mark.parametrize(
    ("lost", "steps", "mean"),
    [(0, 200, 2.0), (2, 200, 2.0), (3, 200, math.nan), (1, 30, 2.0), (2, 30, math.nan), (1, 1, math.nan)],
)
def test_the_mean_is_of_what_counted_unless_too_little_did(lost: int, steps: int, mean: float) -> None:
    """One lost loss is bad luck in a short round too."""
    with Session(SPEC).setup() as session:
        learner = registry.learner("alexnet")(session, None)
    losses = [torch.tensor(math.nan if step < lost else 2.0) for step in range(steps)]
    assert learner.mean_loss(losses) == pytest.approx(mean, nan_ok=True)
