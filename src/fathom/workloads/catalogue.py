"""What is known of every workload before it runs, without importing torch: facts.json beside this file.

`python -m fathom.workloads.catalogue` writes facts.json anew from the classes themselves, and a test compares the two.
A workload that is not in it, or whose file has changed since, is imported and described instead.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fathom.core import plugins
from fathom.core.errors import BadOption, UnknownName, shortened
from fathom.core.spec import number_in_words

if TYPE_CHECKING:
    from fathom.workloads.base import Workload
    from fathom.workloads.recipe import Recipe

FOLDER = Path(__file__).parent
FACTS = FOLDER / "facts.json"
SUITE = "fathom"  # the eight workloads of the 2016 paper: what a command means that is given no names
LARGEST = 2**40  # of a whole number that a workload takes: sizes and counts are smaller by far


def facts(name: str) -> dict[str, Any]:
    """The description of a workload by name; raises where there is none of that name."""
    plugins.check("workloads", name)
    kept = _kept().get(name)
    if kept is not None and kept["source"] == _source(name):
        return kept
    from fathom.workloads.base import workload_class

    return describe(workload_class(name))


def suite(name: str = SUITE) -> list[str]:
    """The workloads of a suite, by name. One that cannot be loaded is in the default suite: its runs record why."""
    suites = {workload: _suites(workload) for workload in plugins.names("workloads")}
    if name not in (known := {each for found in suites.values() for each in found}):
        raise UnknownName.among("suite", name, known)
    return [workload for workload, found in suites.items() if name in found]


def _suites(workload: str) -> list[str]:
    try:
        found: list[str] = list(facts(workload)["suites"])
    except Exception:
        return [SUITE]
    return found


def describe(kind: type[Workload]) -> dict[str, Any]:
    """A workload class in plain data."""
    published = dataclasses.asdict(kind.facts) if kind.facts else {}
    return {
        "name": kind.name,
        **published,
        "item": kind.item,
        "data": kind.expects,
        "suites": list(kind.suites),
        "interactive": kind.interactive,
        "sweeps_threads": kind.sweeps_threads,
        "presets": {preset: dict(fields) for preset, fields in kind.presets.items()},
        **option_facts(kind),
        "recipe": None if kind.recipe is None else _recipe(kind.recipe),
    }


def option_facts(kind: type[Workload]) -> dict[str, Any]:
    """The part of a description that check_option needs: the types of all options, and those that were renamed."""
    options = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    return {"name": kind.name, "options": options, "renamed": dict(kind.renamed)}


def check_option(described: Mapping[str, Any], name: str, value: Any) -> None:
    """Raises where a workload, as described, has no such option, or not with such a value.

    Options are plain numbers, words and switches.
    """
    name = described["renamed"].get(name, name)
    if name not in described["options"]:
        raise UnknownName.among(f"option of {described['name']}", name, described["options"])
    declared: str = described["options"][name]
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
    wanted = kinds.get(declared.removesuffix(" | None"))
    optional = declared.endswith("None") and value is None
    if wanted and not optional and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
        raise BadOption(f"option {name} of {described['name']} must be {declared}, not {shortened(repr(value))}")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadOption(f"option {name} of {described['name']} must be a finite number, not {value}")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise BadOption(
            f"option {name} of {described['name']} must be at most {LARGEST:,}, not {number_in_words(value)}"
        )


def _recipe(recipe: Recipe[Any]) -> dict[str, Any]:
    fields = {each.name: getattr(recipe, each.name) for each in dataclasses.fields(recipe)}
    variants = {option: _recipe(variant) for option, variant in recipe.variants.items()}
    return {**fields, "options": dict(recipe.options), "variants": variants, "id": recipe.id}


def _source(name: str) -> str | None:
    """A digest of the file that defines a built-in workload; None for one that is defined elsewhere."""
    path = plugins.file_of("workloads", name)
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path and path.parent == FOLDER else None


@cache
def _kept() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(FACTS.read_text(encoding="utf-8"))
    return found


def write() -> None:
    """Describes every workload of this folder anew."""
    from fathom.workloads.base import workload_class

    sources = {name: _source(name) for name in plugins.names("workloads")}
    own = [name for name, source in sources.items() if source]
    found = {name: {**describe(workload_class(name)), "source": sources[name]} for name in own}
    FACTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write()
