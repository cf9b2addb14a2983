"""Two versions or two settings measured in turns, so that a drift of the machine meets both alike.

A side is a checkout of Fathom, a Python environment, or a change of the spec. Launches come in pairs, one of each side,
at random A or B first, but of every two pairs of a workload one begins with A and one with B.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fathom.core.errors import BadOption, FathomError, UnknownName
from fathom.core.events import Progress
from fathom.core.record import Record
from fathom.core.spec import RunSpec, read_value
from fathom.core.store import Store
from fathom.experiments.isolate import failed, isolated

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

    def check(self, base: RunSpec) -> None:
        """Raises what every launch would be refused for; of a side with a Fathom of its own, nothing is known here."""
        if self.environment:
            return
        from fathom.engine.session import Session  # torch, which `fathom --help` need not wait for

        try:
            Session(self.spec(base))
        except FathomError as error:
            raise BadOption(f"{self.name}: {error}") from None

    def run(self, base: RunSpec, progress: Progress) -> Record:
        """What is refused here and now, for want of memory say, is a failed launch: others may go on."""
        spec = self.spec(base)
        try:
            return isolated(spec, progress, python=self.python, environment=self.environment)
        except FathomError as error:
            return failed(spec, str(error))


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
            launched = replace(spec, kind="timed" if number else "profiled")
            order += [Turn(launched, first), Turn(launched, 1 - first)]
    return order


def interleave(
    order: Sequence[Turn],
    sides: tuple[Side, Side],
    stores: tuple[Store, Store],
    watch: Callable[[int, Turn], Progress] = lambda index, turn: lambda done, total: None,
) -> Iterator[tuple[Turn, Record]]:
    """Launches in this order, keeping each record at once; what can be refused beforehand is, at the call."""
    for spec in {turn.spec.workload: turn.spec for turn in order}.values():
        _check(spec, sides)
    for store in stores:
        _make_ready(store.folder)
    return _launched(order, sides, stores, watch)


def _launched(
    order: Sequence[Turn],
    sides: tuple[Side, Side],
    stores: tuple[Store, Store],
    watch: Callable[[int, Turn], Progress],
) -> Iterator[tuple[Turn, Record]]:
    """What fails at a side's first launch is not launched again, but for the other side's first."""
    tried, sound, broken = set(), set(), set()
    for index, turn in enumerate(order):
        work = turn.spec.workload, turn.spec.phase
        if work in broken and (turn.side, work) in tried:
            continue
        record = sides[turn.side].run(turn.spec, watch(index, turn))
        tried.add((turn.side, work))
        if record.outcome == "ok":
            sound.add((turn.side, work))
        elif (turn.side, work) not in sound:
            broken.add(work)
        stores[turn.side].add(record)
        yield turn, record


def _check(spec: RunSpec, sides: tuple[Side, Side]) -> None:
    """Raises what the user can put right before anything is measured."""
    from fathom.workloads.base import workload_class  # torch, which `fathom --help` need not wait for

    try:
        workload_class(spec.workload).configured(spec.preset)
        for each in sides:
            each.check(spec)
    except FathomError:
        raise
    except Exception:
        return  # a workload that is broken here: its launches tell, as records


def _make_ready(folder: Path) -> None:
    """Found out now and not after the first launch: whether records can be kept there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise BadOption(f"cannot write {folder}: {error.strerror or error}") from None


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
