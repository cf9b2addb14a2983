"""Energy of a workload: several trials of each setting of a sweep, each in its own process, in random order.

A setting is a spec and what has to be changed about the machine while it runs: nothing for batch, precision and engine.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fathom.core.events import OnProgress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import study

PROFILED_STEPS = 200  # timed before the profiled ones, at most
PROFILED_S = 3.0  # ... or for so long


@dataclass(frozen=True)
class Setting:
    """What to run, and a context that holds the machine in the state it is to run in."""

    spec: RunSpec
    applied: Callable[[], AbstractContextManager[object]] = nullcontext


def settings(
    base: RunSpec, batches: Sequence[int] = (), precisions: Sequence[str] = (), engines: Sequence[str] = ()
) -> list[Setting]:
    """Every combination of what is swept; the base alone where nothing is."""
    sizes: Sequence[int | None] = batches or [base.batch]
    combined = itertools.product(sizes, precisions or [base.precision], engines or [base.engine])
    return [
        Setting(replace(base, batch=batch, precision=precision, engine=engine))
        for batch, precision, engine in dict.fromkeys(combined)
    ]


def run_order(found: Sequence[Setting], trials: int, seed: int = 0) -> list[Setting]:
    """Each setting once in each block of the series: a machine that warms up affects all settings alike."""
    chance = random.Random(seed)
    return [setting for _ in range(trials) for setting in chance.sample(found, len(found))]


def run_all(
    ordered: Sequence[Setting],
    store: Store,
    watch: Callable[[int, RunSpec], OnProgress],
    on_wait: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Record, Path]]:
    """The record of each run, written at once; the machine is put back after each, whatever comes of it."""
    for index, setting in enumerate(ordered):
        with setting.applied():
            yield from study.run_all([setting.spec], store, partial(_at, watch, index), on_wait=on_wait)


def _at(watch: Callable[[int, RunSpec], OnProgress], index: int, _: int, spec: RunSpec) -> OnProgress:
    return watch(index, spec)


def profiles(found: Sequence[Setting], store: Store) -> list[Setting]:
    """A profiled run of each setting that has none here: its op rows are what the joules are shared out over."""
    planned = [
        replace(
            setting.spec,
            kind="profiled",
            steps=PROFILED_STEPS,
            budget_s=PROFILED_S,
            window_s=None,
            idle_s=None,
            period_s=None,
            estimates=False,
        )
        for setting in found
    ]
    missing = {spec.id for spec in store.remaining(planned)}
    return [replace(setting, spec=spec) for setting, spec in zip(found, planned, strict=True) if spec.id in missing]
