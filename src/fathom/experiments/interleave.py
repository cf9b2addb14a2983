"""Two versions or two settings measured alternately, so that a drift of the machine affects both alike.

A side is a checkout of Fathom, a Python environment, or a change of the spec. Runs come in pairs, one of each side. The
side that goes first is random, but of every two pairs of a workload one begins with A and one with B.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fathom.core.errors import BadOption, FathomError, UnknownName
from fathom.core.events import OnProgress, no_progress
from fathom.core.record import Record
from fathom.core.spec import RunSpec, read_value
from fathom.core.store import Store
from fathom.experiments.checks import check
from fathom.experiments.isolate import failed, isolated

STEPS = 200  # timed in one run, at most
BUDGET_S = 2.0  # for the timed steps of one run: beyond it, another run is worth more than more steps
SETTINGS: Mapping[str, type] = {"precision": str, "device": str, "engine": str, "threads": int, "batch": int}


@dataclass(frozen=True)
class Side:
    """A or B: where its workers run, and what it changes of a spec."""

    name: str
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)  # of a spec
    options: Mapping[str, Any] = field(default_factory=dict)  # of its workload

    def spec(self, base: RunSpec) -> RunSpec:
        return replace(base, **self.changes, options={**base.options, **self.options})

    def check(self, base: RunSpec, *, load: bool) -> None:
        """Raises what every run would be refused for: by its names, or after loading torch and the workload.

        Of a side with its own version of Fathom, nothing is known here.
        """
        if self.environment:
            return
        try:
            check(self.spec(base))
            if load:
                from fathom.engine.session import Session

                Session(self.spec(base))
        except FathomError as error:
            raise BadOption(f"{self.name}: {error}") from None

    def run(self, base: RunSpec, on_progress: OnProgress) -> Record:
        """A run that is refused, for lack of memory say, is a failed record: others may succeed."""
        spec = self.spec(base)
        try:
            return isolated(spec, on_progress, python=self.python, environment=self.environment)
        except FathomError as error:
            return failed(spec, str(error))


@dataclass(frozen=True)
class Launch:
    """One run of one side."""

    spec: RunSpec
    side: int  # 0 for A, 1 for B


def parse_side(name: str, text: str) -> Side:
    """A side from the folder of a checkout (src/fathom, run by this interpreter), of a Python environment (bin/python),
    or from settings.

    Settings are name=value, separated by commas; set.NAME is an option of the workload.

        parse_side("B", "threads=2,precision=bf16,set.latent=40")
    """
    folder = Path(text)
    if (folder / "src" / "fathom").is_dir():
        return Side(name, environment=_importing_from(str(folder.resolve() / "src")))
    if os.access(folder / "bin" / "python", os.X_OK):
        return Side(name, python=str(folder.absolute() / "bin" / "python"), environment=_importing_from(""))
    if "=" not in text or folder.exists():
        raise BadOption(f"{text}: not a checkout (src/fathom), not a Python environment (bin/python), not name=value")
    return _settings(name, text)


def launch_order(specs: Sequence[RunSpec], runs: int, seed: int = 0) -> list[Launch]:
    """So many pairs of runs of each spec, one run of each side in a pair; the first pair is also profiled."""
    chance = random.Random(seed)
    first_of: dict[str, int] = {}  # spec -> the side that began its last pair
    order = []
    for number in range(runs):
        for spec in chance.sample(specs, len(specs)):
            first = 1 - first_of[spec.id] if number % 2 else chance.randrange(2)
            first_of[spec.id] = first
            launched = replace(spec, kind="timed" if number else "profiled")
            order += [Launch(launched, first), Launch(launched, 1 - first)]
    return order


def interleave(
    order: Sequence[Launch],
    sides: tuple[Side, Side],
    stores: tuple[Store, Store],
    watch: Callable[[int, Launch], OnProgress] = lambda index, launch: no_progress,
) -> Iterator[tuple[Launch, Record]]:
    """Runs in this order and writes each record at once. What can be refused beforehand is refused at the call."""
    for spec in {launch.spec.workload: launch.spec for launch in order}.values():
        _check(spec, sides)
    for store in stores:
        store.check_writable()
    return _launched(order, sides, stores, watch)


def _launched(
    order: Sequence[Launch],
    sides: tuple[Side, Side],
    stores: tuple[Store, Store],
    watch: Callable[[int, Launch], OnProgress],
) -> Iterator[tuple[Launch, Record]]:
    """A workload whose first run on a side fails is given up, but for the first run on the other side."""
    tried, succeeded, given_up = set(), set(), set()
    for index, launch in enumerate(order):
        work = launch.spec.workload, launch.spec.phase
        if work in given_up and (launch.side, work) in tried:
            continue
        record = sides[launch.side].run(launch.spec, watch(index, launch))
        tried.add((launch.side, work))
        if record.outcome == "ok":
            succeeded.add((launch.side, work))
        elif (launch.side, work) not in succeeded:
            given_up.add(work)
        stores[launch.side].add(record)
        yield launch, record


def _check(spec: RunSpec, sides: tuple[Side, Side]) -> None:
    """Raises what the user can correct before anything is measured."""
    check(spec)
    for side in sides:
        side.check(spec, load=False)
    try:
        from fathom.workloads.base import workload_class  # torch

        workload_class(spec.workload).configured(spec.preset)
        for side in sides:
            side.check(spec, load=True)
    except FathomError:
        raise
    except Exception:
        return  # a workload that is broken here: its runs record how


def _importing_from(path: str) -> dict[str, str]:
    """Environment variables with which a worker imports Fathom from there, and not from the working directory."""
    return {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _settings(name: str, text: str) -> Side:
    changes, options = {}, {}
    for pair in text.split(","):
        key, _, value = pair.partition("=")
        if key.startswith("set."):
            options[key.removeprefix("set.")] = read_value(value)
        elif key in SETTINGS:
            changes[key] = _typed(key, read_value(value))
        else:
            raise UnknownName.among("setting", key, [*SETTINGS, "set.NAME"])
    return Side(name, changes=changes, options=options)


def _typed(key: str, value: Any) -> Any:
    if type(value) is not SETTINGS[key]:
        raise BadOption(f"{key} takes {'a whole number' if SETTINGS[key] is int else 'a word'}, not {value!r}")
    return value
