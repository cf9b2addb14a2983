"""Which workloads spend their time alike? Answers Fig. 4 of the 2016 paper: a tree of cosine distances.

SciPy's centroid linkage is Euclidean, and the paper's is not: it merges the two vectors closest by cosine distance,
puts their centroid in their place, and goes on. Weighting a centroid by its members, on vectors of plain percentages,
gives the distances that the paper states.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from scipy import stats

from fathom import published as paper
from fathom.analyses._settings import Setting, listed, op_type, seconds_by, select, unanswered
from fathom.analysis import Cell, Chart, Finding, Series, Table
from fathom.record import Profile, Record

TITLE = "Which workloads are alike?"

Vector = Mapping[str, float]  # op type -> time, in any unit


@dataclass(frozen=True)
class Joint:
    """Two clusters that became one, at their cosine distance."""

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


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True, phases=("train",))
    if not selection.settings:
        return unanswered("similarity", TITLE, "no training run with a profile", selection.notes)
    trees = {place: linkage(_percentages(selection.at(place))) for place in selection.places}
    return Finding(
        question="similarity",
        title=TITLE,
        summary=" ".join(_sentence(place, tree, selection.at(place)) for place, tree in trees.items()),
        tables=[
            _nearest_table(selection.settings),
            *(_tree_table(f"Joints on {place}", tree) for place, tree in trees.items() if tree),
            _tree_table("Joints in the 2016 paper", linkage(paper.op_percent())),
        ],
        charts=[
            *(_dendrogram(f"Training on {place}", tree) for place, tree in trees.items() if tree),
            _dendrogram("Published in 2016", linkage(paper.op_percent())),
        ],
        notes=[*_notes(), *selection.notes],
    )


def published() -> Finding:
    """The same question, answered from the rows that the paper prints."""
    tree = linkage(paper.op_percent())
    closest, last = tree[0], tree[-1]
    return Finding(
        question="similarity",
        title=TITLE,
        summary=f"In the 2016 paper's own rows, {_together(closest)} are closest (distance {closest.distance:.3f}), "
        f"and {listed(last.left)} are far from {listed(last.right)} (distance {last.distance:.3f}).",
        tables=[_tree_table("Joints in the 2016 paper", tree)],
        charts=[_dendrogram("Published in 2016", tree)],
        notes=_notes(),
    )


def nearest(profile: Profile, among: Sequence[Record] = ()) -> Nearest:
    """Which workload spends its time most like this profile: of the records given, or else of the paper's eight."""
    selection = select(among, profiled=True, phases=("train",))
    measured = {setting.workload: setting.seconds_by(op_type) for setting in selection.settings}
    return _nearest(seconds_by([profile], op_type), measured or paper.op_percent())


def distance(one: Vector, other: Vector) -> float:
    """1 - cos of the angle between two profiles: 0 is the same mix of op types, 1 is no type in common."""
    product = sum(value * other.get(kind, 0.0) for kind, value in one.items())
    lengths = math.hypot(*one.values()) * math.hypot(*other.values())
    return max(0.0, 1 - product / lengths) if lengths > 0 else 1.0


def linkage(vectors: Mapping[str, Vector]) -> list[Joint]:
    """Greedy centroid linkage; members are in an order in which the tree can be drawn without crossings."""
    clusters: dict[tuple[str, ...], Vector] = {(name,): vector for name, vector in vectors.items()}
    joints = []
    while len(clusters) > 1:
        left, right = min(combinations(clusters, 2), key=lambda pair: distance(clusters[pair[0]], clusters[pair[1]]))
        one, other = clusters.pop(left), clusters.pop(right)
        joints.append(Joint(left, right, distance(one, other)))
        clusters[left + right] = _centroid(one, len(left), other, len(right))
    return joints


def _centroid(one: Vector, weight: int, other: Vector, other_weight: int) -> Vector:
    return {
        kind: (weight * one.get(kind, 0.0) + other_weight * other.get(kind, 0.0)) / (weight + other_weight)
        for kind in {**one, **other}
    }


def _percentages(settings: Sequence[Setting]) -> dict[str, Vector]:
    return {setting.workload: setting.percent_by(op_type) for setting in settings}


