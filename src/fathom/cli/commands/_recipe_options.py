"""What a training recipe asks of its workload, for the commands that train to a target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fathom.workloads.recipe import Recipe


def recipe_options(recipe: Recipe[Any], name: str, preset: str) -> dict[str, Any]:
    """What the recipe changes of a preset. One that is not its own keeps its sizes: whoever asks for tiny means it.

    A word says what is learnt, such as the game that is played, and stays the recipe's.
    """
    from fathom.workloads.base import workload_class

    sizes = workload_class(name).presets.get(preset, {}) if preset != recipe.preset else {}
    return {key: value for key, value in recipe.options.items() if key not in sizes or isinstance(value, str)}
