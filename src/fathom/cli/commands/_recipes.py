"""A recipe's target in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def aim(recipe: Mapping[str, Any]) -> str:
    """What a training run is to reach."""
    if recipe["target"] is None:
        return f"no target: evaluated by its {recipe['metric']} alone"
    article = "an" if recipe["metric"][0] in "aeiou" else "a"
    return f"the target is {article} {recipe['metric']} of {recipe['target']:g} {recipe['unit']} or {recipe['better']}"
