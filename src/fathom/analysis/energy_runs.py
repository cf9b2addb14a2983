"""The metered runs of one configuration as trials of one measurement: means, spread, and whether it is valid."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fathom.analysis.selection import configuration, counted, machine_name, workload_order
from fathom.core.energy import ESTIMATE, Energy
from fathom.core.formatting import number
from fathom.core.record import Record
from fathom.core.spec import EAGER, RunSpec

LARGEST_SPREAD = 0.03  # of joules per item over the trials, for the measurement to be repeatable
VALID, INVALID, ESTIMATED = "VALID", "INVALID", "estimated"
CHOICES = ("batch", "precision", "engine", "power_cap_w", "clock_cap_mhz")  # what a sweep may differ in
_NO_CHOICE: dict[str, Any] = dict.fromkeys(CHOICES) | {"precision": "fp32", "engine": EAGER}
Meters = tuple[tuple[str, bool], ...]  # what was metered, and whether it was estimated
UNITS = {"power_cap_w": "{:g} W", "clock_cap_mhz": "{:g} MHz", "batch": "batch {}"}


@dataclass(frozen=True)
class EnergyRuns:
    """One workload in one phase with one choice of settings on one machine, and its trials."""

    workload: str
    phase: str
    machine: str  # precision and engine in it
    runs: list[Record]  # its valid trials; where none is valid, all
    left_out: list[Record] = field(default_factory=list)  # trials that are not valid, beside those that are

    @property
    def spec(self) -> RunSpec:
        return configuration(self.runs[0])

    @property
    def energies(self) -> list[Energy]:
        return [run.energy for run in self.runs if run.energy]

    @property
    def item(self) -> str:
        """What joules are counted by: a whole step where a record does not say how many items that is."""
        return (self.runs[0].item or "item") if self.knows_items else "step"

    @property
    def knows_items(self) -> bool:
        return bool(self.runs[0].items_per_step)

    @property
    def items_per_step(self) -> int:
        return self.runs[0].items_per_step or 1

    @property
    def meters(self) -> Meters:
        return meters(self.energies[0])

    @property
    def step_s(self) -> float:
        """Of the metered window: what lies between steps is paid for, too."""
        return self._mean(lambda energy: energy.window_s / energy.steps)

    @property
    def item_s(self) -> float:
        return self.step_s / self.items_per_step

    @property
    def per_step_j(self) -> float:
        return self._mean(lambda energy: energy.per_step_j)

    @property
    def per_item_j(self) -> float:
        return self.per_step_j / self.items_per_step

    @property
    def total_j(self) -> float:
        """Of one trial's window."""
        return self._mean(lambda energy: energy.joules)

    @property
    def steps(self) -> float:
        return self._mean(lambda energy: energy.steps)

    @property
    def window_s(self) -> float:
        return self._mean(lambda energy: energy.window_s)

    @property
    def mean_w(self) -> float:
        return self._mean(lambda energy: energy.mean_w)

    @property
    def peak_w(self) -> float | None:
        """The largest sum over the meters that any trial saw; their peaks need not coincide, so this is a bound."""
        return max((peak for energy in self.energies if (peak := _sum(energy, "peak_w")) is not None), default=None)

    @property
    def idle_w(self) -> float | None:
        found = [idle for energy in self.energies if (idle := _sum(energy, "idle_w")) is not None]
        return statistics.fmean(found) if found else None

    @property
    def step_edp(self) -> float:
        """Energy-delay product in joule seconds: windows differ in length, a step is always the same work."""
        return self._mean(lambda energy: energy.per_step_j * energy.window_s / energy.steps)  # of each trial by itself

    @property
    def item_edp(self) -> float:
        return self.step_edp / self.items_per_step**2

    @property
    def gap(self) -> float | None:
        """Integrated power against the counter: of all parts that have both, the farthest off."""
        gaps = [part.gap for energy in self.energies for part in energy.counted if part.gap is not None]
        return max(gaps, key=abs, default=None)

    @property
    def spread(self) -> float | None:
        """From the least to the greatest joules per step of a trial, of their mean; None of a single trial."""
        return self._spread(lambda energy: energy.per_step_j) if len(self.runs) > 1 else None

    @property
    def estimated(self) -> bool:
        return any(energy.estimated for energy in self.energies)

    @property
    def window_reasons(self) -> list[str]:
        """Why none of its trials is valid, the number first; none where one is."""
        found: dict[str, list[str]] = defaultdict(list)  # those that differ in their numbers alone are one
        for run in self.runs:
            for reason in trial_reasons(run):
                found[re.sub(r"^[+-]?[\d.]+", "", reason)].append(reason)
        many = len(self.runs)
        return [
            each[0]
            if many == 1
            else f"{each[0]} ({'in' if len(set(each)) == 1 else 'alike in'} {len(each)} of {many} trials)"
            for each in found.values()
        ]

    @property
    def reasons(self) -> list[str]:
        """Why it is invalid, the number first; none of a valid measurement."""
        if self.spread is None or self.spread <= LARGEST_SPREAD:
            return self.window_reasons
        time = self._spread(lambda energy: energy.window_s / energy.steps)
        power = self._spread(lambda energy: energy.mean_w)
        apart = f"{100 * self.spread:.2g} % between trials, {100 * LARGEST_SPREAD:g} % are allowed"
        return [*self.window_reasons, f"{apart} (step time {100 * time:.2g} %, power {100 * power:.2g} %)"]

    @property
    def verdict(self) -> str:
        """An estimate is no measurement, valid or not."""
        return INVALID if self.reasons else ESTIMATED if self.estimated else VALID

    def _mean(self, value: Callable[[Energy], float]) -> float:
        return statistics.fmean(value(energy) for energy in self.energies)

    def _spread(self, value: Callable[[Energy], float]) -> float:
        values = [value(energy) for energy in self.energies]
        mean = statistics.fmean(values)
        return (max(values) - min(values)) / mean if mean else 0.0


