"""Two versions or two settings measured in turns, so that a drift of the machine meets both alike.

A side is a checkout of Fathom, a Python environment, or a change of the spec. Launches come in pairs, one of each side,
at random A or B first, but of every two pairs of a workload one begins with A and one with B.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fathom.errors import BadOption, UnknownName
from fathom.isolate import Refused, isolated
from fathom.progress import Progress
from fathom.record import Record
from fathom.spec import RunSpec, read_value
from fathom.store import Store

STEPS = 200  # timed in one launch, at most
BUDGET_S = 2.0  # for them: past it, one more launch tells more than many more steps
CHANGES: Mapping[str, type] = {"precision": str, "device": str, "threads": int, "batch": int}


@dataclass(frozen=True)
class Side:
    """Where the workers of A or of B run, and what their specs change."""

    name: str
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)  # of a spec
    options: Mapping[str, Any] = field(default_factory=dict)  # of its workload

    def spec(self, base: RunSpec) -> RunSpec:
        return replace(base, **self.changes, options={**base.options, **self.options})

    def run(self, base: RunSpec, progress: Progress) -> Record:
        try:
            return isolated(self.spec(base), progress, python=self.python, environment=self.environment)
        except Refused as error:
            raise BadOption(f"{self.name}: {error}") from None


@dataclass(frozen=True)
class Turn:
    """One launch."""

    spec: RunSpec
    side: int  # 0 for A, 1 for B


def side(name: str, text: str) -> Side:
    """From the folder of a checkout (src/fathom, run by this interpreter) or an environment (bin/python), or settings.

    Settings are name=value, several with commas between; set.NAME is a field of the workload.
    """
    folder = Path(text)
    if (folder / "src" / "fathom").is_dir():
        return Side(name, environment=_importing(str(folder.resolve() / "src")))
    if os.access(folder / "bin" / "python", os.X_OK):
        return Side(name, python=str(folder.absolute() / "bin" / "python"), environment=_importing(""))
    if "=" not in text or folder.exists():
        raise BadOption(f"{text}: no checkout (with src/fathom), no environment (with bin/python), and not name=value")
    return _settings(name, text)


def turns(specs: Sequence[RunSpec], rounds: int, seed: int = 0) -> list[Turn]:
    """In every round a pair of launches of each spec; the first round also profiles, after its steps are timed."""
    chance = random.Random(seed)
    begins: dict[str, int] = {}
    order = []
    for number in range(rounds):
        for spec in chance.sample(specs, len(specs)):
            first = 1 - begins[spec.id] if number % 2 else chance.randrange(2)
            begins[spec.id] = first
            launched = replace(spec, profile=number == 0)
            order += [Turn(launched, first), Turn(launched, 1 - first)]
    return order


def interleave(
    order: Sequence[Turn],
    sides: tuple[Side, Side],
    stores: tuple[Store, Store],
    watch: Callable[[int, Turn], Progress] = lambda index, turn: lambda done, total: None,
) -> Iterator[tuple[Turn, Record]]:
    """Launches in this order, keeping each record at once. What fails at its first launch is not launched again."""
    sound, broken = set(), set()
    for index, turn in enumerate(order):
        work = turn.spec.workload, turn.spec.phase
        if work in broken:
            continue
        record = sides[turn.side].run(turn.spec, watch(index, turn))
        if record.outcome == "ok":
            sound.add((turn.side, work))
        elif (turn.side, work) not in sound:
            broken.add(work)
        stores[turn.side].add(record)
        yield turn, record


def _importing(path: str) -> dict[str, str]:
    """Variables with which a worker finds its Fathom there, and not in the folder we stand in."""
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _settings(name: str, text: str) -> Side:
    changes, options = {}, {}
    for pair in text.split(","):
        key, _, value = pair.partition("=")
        if key.startswith("set."):
            options[key.removeprefix("set.")] = read_value(value)
        elif key in CHANGES:
            changes[key] = _typed(key, read_value(value))
        else:
            raise UnknownName.among("setting", key, [*CHANGES, "set.NAME"])
    return Side(name, changes=changes, options=options)


def _typed(key: str, value: Any) -> Any:
    if type(value) is not CHANGES[key]:
        raise BadOption(f"{key} takes {'a whole number' if CHANGES[key] is int else 'a word'}, not {value!r}")
    return value
