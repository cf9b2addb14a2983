"""Which workloads have similar profiles? Answers Fig. 4 of the 2016 paper: clustering by cosine distance.

SciPy's centroid linkage is Euclidean, and the paper's is not: it merges the two vectors closest by cosine distance,
replaces them by their centroid, and repeats. Weighting a centroid by its members, on vectors of plain percentages,
gives the distances that the paper states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

from scipy import stats

from fathom import published as paper
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.formatting import listed
from fathom.analysis.selection import RunGroup, Selection, machine_name, on_cpu, op_type, seconds_by, select
from fathom.core.errors import BadOption
from fathom.core.record import Profile, Record
from fathom.trace import taxonomy

TITLE = "Which workloads are similar?"
ORDER = 70
IN_2016 = taxonomy.IN_2016  # what an op type of today is compared with in a published row
CREDITED = (
    "with recurrent layers and attention counted as MatMul, fused LSTM cells as Mul, and other ops of today as "
    "docs/op-types.md lists"
)

Vector = Mapping[str, float]  # op type -> time, in any unit


@dataclass(frozen=True)
class Merge:
    """Two clusters that were merged, at their cosine distance."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    distance: float

    @property
    def members(self) -> tuple[str, ...]:
        return self.left + self.right


class Nearest(NamedTuple):
    workload: str
    distance: float

    def __str__(self) -> str:
        return f"closest to {self.workload}, distance {self.distance:.2f}"


@dataclass(frozen=True)
class Clustering:
    """The workloads that are clustered together: those of one machine, and others measured where no reference was.

    References are the workloads whose rows the paper prints.
    """

    machine: str
    groups: list[RunGroup]
    others: list[RunGroup]

    @cached_property
    def merges(self) -> list[Merge]:
        return linkage(self.vectors())

    def vectors(self) -> dict[str, Vector]:
        """Leaf -> percentages; one of the others names its machine if its name is taken."""
        vectors = _percentages(self.groups)
        for other in self.others:
            taken = other.workload in vectors
            name = f"{other.workload} ({other.machine})" if taken else other.workload
            vectors[name] = other.percent_by(op_type)
        return vectors


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True, phases=("train",))
    if not selection.groups:
        return not_measured("similarity", TITLE, "fathom study", selection.notes)
    clusterings = _clusterings(selection)
    drawn = [each for each in clusterings if each.merges]
    published_merges = linkage(paper.op_percent())
    return Finding(
        question="similarity",
        title=TITLE,
        summary=" ".join(map(_sentence, clusterings)),
        tables=[
            _nearest_table(clusterings),
            *(_merge_table(f"Clusters on {each.machine}", each.merges) for each in drawn),
            _merge_table("Clusters in the 2016 paper", published_merges),
        ],
        charts=[
            *(_dendrogram(f"Training on {each.machine}", each.merges, _others_note(each)) for each in drawn),
            _dendrogram("Published in 2016", published_merges),
        ],
        notes=[*_notes(), *selection.notes],
    )


def published() -> Finding:
    """The same question, answered from the rows that the paper prints."""
    merges = linkage(paper.op_percent())
    first, last = merges[0], merges[-1]
    return Finding(
        question="similarity",
        title=TITLE,
        summary=f"In the 2016 paper's own rows, {_together(first)} are closest (distance {first.distance:.3f}), "
        f"and {listed(last.left)} are far from {listed(last.right)} (distance {last.distance:.3f}).",
        tables=[_merge_table("Clusters in the 2016 paper", merges)],
        charts=[_dendrogram("Published in 2016", merges)],
        notes=_notes(),
    )


def nearest(model: Record | Profile, among: Sequence[Record] = ()) -> Nearest:
    """The workload with the most similar profile: among the records given, else among the paper's rows.

    A record is compared with what was measured on the same kind of device in the same phase (nearest_measured), a bare
    profile with all training runs.
    """
    if isinstance(model, Record):
        measured = nearest_measured(model, among)
        return measured[0] if measured else _nearest(_in_2016(_vector(model)), paper.op_percent())
    selection = select(among, profiled=True, phases=("train",))
    vectors = {group.workload: group.seconds_by(op_type) for group in selection.groups}
    own = seconds_by([model], op_type)
    return _nearest(own, vectors) if vectors else _nearest(_in_2016(own), paper.op_percent())