def trial_reasons(run: Record) -> list[str]:
    """Why the energy of one run is not valid, the number first; none where it is."""
    return [*(run.energy.invalid if run.energy else ()), *run.disturbance.reasons]


def meters(energy: Energy) -> Meters:
    """What was metered, and whether it was estimated: joules of other parts are no trials of one measurement."""
    return tuple(sorted({(part.scope, part.kind == ESTIMATE) for part in energy.counted}))


def metered(records: Iterable[Record]) -> list[EnergyRuns]:
    """The metered runs by configuration; where some were made for their energy, these alone count."""
    groups: dict[tuple[str, str, str, str, Meters], list[Record]] = defaultdict(list)
    for record in records:
        if record.outcome == "ok" and record.energy is not None and record.spec.kind != "training":
            spec = record.spec
            key = (spec.workload, spec.phase, machine_name(record), configuration(record).id, meters(record.energy))
            groups[key].append(record)
    found = []
    for (workload, phase, machine, *_), runs in groups.items():
        trials = [run for run in runs if run.spec.kind == "energy"] or runs
        valid = [run for run in trials if not trial_reasons(run)]
        left_out = [run for run in trials if valid and trial_reasons(run)]
        found.append(EnergyRuns(workload, phase, machine, valid or trials, left_out))
    return sorted(found, key=_order)


def sweeps(found: Sequence[EnergyRuns]) -> list[list[EnergyRuns]]:
    """Those that differ in nothing but choices of a sweep, where there are at least two; all with the same meters."""
    groups: dict[tuple[str, str, str, str, Meters], list[EnergyRuns]] = defaultdict(list)
    for runs in found:
        same = dataclasses.replace(runs.spec, **_NO_CHOICE)
        groups[runs.workload, runs.phase, runs.runs[0].machine_label, same.id, runs.meters].append(runs)
    return [group for group in groups.values() if len(group) > 1]


def labels(group: Sequence[EnergyRuns]) -> list[str]:
    """What tells each from the others, such as "batch 8, bf16"."""
    differing = [name for name in CHOICES if len({getattr(runs.spec, name) for runs in group}) > 1]
    return [", ".join(_choice(name, getattr(runs.spec, name)) for name in differing) for runs in group]


def _choice(name: str, value: object) -> str:
    if value is None:
        return "preset's batch" if name == "batch" else f"no {name.partition('_')[0]} cap"
    return UNITS.get(name, "{}").format(value)


def in_words(runs: EnergyRuns) -> str:
    """The verdict with its reasons, and the trials that do not count with theirs."""
    verdict = f"{runs.verdict}: {'; '.join(runs.reasons)}" if runs.reasons else runs.verdict
    if not runs.left_out:
        return verdict
    why = counted("; ".join(trial_reasons(run)) for run in runs.left_out)
    return f"{verdict}; {len(runs.left_out)} of {len(runs.runs) + len(runs.left_out)} trials left out: {why}"


def kilowatt_hours(joules: float) -> float:
    return joules / 3.6e6


def joules(value: float) -> str:
    """With the unit that suits it: 3.52 kJ, 12.1 mJ."""
    for unit, size in (("MJ", 1e6), ("kJ", 1e3), ("J", 1.0), ("mJ", 1e-3)):
        if value >= size:
            return f"{number(value / size)} {unit}"
    return f"{number(value / 1e-6)} µJ"


def _sum(energy: Energy, name: str) -> float | None:
    """Over the parts that add up to the total; None where one of them does not show it."""
    values = [getattr(part, name) for part in energy.counted]
    return None if None in values else sum(values)


def _order(runs: EnergyRuns) -> tuple[object, ...]:
    spec = runs.spec
    caps = (spec.power_cap_w or 0.0, spec.clock_cap_mhz or 0.0)
    return workload_order(runs.workload), runs.phase != "train", runs.machine, spec.batch or 0, caps
