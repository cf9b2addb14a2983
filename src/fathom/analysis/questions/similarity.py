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
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.questions._words import listed, unanswered
from fathom.analysis.selection import RunGroup, Selection, on_cpu, op_type, seconds_by, select, where
from fathom.core.errors import BadOption
from fathom.core.record import Profile, Record

TITLE = "Which workloads are alike?"
# what one op does today took several in 2016: a recurrent layer and attention were matrix products with elementwise
# ops around them, the fused LSTM cell (which multiplies no matrix) elementwise ops alone
IN_2016 = {"LSTM": "MatMul", "Attention": "MatMul", "LSTMCell": "Mul"}
CREDITED = "where recurrent layers and attention count as MatMul, fused LSTM cells as Mul"

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


@dataclass(frozen=True)
class Grove:
    """The settings that stand in the tree of one place, with the guests that were measured elsewhere."""

    place: str
    settings: list[RunGroup]
    guests: list[RunGroup]

    def vectors(self) -> dict[str, Vector]:
        """Leaf -> percentages; a guest says where it is from if its name is taken."""
        vectors = _percentages(self.settings)
        for guest in self.guests:
            taken = guest.workload in vectors
            name = f"{guest.workload} ({guest.place})" if taken else guest.workload
            vectors[name] = guest.percent_by(op_type)
        return vectors


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True, phases=("train",))
    if not selection.settings:
        return unanswered("similarity", TITLE, "no training run with a profile", selection.notes)
    groves = _groves(selection)
    trees = {grove.place: linkage(grove.vectors()) for grove in groves}
    return Finding(
        question="similarity",
        title=TITLE,
        summary=" ".join(_sentence(grove, trees[grove.place]) for grove in groves),
        tables=[
            _nearest_table(groves),
            *(_tree_table(f"Joints on {place}", tree) for place, tree in trees.items() if tree),
            _tree_table("Joints in the 2016 paper", linkage(paper.op_percent())),
        ],
        charts=[
            *(
                _dendrogram(f"Training on {grove.place}", trees[grove.place], _guest_note(grove))
                for grove in groves
                if trees[grove.place]
            ),
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


def nearest(model: Record | Profile, among: Sequence[Record] = ()) -> Nearest:
    """Which workload spends its time most like this one: of those among the records given, else of the paper's eight.

    A record is compared with what was measured on the same kind of device in the same phase (nearest_measured), a bare
    profile with all training runs.
    """
    if isinstance(model, Record):
        measured = nearest_measured(model, among)
        return measured[0] if measured else _nearest(_in_2016(_vector(model)), paper.op_percent())
    selection = select(among, profiled=True, phases=("train",))
    vectors = {setting.workload: setting.seconds_by(op_type) for setting in selection.settings}
    own = seconds_by([model], op_type)
    return _nearest(own, vectors) if vectors else _nearest(_in_2016(own), paper.op_percent())


def nearest_measured(record: Record, among: Sequence[Record]) -> tuple[Nearest, str] | None:
    """The nearest of the eight as measured at the place most like the record's, and that place; None without any."""
    selection = select(among, profiled=True, phases=(record.spec.phase,))
    place = _host(record, selection)
    if place is None:
        return None
    peers = {name: vector for name, vector in _percentages(selection.at(place)).items() if name in paper.op_percent()}
    peers.pop(record.spec.workload, None)
    return (_nearest(_vector(record), peers), place) if peers else None


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


def _groves(selection: Selection) -> list[Grove]:
    """A tree a place. What was measured where none of the eight was stands in the tree of a place that has them."""
    guests: dict[str, list[RunGroup]] = {}
    for place in selection.places:
        settings = selection.at(place)
        if _eight(settings) == 0 and (host := _host(settings[0].runs[0], selection, other_kinds=True)) is not None:
            guests.setdefault(host, []).extend(settings)
    moved = {guest.place for each in guests.values() for guest in each}
    return [
        Grove(place, selection.at(place), guests.get(place, [])) for place in selection.places if place not in moved
    ]


def _host(record: Record, selection: Selection, other_kinds: bool = False) -> str | None:
    """The place with the eight that is most like the record's; None without one, or without one of its kind."""

    def likeness(place: str) -> tuple[bool, bool, bool, int]:
        settings = selection.at(place)
        other = settings[0].runs[0]
        same_kind, same_precision = on_cpu(other) == on_cpu(record), other.spec.precision == record.spec.precision
        return same_kind, place == where(record), same_precision, _eight(settings)

    places = [place for place in selection.places if _eight(selection.at(place))]
    return max((place for place in places if other_kinds or likeness(place)[0]), key=likeness, default=None)


def _eight(settings: Sequence[RunGroup]) -> int:
    """How many of the paper's workloads are among these."""
    return len({setting.workload for setting in settings} & set(paper.op_percent()))


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


def _percentages(settings: Sequence[RunGroup]) -> dict[str, Vector]:
    return {setting.workload: setting.percent_by(op_type) for setting in settings}


def _nearest(vector: Vector, among: Mapping[str, Vector]) -> Nearest:
    distances = {name: distance(vector, other) for name, other in among.items()}
    name = min(distances, key=lambda name: distances[name])
    return Nearest(name, distances[name])


def _sentence(grove: Grove, tree: list[Joint]) -> str:
    place = grove.place
    if not tree:
        only = grove.settings[0]
        closest = _nearest(_in_2016(only.percent_by(op_type)), paper.op_percent())
        return f"On {place} there is {only.workload} alone: {closest}, as published."
    first, last = tree[0], tree[-1]
    text = f"On {place}, {_together(first)} are closest (distance {first.distance:.3f})"
    if len(tree) > 1:
        text += f", and {listed(last.left)} join {listed(last.right)} last ({last.distance:.2f})"
    agreement = _agreement(_percentages(grove.settings))
    if agreement is not None:
        text += f"; distances rank as in the 2016 paper with a correlation of {agreement:.2f}"
    return " ".join([f"{text}.", *(f"{_guest_said(grove, guest)}." for guest in grove.guests)])


def _guest_said(grove: Grove, guest: RunGroup) -> str:
    closest = _nearest(guest.percent_by(op_type), _percentages(grove.settings))
    return f"{guest.workload}, measured on {guest.place} without the eight, is {closest} there"


def _guest_note(grove: Grove) -> str:
    told = [f"{guest.workload} was measured on {guest.place}" for guest in grove.guests]
    return f"{listed(told)}, where none of the eight was." if told else ""


def _agreement(ours: Mapping[str, Vector]) -> float | None:
    """Spearman's correlation of the pairwise distances, ours and published; None below four shared workloads."""
    theirs = paper.op_percent()
    shared = [name for name in theirs if name in ours]
    if len(shared) < 4:
        return None
    pairs = list(combinations(shared, 2))
    here, there = ([distance(rows[one], rows[two]) for one, two in pairs] for rows in (ours, theirs))
    return float(stats.spearmanr(here, there).statistic)


def _nearest_table(groves: Sequence[Grove]) -> Table:
    rows: list[list[Cell]] = []
    for grove in groves:
        for setting in [*grove.settings, *grove.guests]:
            own = setting.percent_by(op_type)
            peers = _percentages([other for other in grove.settings if other is not setting])
            measured = _nearest(own, peers) if peers else None
            printed = _nearest(_in_2016(own), paper.op_percent())
            itself = paper.op_percent().get(setting.workload)
            rows.append(
                [
                    setting.workload,
                    setting.place,
                    measured.workload if measured else None,
                    measured.distance if measured else None,
                    grove.place if measured else None,
                    printed.workload,
                    printed.distance,
                    distance(_in_2016(own), itself) if itself else None,
                ]
            )
    return Table(
        title="The nearest to each workload",
        columns=[
            "workload",
            "place",
            "nearest measured",
            "distance",
            "measured on",
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


def _dendrogram(title: str, tree: Sequence[Joint], note: str = "") -> Chart:
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
    return Chart(kind="dendrogram", title=title, x_title="cosine distance", y_title="", series=series, note=note)


def _leaf(cluster: tuple[str, ...]) -> str:
    return cluster[0] if len(cluster) == 1 else ""


def _together(joint: Joint) -> str:
    return listed(joint.members)


def _notes() -> list[str]:
    return [
        "The distance of two profiles (time by op type) is 1 - cos of their angle: 0 is the same mix, 1 has no op type "
        "in common. The two closest are merged into their centroid, weighted by members, until one is left.",
        f"Our distances are of our own op types; distances to a published row are {CREDITED}.",
        f"Published: the tree of Fig. 4, from the rows of {paper.SOURCES['fathom_fig3_op_percent']}; its text gives "
        f"about {paper.SIMILARITY_IN_TEXT} between seq2seq with memnet and speech with autoenc.",
    ]
