"""Joules per item that were measured: from the valid energy runs among some records, by device of the catalogue."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping

from fathom.analysis.energy_runs import VALID, EnergyRuns, metered
from fathom.core.errors import UnknownName
from fathom.core.record import Record
from fathom.core.spec import EAGER
from fathom.predict import catalogue

Key = tuple[str, str, int]  # device, precision, batch
JoulesPerItem = Mapping[Key, float]


def joules_per_item(records: Iterable[Record], workload: str, phase: str, preset: str) -> dict[Key, float]:
    """Of one GPU, executed eagerly and without caps; runs that are invalid or estimated do not count."""
    found: dict[Key, list[float]] = defaultdict(list)
    for runs in metered(records):
        spec = runs.spec
        same = (runs.workload, runs.phase, spec.preset, spec.engine) == (workload, phase, preset, EAGER)
        free = spec.power_cap_w is None and spec.clock_cap_mhz is None and spec.ranks is None
        free = free and not spec.options and spec.data is None and spec.threads is None
        device = _device(runs)
        if same and free and device is not None and spec.precision is not None and runs.verdict == VALID:
            found[device, spec.precision, runs.items_per_step].append(runs.per_item_j)
    return {key: statistics.median(values) for key, values in found.items()}  # several machines may have such a GPU


def _device(runs: EnergyRuns) -> str | None:
    """As the catalogue calls it; None for a CPU, and for a GPU that it does not have."""
    gpu = runs.runs[0].gpu
    if gpu is None or gpu.name is None:
        return None
    try:
        return catalogue.device(gpu.name).name
    except UnknownName:
        return None
