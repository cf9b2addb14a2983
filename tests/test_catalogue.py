"""The catalogue: what is known of a workload without torch is what its class says, and what is counted."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from fathom.core import plugins
from fathom.core.errors import UnknownName
from fathom.engine.cost import cost
from fathom.workloads import catalogue
from fathom.workloads.base import workload_class

ALL = plugins.names("workloads")
KEPT: dict[str, Any] = json.loads(catalogue.FACTS.read_text(encoding="utf-8"))


def test_every_workload_is_in_it_and_nothing_else() -> None:
    assert sorted(KEPT) == ALL


@pytest.mark.parametrize("name", ALL)
def test_it_is_what_the_class_says(name: str) -> None:
    """If not: python -m fathom.workloads.catalogue."""
    described = json.loads(json.dumps(catalogue.describe(workload_class(name))))
    assert {key: value for key, value in KEPT[name].items() if key != "source"} == described
    assert KEPT[name]["source"] == catalogue._source(name)
    recipe = workload_class(name).recipe
    assert (KEPT[name]["recipe"] or {}).get("id") == (recipe.id if recipe else None)


@pytest.mark.parametrize("name", ALL)
def test_its_costs_are_the_counted_ones(name: str) -> None:
    facts = workload_class(name).facts
    assert facts is not None
    counted = cost(workload_class(name).configured("small"))
    assert dataclasses.asdict(counted).items() <= dataclasses.asdict(facts).items()


def test_facts_need_no_torch() -> None:
    program = f"""
import sys
from fathom.workloads.catalogue import facts
found = [facts(name)["parameters"] for name in {ALL!r}]
assert len(found) == {len(ALL)}
print(*sorted({{"torch", "numpy"}} & sys.modules.keys()))
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == ""


def test_a_workload_that_changed_since_is_described_by_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    assert catalogue.facts("autoenc") == KEPT["autoenc"]
    monkeypatch.setattr(catalogue, "_source", lambda name: "another file")
    monkeypatch.setattr(workload_class("autoenc"), "item", "digit")
    assert catalogue.facts("autoenc")["item"] == "digit"


def test_an_unknown_workload_is_told_with_the_nearest_name() -> None:
    with pytest.raises(UnknownName, match="no workload 'alexnt'; did you mean alexnet"):
        catalogue.facts("alexnt")
