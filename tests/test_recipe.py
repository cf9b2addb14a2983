"""A recipe is its fields: two are the same where these are equal, whatever the protocol's wording."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from fathom.core import plugins
from fathom.core.errors import BadOption
from fathom.core.spec import RunSpec
from fathom.training.trainer import recipe_for
from fathom.workloads.autoenc import Autoenc, AutoencRecipe
from fathom.workloads.base import workload_class
from fathom.workloads.memnet import Memnet

RECIPE = Autoenc.recipe
CHANGES: dict[str, Any] = {
    "metric": "another metric",
    "unit": "bits",
    "target": -90.0,
    "better": "lower",
    "split": "validation",
    "evaluations": 3,
    "items_per_evaluation": 7,
    "validated_on": "train",
    "stop_at": -105.0,
    "preset": "small",
    "options": {"adam": False},
    "precision": "bf16",
    "engine": "eager",
    "trainer": "memnet",
    "skips_nonfinite_gradients": True,
}
NO_IDENTITY = {"protocol", "taken", "variants"}


def test_the_id_is_that_of_equal_fields() -> None:
    assert {each.name for each in fields(RECIPE)} == CHANGES.keys() | NO_IDENTITY, "a new field belongs in one of them"
    assert replace(RECIPE, options=dict(reversed(list(RECIPE.options.items())))).id == RECIPE.id
    assert len(RECIPE.id) == 12
    int(RECIPE.id, 16)


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_a_field_changes_the_id(field: str) -> None:
    assert getattr(RECIPE, field) != CHANGES[field]
    assert replace(RECIPE, **{field: CHANGES[field]}).id != RECIPE.id


def test_the_protocols_wording_does_not_change_the_id() -> None:
    assert replace(RECIPE, protocol="the same in other words").id == RECIPE.id
    assert replace(RECIPE, variants={"latent": RECIPE}).id == RECIPE.id
    assert replace(RECIPE, taken="60,000 images").id == RECIPE.id


def test_another_way_to_evaluate_is_another_recipe() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sampled(AutoencRecipe):
        """Evaluates otherwise."""

    same = {each.name: getattr(RECIPE, each.name) for each in fields(RECIPE)}
    assert Sampled(**same).id != RECIPE.id


def test_no_two_recipes_share_an_id() -> None:
    recipes = [workload_class(name).recipe for name in plugins.names("workloads")]
    known = [each for recipe in recipes if recipe for each in (recipe, *recipe.variants.values())]
    assert len({recipe.id for recipe in known}) == len(known) == 9


def test_an_option_asks_for_the_variant_of_its_name(tmp_path: Path) -> None:
    joint = Memnet.recipe.variants["joint"]
    assert Memnet.recipe.for_run(None, {"joint": True}) is joint
    assert Memnet.recipe.for_run(None, {"joint": False}) is Memnet.recipe
    spec = RunSpec(workload="memnet", kind="training", options={"joint": True})
    assert recipe_for(spec) is joint


def test_a_workload_without_a_recipe_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Autoenc, "recipe", None)
    with pytest.raises(BadOption, match="^autoenc has no training recipe$"):
        recipe_for(RunSpec(workload="autoenc", kind="training"))
