"""Updates with non-finite gradients are skipped while they are rare, and called divergence when they are not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from fathom.core import plugins
from fathom.core.spec import RunSpec
from fathom.engine.session import Session
from fathom.training.trainer import FiniteGradients, HeldOut, Trainer, recipe_for, trainer_for
from fathom.workloads.base import workload_class

SPEC = RunSpec(workload="alexnet", preset="tiny", device="cpu", kind="training")
ITEMS = 40  # of an interval: three steps


def trainer_of(session: Session) -> Trainer:
    return trainer_for(session, replace(recipe_for(session.spec), items_per_evaluation=ITEMS), HeldOut(None, None))


def test_networks_without_normalisation_skip_such_updates() -> None:
    recipes = {name: workload_class(name).recipe for name in plugins.names("workloads")}
    skipping = {name for name, recipe in recipes.items() if recipe and recipe.skips_nonfinite_gradients}
    assert skipping == {"alexnet", "vgg", "speech"}
    with Session(SPEC).setup() as session:
        assert isinstance(trainer_of(session).guard, FiniteGradients)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_one_nonfinite_gradient_costs_one_update_and_no_weight(clip_norm: float | None) -> None:
    """Clipping by a norm that is not finite would spread it over every weight."""
    options = {"clip_norm": clip_norm, "momentum": 0.0, "weight_decay": 0.0}
    with Session(replace(SPEC, options=options)).setup() as session:
        trainer = trainer_of(session)
        weight = session.state.weights[0]
        trainer.step()
        before = [each.detach().clone() for each in session.state.weights]
        hook = weight.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[no-untyped-call]
        trainer.step()
        hook.remove()
        assert all(map(torch.equal, session.state.weights, before))
        assert trainer.notes() == ["1 update skipped: non-finite gradients"]
        assert trainer.state_dict()["skipped"] == 1
        trainer.step()
        assert not torch.equal(weight, before[0])


def test_momentum_goes_on_where_an_update_is_skipped() -> None:
    with Session(replace(SPEC, options={"momentum": 0.5, "weight_decay": 0.0})).setup() as session:
        trainer = trainer_of(session)
        weight = session.state.weights[0]
        start = weight.detach().clone()
        trainer.step()
        first = weight.detach().clone()
        weight.register_hook(lambda gradient: gradient * float("nan"))  # type: ignore[no-untyped-call]
        trainer.step()
        torch.testing.assert_close(weight.detach() - first, 0.5 * (first - start))


def test_gradients_nonfinite_again_and_again_are_divergence_though_losses_are_finite() -> None:
    with Session(SPEC).setup() as session:
        trainer = trainer_of(session)
        hook = session.state.weights[0].register_hook(lambda gradient: gradient * math.nan)  # type: ignore[no-untyped-call]
        assert math.isnan(trainer.train(lambda done: None)[0])
        hook.remove()
        assert trainer.notes() == ["3 updates skipped: non-finite gradients"]
        assert math.isfinite(trainer.train(lambda done: None)[0]), "another interval counts by itself"


def test_a_resumed_run_has_skipped_what_it_had() -> None:
    with Session(SPEC).setup() as session:
        trainer = trainer_of(session)
        hook = session.state.weights[0].register_hook(lambda gradient: gradient * math.nan)  # type: ignore[no-untyped-call]
        trainer.step()
        hook.remove()
        kept = trainer.state_dict()
    with Session(SPEC).setup() as session:
        resumed = trainer_of(session)
        resumed.load_state_dict(kept)
        assert resumed.notes() == trainer.notes() == ["1 update skipped: non-finite gradients"]
        assert math.isfinite(resumed.mean_loss([torch.tensor(2.0)])), "those before the kill were counted then"


@pytest.mark.parametrize(
    ("lost", "steps", "mean"),
    [(0, 200, 2.0), (2, 200, 2.0), (3, 200, math.nan), (1, 30, 2.0), (2, 30, math.nan), (1, 1, math.nan)],
)
def test_the_mean_is_of_what_counted_unless_too_little_did(lost: int, steps: int, mean: float) -> None:
    """One non-finite loss is bad luck in a short interval too."""
    with Session(replace(SPEC, options={"shrink": 16})).setup() as session:
        trainer = trainer_of(session)
    losses = [torch.tensor(math.nan if step < lost else 2.0) for step in range(steps)]
    assert trainer.mean_loss(losses) == pytest.approx(mean, nan_ok=True)
