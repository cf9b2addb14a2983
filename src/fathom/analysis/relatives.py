"""Which reference workload is a profile a close relative of, if any: distances at today's op types, and the rule.

The distance is 1 less the Bhattacharyya coefficient of the two mixes of op types, which is Hellinger's distance
squared. Cosine distance, which the paper clusters by, is decided by the largest type alone: it puts every model that
is mostly matrix products at 0.00 from every other one. docs/method.md has how often either finds a workload again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fathom import published as paper
from fathom.analysis.selection import Selection, machine_name, on_cpu, seconds_by, select
from fathom.core.errors import BadOption
from fathom.core.record import OpRow, Profile, Record
from fathom.trace.taxonomy import IN_2016, group_of, type_of

Vector = Mapping[str, float]  # op type -> time, in any unit

# 95 % of the distances of one workload from itself, between machines of one kind, are below the first; the second is
# how much farther the next reference must be. tests/test_relatives.py has the counts from the committed records.
CLOSE, CLEARLY = 0.13, 1.5
COMMUNICATION = "H"  # its class
# in records of earlier versions: types that have another name now, and types that were wider
_RENAMED = {"LSTM": "RNN", "Attention": "ScaledDotProductAttention"}
_WIDER = {"BatchNorm", "Relu", "Tanh", "CrossEntropy", "Sum", "Max", "Gather", "Scatter", "Other"}


class Nearest(NamedTuple):
    """The nearest reference and the next one; whether the nearest is a relative is `close`."""

    workload: str
    distance: float  # 0 is the same mix of op types, 1 is no type in common
    next_workload: str | None = None
    next_distance: float | None = None

    @property
    def close(self) -> bool:
        """Near enough to be the same workload on another machine, and clearly nearer than any other."""
        separated = self.next_distance is None or self.next_distance >= CLEARLY * self.distance
        return self.distance <= CLOSE and separated

    def to_json(self) -> dict[str, Any]:
        return {"closest": self.workload if self.close else None, **self._asdict()}

    def __str__(self) -> str:
        own, other = f"{self.workload} at {_shown(self.distance)}", ""
        if self.next_workload is not None and self.next_distance is not None:
            other = f"{self.next_workload} at {_shown(self.next_distance)}"
        if self.close:
            return f"closest to {self.workload}, distance {_shown(self.distance)}" + (
                f"; next is {other}" if other else ""
            )
        return f"no close relative: distance {', '.join(filter(None, (own, other)))}"


def _shown(distance: float) -> str:
    """Three digits; a distance that is not 0 is never shown as if it were."""
    return "below 0.001" if 0 < distance < 0.001 else f"{distance:.3f}"


def distance(one: Vector, other: Vector) -> float:
    """1 less the sum over types of the geometric mean of the two shares; 1 if either has no time."""
    total, other_total = sum(one.values()), sum(other.values())
    if total <= 0 or other_total <= 0:
        return 1.0
    shared = sum(math.sqrt(max(0.0, value) * max(0.0, other.get(kind, 0.0))) for kind, value in one.items())
    return min(1.0, max(0.0, 1 - shared / math.sqrt(total * other_total)))


def nearest_of(vector: Vector, references: Mapping[str, Vector]) -> Nearest | None:
    """The nearest and the next of the references; None without any."""
    ordered = sorted((distance(vector, other), name) for name, other in references.items())
    if not ordered:
        return None
    first, second = ordered[0], ordered[1] if len(ordered) > 1 else (None, None)
    return Nearest(first[1], first[0], second[1], second[0])


def nearest(model: Record | Profile, among: Sequence[Record] = ()) -> Nearest | None:
    """The nearest of the reference workloads measured in the same phase, else of the paper's rows.

    None where there is nothing to compare with: the paper's rows are of training, so an inference profile needs records
    of inference. A record is compared with what was measured on the same kind of device (nearest_measured), a bare
    profile with all.
    """
    if isinstance(model, Record):
        measured = nearest_measured(model, among)
        return measured[0] if measured else nearest_published(model)
    groups = select(among, profiled=True, phases=(model.phase,)).groups
    own = vector_of(model)
    found = nearest_of(own, {group.workload: group.seconds_by(todays_type) for group in groups})
    return found or (nearest_of(in_2016(own), paper.op_percent()) if model.phase == "train" else None)


def nearest_measured(record: Record, among: Sequence[Record]) -> tuple[Nearest, str] | None:
    """The nearest reference workload on the machine most like the record's, and that machine; None without any."""
    selection = select(among, profiled=True, phases=(record.spec.phase,))
    machine = reference_machine(record, selection)
    if machine is None:
        return None
    peers = {group.workload: group.seconds_by(todays_type) for group in selection.on(machine)}
    known = {name: peer for name, peer in peers.items() if name in paper.op_percent() and name != record.spec.workload}
    found = nearest_of(vector_of(record), known)
    return (found, machine) if found else None


def nearest_published(record: Record) -> Nearest | None:
    """The nearest of the rows that the paper prints, which are of training; None for another phase."""
    own = in_2016(vector_of(record))
    return nearest_of(own, paper.op_percent()) if record.spec.phase == "train" else None


def vector_of(model: Record | Profile) -> Vector:
    """Time by op type, communication left out: the references run on one device."""
    profile = model.profile if isinstance(model, Record) else model
    if profile is None:
        raise BadOption("the run has no profile to compare; a profiled run has one")
    seconds = seconds_by([profile], todays_type)
    return {kind: value for kind, value in seconds.items() if group_of(kind) != COMMUNICATION}


def todays_type(row: OpRow) -> str:
    """The op type that the row's op has today, also in a record of an earlier version."""
    if row.type in _WIDER:
        return type_of(row.op) or row.type
    return _RENAMED.get(row.type, row.type)


def in_2016(vector: Vector) -> Vector:
    """The same time under the op types of the paper."""
    credited: dict[str, float] = {}
    for kind, value in vector.items():
        there = IN_2016.get(kind, kind)
        credited[there] = credited.get(there, 0.0) + value
    return credited


def reference_machine(record: Record, selection: Selection, other_kinds: bool = False) -> str | None:
    """The machine with reference workloads that is most like the record's; None without one, or one of its kind."""

    def likeness(machine: str) -> tuple[bool, bool, bool, int]:
        groups = selection.on(machine)
        other = groups[0].runs[0]
        same_kind, same_precision = on_cpu(other) == on_cpu(record), other.spec.precision == record.spec.precision
        return same_kind, machine == machine_name(record), same_precision, references(selection, machine)

    machines = [machine for machine in selection.machines if references(selection, machine)]
    return max((machine for machine in machines if other_kinds or likeness(machine)[0]), key=likeness, default=None)


def references(selection: Selection, machine: str) -> int:
    """How many of the paper's workloads were measured on a machine."""
    return len({group.workload for group in selection.on(machine)} & set(paper.op_percent()))
