"""Energy of a workload: several trials of each setting of a sweep, each in its own process, in random order.

A setting is a spec and what has to be changed about the machine while it runs: nothing for batch, precision and engine,
a cap that is set before the run and restored after it otherwise.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fathom.core.events import OnProgress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import study
from fathom.experiments.capping import Capped
from fathom.experiments.isolate import isolated
from fathom.machine.governor import Governor, find_governors
from fathom.machine.meter import Target

if TYPE_CHECKING:
    import torch

MECHANISMS = {  # what is capped, of what -> the governor
    ("power_cap_w", "gpu"): "nvml_power_limit",
    ("power_cap_w", "cpu"): "rapl_limit",
    ("clock_cap_mhz", "gpu"): "nvml_locked_clocks",
    ("clock_cap_mhz", "cpu"): "cpufreq",
}
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
    arithmetic: Sequence[str | None] = precisions or [base.precision]
    combined = itertools.product(sizes, arithmetic, engines or [base.engine])
    return [
        Setting(replace(base, batch=batch, precision=precision, engine=engine))
        for batch, precision, engine in dict.fromkeys(combined)
    ]


def mechanism(cap: str, device: torch.device) -> list[Governor]:
    """What sets a cap (power_cap_w or clock_cap_mhz) on the parts that a device runs on."""
    kind = "cpu" if device.type == "cpu" else "gpu"
    return find_governors(MECHANISMS[cap, kind], Target.of(device))


def capped(found: Sequence[Setting], cap: str, governors: Sequence[Governor], values: Sequence[float]) -> list[Setting]:
    """Each setting below each cap, as the driver rounds it; the machine is as before between two runs."""
    settings = []
    for value in values:
        permitted = governors[0].permitted(value)
        change: dict[str, Any] = {cap: permitted}
        settings += [Setting(replace(setting.spec, **change), partial(_Cap, governors, permitted)) for setting in found]
    return settings


class _Cap(Capped):
    """Capped for one run: applied when it is entered, and restored when it is left."""

    def __init__(self, governors: Sequence[Governor], value: float) -> None:
        super().__init__(governors)
        self._value = value

    def __enter__(self) -> Self:
        try:
            super().__enter__()
            self.apply(self._value)
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self


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
        run = partial(_applied, setting)
        yield from list(study.run_all([setting.spec], store, partial(_at, watch, index), run, on_wait))


def _applied(setting: Setting, spec: RunSpec, on_progress: OnProgress) -> Record:
    """With the folder's lock held: another process that measures there would run below the cap."""
    with setting.applied():
        return isolated(spec, on_progress)


def to_run_again(ordered: Sequence[Setting], records: Sequence[Record]) -> list[Setting]:
    """Trials that may come out otherwise when run again: disturbed ones, and invalid ones beside valid ones.

    None where these are most: the machine is busy.
    """
    valid = {record.spec.id for record in records if record.energy and not record.energy.invalid}
    again = [
        setting
        for setting, record in zip(ordered, records, strict=True)
        if record.energy and (record.disturbed or (record.energy.invalid and record.spec.id in valid))
    ]
    busy = study.is_busy([setting.spec for setting in ordered], [setting.spec for setting in again])
    return [] if busy else again


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


def write_trace(spec: RunSpec, path: Path) -> None:
    """A Perfetto trace of some steps in this process, with power and clocks where they are metered."""
    from fathom.measure import profiling  # here, as it loads torch

    profiling.write_trace(spec, path)