def nearest_measured(record: Record, among: Sequence[Record]) -> tuple[Nearest, str] | None:
    """The nearest reference workload on the machine most like the record's, and that machine; None without any."""
    selection = select(among, profiled=True, phases=(record.spec.phase,))
    machine = _reference_machine(record, selection)
    if machine is None:
        return None
    peers = {name: vector for name, vector in _percentages(selection.on(machine)).items() if name in paper.op_percent()}
    peers.pop(record.spec.workload, None)
    return (_nearest(_vector(record), peers), machine) if peers else None


def _vector(record: Record) -> Vector:
    if record.profile is None:
        raise BadOption(f"the run of {record.spec.workload} has no profile to compare; a profiled run has one")
    return seconds_by([record.profile], op_type)


def _in_2016(vector: Vector) -> Vector:
    """The same time under the op types of the paper."""
    credited: dict[str, float] = {}
    for kind, value in vector.items():
        there = IN_2016.get(kind, kind)
        credited[there] = credited.get(there, 0.0) + value
    return credited


def _clusterings(selection: Selection) -> list[Clustering]:
    """One per machine. A machine without reference workloads has its workloads added to one that has them."""
    others: dict[str, list[RunGroup]] = {}
    for machine in selection.machines:
        groups = selection.on(machine)
        if _references(groups) == 0:
            target = _reference_machine(groups[0].runs[0], selection, other_kinds=True)
            if target is not None:
                others.setdefault(target, []).extend(groups)
    moved = {group.machine for each in others.values() for group in each}
    return [
        Clustering(machine, selection.on(machine), others.get(machine, []))
        for machine in selection.machines
        if machine not in moved
    ]


def _reference_machine(record: Record, selection: Selection, other_kinds: bool = False) -> str | None:
    """The machine with reference workloads that is most like the record's; None without one, or one of its kind."""

    def likeness(machine: str) -> tuple[bool, bool, bool, int]:
        groups = selection.on(machine)
        other = groups[0].runs[0]
        same_kind, same_precision = on_cpu(other) == on_cpu(record), other.spec.precision == record.spec.precision
        return same_kind, machine == machine_name(record), same_precision, _references(groups)

    machines = [machine for machine in selection.machines if _references(selection.on(machine))]
    return max((machine for machine in machines if other_kinds or likeness(machine)[0]), key=likeness, default=None)


def _references(groups: Sequence[RunGroup]) -> int:
    """How many of the paper's workloads are among these."""
    return len({group.workload for group in groups} & set(paper.op_percent()))


def distance(one: Vector, other: Vector) -> float:
    """1 - cos of the angle between two profiles: 0 is the same mix of op types, 1 is no type in common."""
    product = sum(value * other.get(kind, 0.0) for kind, value in one.items())
    lengths = math.hypot(*one.values()) * math.hypot(*other.values())
    return max(0.0, 1 - product / lengths) if lengths > 0 else 1.0


def linkage(vectors: Mapping[str, Vector]) -> list[Merge]:
    """Greedy centroid linkage; members are in an order in which the dendrogram has no crossings."""
    clusters: dict[tuple[str, ...], Vector] = {(name,): vector for name, vector in vectors.items()}
    merges = []
    while len(clusters) > 1:
        left, right = min(combinations(clusters, 2), key=lambda pair: distance(clusters[pair[0]], clusters[pair[1]]))
        one, other = clusters.pop(left), clusters.pop(right)
        merges.append(Merge(left, right, distance(one, other)))
        clusters[left + right] = _centroid(one, len(left), other, len(right))
    return merges


def _centroid(one: Vector, weight: int, other: Vector, other_weight: int) -> Vector:
    return {
        kind: (weight * one.get(kind, 0.0) + other_weight * other.get(kind, 0.0)) / (weight + other_weight)
        for kind in {**one, **other}
    }


def _percentages(groups: Sequence[RunGroup]) -> dict[str, Vector]:
    return {group.workload: group.percent_by(op_type) for group in groups}


def _nearest(vector: Vector, among: Mapping[str, Vector]) -> Nearest:
    distances = {name: distance(vector, other) for name, other in among.items()}
    name = min(distances, key=lambda name: distances[name])
    return Nearest(name, distances[name])


def _sentence(clustering: Clustering) -> str:
    merges = clustering.merges
    if not merges:
        only = clustering.groups[0]
        closest = _nearest(_in_2016(only.percent_by(op_type)), paper.op_percent())
        return f"Only {only.workload} was measured on {clustering.machine}. Among the published rows it is {closest}."
    first, last = merges[0], merges[-1]
    sentences = [f"Closest on {clustering.machine}: {_together(first)} (distance {first.distance:.3f})."]
    if len(merges) > 1:
        sentences.append(f"Farthest: {listed(last.left)} from {listed(last.right)} ({last.distance:.2f}).")
    agreement = _agreement(_percentages(clustering.groups))
    if agreement is not None:
        sentences.append(f"Rank correlation of the distances with the 2016 paper: {agreement:.2f}.")
    return " ".join([*sentences, *(_other_sentence(clustering, other) for other in clustering.others)])