def _nearest(vector: Vector, among: Mapping[str, Vector]) -> Nearest:
    distances = {name: distance(vector, other) for name, other in among.items()}
    name = min(distances, key=lambda name: distances[name])
    return Nearest(name, distances[name])


def _sentence(place: str, tree: list[Joint], settings: Sequence[Setting]) -> str:
    if not tree:
        only = settings[0]
        return f"On {place} there is {only.workload} alone: {_nearest(only.percent_by(op_type), paper.op_percent())}."
    first, last = tree[0], tree[-1]
    text = f"On {place}, {_together(first)} are closest (distance {first.distance:.3f})"
    if len(tree) > 1:
        text += f", and {listed(last.left)} join {listed(last.right)} last ({last.distance:.2f})"
    agreement = _agreement(_percentages(settings))
    if agreement is not None:
        text += f"; distances rank as in the 2016 paper with a correlation of {agreement:.2f}"
    return f"{text}."


def _agreement(ours: Mapping[str, Vector]) -> float | None:
    """Spearman's correlation of the pairwise distances, ours and published; None below four shared workloads."""
    theirs = paper.op_percent()
    shared = [name for name in theirs if name in ours]
    if len(shared) < 4:
        return None
    pairs = list(combinations(shared, 2))
    here, there = ([distance(rows[one], rows[two]) for one, two in pairs] for rows in (ours, theirs))
    return float(stats.spearmanr(here, there).statistic)


def _nearest_table(settings: Sequence[Setting]) -> Table:
    rows: list[list[Cell]] = []
    for setting in settings:
        own = setting.percent_by(op_type)
        peers = {other.workload: other.percent_by(op_type) for other in settings if other.place == setting.place}
        peers.pop(setting.workload)
        measured = _nearest(own, peers) if peers else None
        printed = _nearest(own, paper.op_percent())
        itself = paper.op_percent().get(setting.workload)
        rows.append(
            [
                setting.workload,
                setting.place,
                measured.workload if measured else None,
                measured.distance if measured else None,
                printed.workload,
                printed.distance,
                distance(own, itself) if itself else None,
            ]
        )
    return Table(
        title="The nearest to each workload",
        columns=[
            "workload",
            "place",
            "nearest here",
            "distance",
            "nearest published row",
            "distance to it",
            "distance to its own published row",
        ],
        rows=rows,
    )


def _tree_table(title: str, tree: Sequence[Joint]) -> Table:
    return Table(
        title=title,
        columns=["one", "other", "cosine distance"],
        rows=[[", ".join(joint.left), ", ".join(joint.right), joint.distance] for joint in tree],
    )


def _dendrogram(title: str, tree: Sequence[Joint]) -> Chart:
    """Each joint as four points, from child to child over the joint's distance; a leaf is named at its end."""
    leaves = tree[-1].members
    height: dict[tuple[str, ...], float] = {(name,): float(index) for index, name in enumerate(leaves)}
    reach: dict[tuple[str, ...], float] = {(name,): 0.0 for name in leaves}
    series = []
    for joint in tree:
        up, down = height[joint.left], height[joint.right]
        height[joint.members], reach[joint.members] = (up + down) / 2, joint.distance
        series.append(
            Series(
                name=_together(joint),
                x=[reach[joint.left], joint.distance, joint.distance, reach[joint.right]],
                y=[up, up, down, down],
                text=[_leaf(joint.left), "", "", _leaf(joint.right)],
            )
        )
    return Chart(kind="dendrogram", title=title, x_title="cosine distance", y_title="", series=series)


def _leaf(cluster: tuple[str, ...]) -> str:
    return cluster[0] if len(cluster) == 1 else ""


def _together(joint: Joint) -> str:
    return listed(joint.members)


def _notes() -> list[str]:
    return [
        "The distance of two profiles (time by op type) is 1 - cos of their angle: 0 is the same mix, 1 has no op type "
        "in common. The two closest are merged into their centroid, weighted by members, until one is left.",
        f"Published: the tree of Fig. 4, from the rows of {paper.SOURCES['fathom_fig3_op_percent']}; its text gives "
        f"about {paper.SIMILARITY_IN_TEXT} between seq2seq with memnet and speech with autoenc.",
    ]
