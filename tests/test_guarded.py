"""What is not finite is left out of learning while it is rare, and called divergence when it is not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from fathom.training.trainers.guarded import GuardedTrainer

from fathom.core.spec import RunSpec
from fathom.engine.session import Session
from fathom.training.trainer import recipe_for, trainer_for

SPEC = RunSpec(workload="alexnet", preset="tiny", device="cpu", kind="training")


@pytest.mark.parametrize("name", ["alexnet", "vgg", "speech"])
def test_networks_without_norms_are_guarded(name: str) -> None:
    assert issubclass(trainer_class(name), GuardedTrainer)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_one_gradient_that_is_lost_costs_one_update_and_no_weight(clip_norm: float | None) -> None:
    """Clipping by a norm that is not finite would spread it over every weight."""
    options = {"clip_norm": clip_norm, "momentum": 0.0, "weight_decay": 0.0}
    with Session(replace(SPEC, options=options)).setup() as session:
        trainer = trainer_for(session, recipe_for(session.spec), None)
        weight = session.state.weights[0]
        trainer.step()
        before = [each.detach().clone() for each in session.state.weights]
        hook = weight.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[no-untyped-call]
        trainer.step()
        hook.remove()
        assert all(map(torch.equal, session.state.weights, before))
        assert trainer.notes() == ["gradients left out, as they were not finite: 1"]
        assert trainer.state_dict()["left_out"] == 1
        trainer.step()
        assert not torch.equal(weight, before[0])


def test_momentum_goes_on_where_a_gradient_is_left_out() -> None:
    with Session(replace(SPEC, options={"momentum": 0.5, "weight_decay": 0.0})).setup() as session:
        trainer = trainer_for(session, recipe_for(session.spec), None)
        weight = session.state.weights[0]
        start = weight.detach().clone()
        trainer.step()
        first = weight.detach().clone()
        weight.register_hook(lambda gradient: gradient * float("nan"))  # type: ignore[no-untyped-call]
        trainer.step()
        torch.testing.assert_close(weight.detach() - first, 0.5 * (first - start))


def test_gradients_lost_again_and_again_are_divergence_though_losses_are_finite() -> None:
    with Session(SPEC).setup() as session:
        trainer = trainer_for(session, recipe_for(session.spec), None)
        hook = session.state.weights[0].register_hook(lambda gradient: gradient * math.nan)  # type: ignore[no-untyped-call]
        assert math.isnan(trainer.train(lambda done: None)[0])
        hook.remove()
        assert math.isfinite(trainer.train(lambda done: None)[0]), "another round counts anew"


@pytest.mark.parametrize(
    ("lost", "steps", "mean"),
    [(0, 200, 2.0), (2, 200, 2.0), (3, 200, math.nan), (1, 30, 2.0), (2, 30, math.nan), (1, 1, math.nan)],
)
def test_the_mean_is_of_what_counted_unless_too_little_did(lost: int, steps: int, mean: float) -> None:
    """One lost loss is bad luck in a short round too."""
    with Session(SPEC).setup() as session:
        trainer = trainer_for(session, recipe_for(session.spec), None)
    losses = [torch.tensor(math.nan if step < lost else 2.0) for step in range(steps)]
    assert trainer.mean_loss(losses) == pytest.approx(mean, nan_ok=True)