def _other_sentence(clustering: Clustering, other: RunGroup) -> str:
    closest = _nearest(other.percent_by(op_type), _percentages(clustering.groups))
    return f"{other.workload}, measured on {other.machine} without reference workloads, is {closest} there."


def _others_note(clustering: Clustering) -> str:
    measured = [f"{other.workload} was measured on {other.machine}" for other in clustering.others]
    return f"{listed(measured)}, where no reference workload was." if measured else ""


def _agreement(ours: Mapping[str, Vector]) -> float | None:
    """Spearman's correlation of the pairwise distances, measured and published; None below four shared workloads."""
    theirs = paper.op_percent()
    shared = [name for name in theirs if name in ours]
    if len(shared) < 4:
        return None
    pairs = list(combinations(shared, 2))
    here, there = ([distance(rows[one], rows[two]) for one, two in pairs] for rows in (ours, theirs))
    return float(stats.spearmanr(here, there).statistic)


def _nearest_table(clusterings: Sequence[Clustering]) -> Table:
    rows: list[list[Cell]] = []
    for clustering in clusterings:
        for group in [*clustering.groups, *clustering.others]:
            own = group.percent_by(op_type)
            peers = _percentages([other for other in clustering.groups if other is not group])
            measured = _nearest(own, peers) if peers else None
            printed = _nearest(_in_2016(own), paper.op_percent())
            itself = paper.op_percent().get(group.workload)
            rows.append(
                [
                    group.workload,
                    group.machine,
                    measured.workload if measured else None,
                    measured.distance if measured else None,
                    clustering.machine if measured else None,
                    printed.workload,
                    printed.distance,
                    distance(_in_2016(own), itself) if itself else None,
                ]
            )
    return Table(
        title="Nearest neighbour of each workload",
        columns=[
            "workload",
            "machine",
            "nearest measured",
            "distance",
            "measured on",
            "nearest published row",
            "distance to it",
            "distance to its own published row",
        ],
        rows=rows,
    )


def _merge_table(title: str, merges: Sequence[Merge]) -> Table:
    return Table(
        title=title,
        columns=["cluster", "merged with", "cosine distance"],
        rows=[[", ".join(merge.left), ", ".join(merge.right), merge.distance] for merge in merges],
    )


def _dendrogram(title: str, merges: Sequence[Merge], note: str = "") -> Chart:
    """Each merge as four points, from child to child at the merge's distance; a leaf is named at its end."""
    leaves = merges[-1].members
    height: dict[tuple[str, ...], float] = {(name,): float(index) for index, name in enumerate(leaves)}
    reach: dict[tuple[str, ...], float] = {(name,): 0.0 for name in leaves}
    series = []
    for merge in merges:
        up, down = height[merge.left], height[merge.right]
        height[merge.members], reach[merge.members] = (up + down) / 2, merge.distance
        series.append(
            Series(
                name=_together(merge),
                x=[reach[merge.left], merge.distance, merge.distance, reach[merge.right]],
                y=[up, up, down, down],
                text=[_leaf(merge.left), "", "", _leaf(merge.right)],
            )
        )
    return Chart(kind="dendrogram", title=title, x_title="cosine distance", y_title="", series=series, note=note)


def _leaf(cluster: tuple[str, ...]) -> str:
    return cluster[0] if len(cluster) == 1 else ""


def _together(merge: Merge) -> str:
    return listed(merge.members)


def _notes() -> list[str]:
    pairs = " and ".join(" with ".join(cluster) for cluster in paper.CLUSTERS_IN_TEXT)
    return [
        "The distance of two profiles (time by op type) is 1 - cos of their angle: 0 is the same mix, 1 has no op type "
        "in common. The two closest are merged into their centroid, weighted by members, until one is left.",
        f"Measured distances use our op types. Distances to a published row are {CREDITED}.",
        f"Published: the dendrogram of Fig. 4, from the rows of {paper.SOURCES['fathom_fig3_op_percent']}. Its text "
        f"gives about {paper.SIMILARITY_IN_TEXT} between {pairs}.",
    ]
