"""Equal work: what two runs must have in common for their machines to be compared.

The same network, batch, precision and data. The machine, the engine and the number of threads are how it was done.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from fathom.analysis.selection import RunGroup, select
from fathom.core.record import Record
from fathom.core.spec import OWN

SYNTHETIC = "synthetic"
WORDS = {"items": "items per step"}  # what a field of Work is called, where its name does not say it


@dataclass(frozen=True)
class Work:
    workload: str
    phase: str
    preset: str
    items: int  # per step
    precision: str | None  # None: not known
    data: str  # the name of the data set's folder, wherever it lies
    options: str  # changed fields of the workload, as JSON

    def in_phase(self, phase: str) -> Work:
        return replace(self, phase=phase)

    def differences(self, other: Work) -> list[str]:
        """In what two runs of one workload and phase differ, in words."""
        ours, theirs = asdict(self), asdict(other)
        return [WORDS.get(name, name) for name in ours if ours[name] != theirs[name]]


def work_of(record: Record) -> Work | None:
    """What a run did; None where the record does not say how many items a step had."""
    spec = record.spec
    if not record.items_per_step:
        return None
    return Work(
        workload=spec.workload,
        phase=spec.phase,
        preset=spec.preset,
        items=record.items_per_step,
        precision=spec.precision,
        data=spec.data.rpartition("/")[2] if spec.data else SYNTHETIC if spec.source == "workload" else OWN,
        options=json.dumps(dict(spec.options), sort_keys=True),
    )


def groups_by_work(records: Sequence[Record]) -> dict[tuple[Work, str], RunGroup]:
    """(work, machine) -> what its time is of, in one configuration: of a thread sweep, the machine's default."""
    by_work: dict[Work, list[Record]] = defaultdict(list)
    for record in records:
        if work := work_of(record):
            by_work[work].append(record)
    return {
        (work, group.machine): replace(group, runs=group.timed)
        for work, runs in by_work.items()
        for group in select(runs, profiled=False).groups
    }


def same_network(one: Record, other: Record) -> bool:
    """By its number of parameters, where both are known: a version of the suite may have changed it."""
    return None in (one.parameters, other.parameters) or one.parameters == other.parameters


def same_item(one: Record, other: Record) -> bool:
    return None in (one.item, other.item) or one.item == other.item
