"""What is known of a workload before it runs."""

from __future__ import annotations

from typing import Any

from fathom.workloads.recipe import Quality


def facts(name: str) -> dict[str, Any]:
    """The facts that `list` gives; parameters are counted on the full network (preset small)."""
    from fathom.engine.cost import parameters
    from fathom.workloads.base import workload_class

    kind = workload_class(name)
    keys = ("name", "year", "layers", "style", "task", "dataset")
    return {key: getattr(kind, key) for key in keys} | {"params": parameters(kind.configured("small"))}


def aim(quality: Quality) -> str:
    """What a lesson is to come to, in words."""
    if quality.target is None:
        return f"no target: judged by its {quality.metric} alone"
    article = "an" if quality.metric[0] in "aeiou" else "a"
    return f"the target is {article} {quality.metric} of {quality.target:g} {quality.unit} or {quality.better}"
