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

from fathom import published as paper
from fathom.analysis import relatives
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.relatives import CLEARLY, CLOSE, Vector, nearest_of, todays_type
from fathom.analysis.selection import RunGroup, Selection, op_type, select
from fathom.core.formatting import listed
from fathom.core.record import Record
from fathom.core.spec import PHASES

TITLE = "Which workloads are similar?"
ORDER = 70
CREDITED = (
    "with recurrent layers and attention counted as MatMul, fused LSTM cells as Mul, and other ops of today as "
    "docs/op-types.md lists"
)
IN_WORDS = {"train": "Training", "infer": "Inference"}


@dataclass(frozen=True)
class Merge:
    """Two clusters that were merged, at their cosine distance."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    distance: float

    @property
    def members(self) -> tuple[str, ...]:
        return self.left + self.right


@dataclass(frozen=True)
class Clustering:
    """The workloads that are clustered together: those of one machine in one phase, and others measured elsewhere.

    Others are those of a machine without references, which are the workloads whose rows the paper prints.
    """

    phase: str
    machine: str
    groups: list[RunGroup]
    others: list[RunGroup]

    @property
    def title(self) -> str:
        return f"{IN_WORDS.get(self.phase, self.phase)} on {self.machine}"

    @cached_property
    def merges(self) -> list[Merge]:
        return linkage(self.vectors())

    def vectors(self) -> dict[str, Vector]:
        """Leaf -> percentages; one of the others names its machine if its name is taken."""
        vectors = _percentages(self.groups)
        for other in self.others:
            taken = other.workload in vectors
            name = f"{other.workload} ({other.machine})" if taken else other.workload
            vectors[name] = _percent_of_ops(other)
        return vectors


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True)
    if not selection.groups:
        return not_measured("similarity", TITLE, "fathom study", selection.notes)
    clusterings = [each for phase in PHASES for each in _clusterings(phase, selection)]
    drawn = [each for each in clusterings if each.merges]
    published_merges = linkage(paper.op_percent())
    return Finding(
        question="similarity",
        title=TITLE,
        summary=" ".join(map(_sentence, clusterings)),
        tables=[
            _nearest_table(clusterings),
            *(_merge_table(_merges_title(each), each.merges) for each in drawn),
            _merge_table("Clusters in the 2016 paper", published_merges),
        ],
        charts=[
            *(_dendrogram(each.title, each.merges, _others_note(each)) for each in drawn),
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


def _clusterings(phase: str, measured: Selection) -> list[Clustering]:
    """One per machine. A machine without reference workloads has its workloads added to one that has them."""
    selection = Selection([group for group in measured.groups if group.phase == phase], [])
    others: dict[str, list[RunGroup]] = {}
    for machine in selection.machines:
        groups = selection.on(machine)
        if relatives.references(selection, machine) == 0:
            target = relatives.reference_machine(groups[0].runs[0], selection, other_kinds=True)
            if target is not None:
                others.setdefault(target, []).extend(groups)
    moved = {group.machine for each in others.values() for group in each}
    return [
        Clustering(phase, machine, selection.on(machine), others.get(machine, []))
        for machine in selection.machines
        if machine not in moved
    ]


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
    return {group.workload: _percent_of_ops(group) for group in groups}


def _percent_of_ops(group: RunGroup) -> Vector:
    """Of the time in ops: of the step, a workload that mostly waits would weigh next to nothing in a centroid."""
    seconds = group.seconds_by(op_type)
    total = math.fsum(seconds.values())
    return {kind: 100 * each / total for kind, each in seconds.items()} if total else {}


def _todays(groups: Sequence[RunGroup]) -> dict[str, Vector]:
    return {group.workload: group.seconds_by(todays_type) for group in groups}


def _sentence(clustering: Clustering) -> str:
    merges = clustering.merges
    if not merges:
        return _only(clustering.groups[0])
    first, last = merges[0], merges[-1]
    where = clustering.machine if clustering.phase == "train" else f"{clustering.machine} in inference"
    sentences = [f"Closest on {where}: {_together(first)} (distance {first.distance:.3f})."]
    if len(merges) > 1:
        sentences.append(f"Farthest: {listed(last.left)} from {listed(last.right)} ({last.distance:.2f}).")
    agreement = _agreement(_percentages(clustering.groups)) if clustering.phase == "train" else None
    if agreement is not None:
        sentences.append(f"Rank correlation of the distances with the 2016 paper: {agreement:.2f}.")
    return " ".join([*sentences, *(_other_sentence(clustering, other) for other in clustering.others)])


def _only(group: RunGroup) -> str:
    """The paper's rows are of training: a workload alone in inference has nothing to be compared with."""
    if group.phase != "train":
        return f"Only {group.workload} was measured in inference on {group.machine}: nothing to compare it with."
    own = relatives.in_2016(group.seconds_by(todays_type))
    return (
        f"Only {group.workload} was measured on {group.machine}. Published rows: {nearest_of(own, paper.op_percent())}."
    )


def _other_sentence(clustering: Clustering, other: RunGroup) -> str:
    closest = nearest_of(other.seconds_by(todays_type), _todays(clustering.groups))
    return f"{other.workload}, measured on {other.machine} without reference workloads: {closest}."


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
    from scipy.stats import spearmanr  # takes a second to import

    return float(spearmanr(here, there).statistic)


def _nearest_table(clusterings: Sequence[Clustering]) -> Table:
    rows = [
        _nearest_row(clustering, group)
        for clustering in clusterings
        for group in [*clustering.groups, *clustering.others]
    ]
    return Table(
        title="Nearest reference of each workload",
        columns=[
            "workload",
            "phase",
            "machine",
            "nearest measured",
            "distance",
            "next",
            "distance to it",
            "close relative",
            "measured on",
            "nearest published row",
            "distance to that row",
            "distance to its own published row",
        ],
        rows=rows,
    )


def _nearest_row(clustering: Clustering, group: RunGroup) -> list[Cell]:
    own = group.seconds_by(todays_type)
    measured = nearest_of(own, _todays([other for other in clustering.groups if other is not group]))
    row: list[Cell] = [group.workload, group.phase, group.machine]
    row += [*measured, "yes" if measured.close else "no", clustering.machine] if measured else [None] * 6
    if clustering.phase != "train":
        return [*row, None, None, None]
    credited, itself = relatives.in_2016(own), paper.op_percent().get(group.workload)
    printed = nearest_of(credited, paper.op_percent())
    row += list(printed[:2]) if printed else [None, None]
    return [*row, relatives.distance(credited, itself) if itself else None]


def _merges_title(clustering: Clustering) -> str:
    return f"Clusters {'in inference ' if clustering.phase != 'train' else ''}on {clustering.machine}"


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
        "Clusters, as in the paper: the distance of two profiles (op types, in percent of the time in ops) is 1 - cos "
        "of their angle. The two closest are merged into their centroid, weighted by members, until one is left.",
        "Nearest: the distance is 1 less the Bhattacharyya coefficient of the two mixes of today's op types: 0 is the "
        f"same mix, 1 has no op type in common. A close relative is at most {CLOSE} away and at least {CLEARLY} times "
        "as near as the next. Inference is compared with inference only; the published rows are of training.",
        f"Distances to a published row are {CREDITED}.",
        f"Published: the dendrogram of Fig. 4, from the rows of {paper.SOURCES['fathom_fig3_op_percent']}. Its text "
        f"gives about {paper.SIMILARITY_IN_TEXT} between {pairs}.",
    ]
