"""Convergence of strategies: the time and the items until a loss is reached, as Fig. 2 of the guide asks of clusters.

A job that makes steps faster is of no use if it needs more of them. Losses are compared per item of the global batch,
and smoothed; the target of a workload is the lowest loss that every one of its jobs has reached. Jobs that train by a
recipe are compared by the quality that it names.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.rank_jobs import elapsed_s, job_names
from fathom.analysis.rank_quality import quality_charts, quality_sentences, quality_sweeps, quality_table, tasks_of
from fathom.analysis.rank_sweeps import (
    STATEMENT,
    Asynchrony,
    Reached,
    asynchrony_of,
    basis,
    sentences,
    sweep_charts,
    sweep_table,
    sweeps_of,
)
from fathom.analysis.selection import told_apart, workload_order
from fathom.core.formatting import count, number, seconds
from fathom.core.record import Record
from fathom.core.spec import RunSpec

TITLE = "Convergence: which way of sharing the work reaches a loss first?"
ORDER = 113
RANKED = True
LEAST_STEPS = 30  # of a job, below which its losses say little
WINDOW = 0.1  # part of the steps over which a loss is the mean, and at least LEAST_WINDOW of them
LEAST_WINDOW = 5
MOST_LINES = 8  # of one chart: as many colours as there are
PUBLISHED = (
    "Published: the guide's Fig. 2 shows hours until a loss for asynchronous groups of GPUs, with a stronger "
    "improvement from the first clusters than from 8 or 16. It is an image, without numbers."
)
QUALITY_NOTE = (
    "Quality is that of the workload's recipe on validation data, which no rank trains on; time is that of training, "
    "without evaluations. Jobs are compared at the recipe's target where every launch reaches it, else at the best "
    "quality that every launch reaches. The test split is evaluated once a launch, at the end, with the best weights."
)
COMMAND = "fathom scale NAME --ranks 1,2 --strategy async --steps 300 --budget 60"


@dataclass(frozen=True)
class Course:
    """One launch of one job: its smoothed loss after each step, with the items and seconds up to then."""

    losses: list[float]
    items: list[int]
    seconds: list[float]

    def reached(self, target: float) -> int | None:
        """The first step after which the loss is no higher."""
        return next((index for index, loss in enumerate(self.losses) if loss <= target), None)


@dataclass(frozen=True)
class Group:
    """All launches of one job."""

    workload: str
    machine: str
    name: str  # strategy, scaling and ranks
    ranks: int
    asynchrony: Asynchrony | None
    courses: list[Course]

    @property
    def lowest(self) -> float:
        """That every launch has reached."""
        return max(min(course.losses) for course in self.courses)


def analyse(records: Sequence[Record]) -> Finding:
    groups, tasks = groups_of(records), tasks_of(records)
    if not groups and not tasks:
        return not_measured("convergence", TITLE, COMMAND)
    by_loss = _by_loss(groups) if groups else None
    if not tasks:
        assert by_loss is not None
        return by_loss
    sweeps = quality_sweeps(tasks)
    said = [*quality_sentences(tasks), *sentences(sweeps)]
    found = Finding(
        question="convergence",
        title=TITLE,
        summary=" ".join(said) or "Only one job of each training task: nothing to compare.",
        tables=[quality_table(tasks), *([sweep_table(sweeps, "quality")] if sweeps else [])],
        charts=[*quality_charts(tasks), *sweep_charts(sweeps, "quality")],
        notes=[QUALITY_NOTE, *([STATEMENT] if sweeps else [])],
    )
    if by_loss is None:
        return replace(found, notes=[*found.notes, PUBLISHED])
    return replace(
        found,
        summary=f"{found.summary} {by_loss.summary}",
        tables=[*found.tables, *by_loss.tables],
        charts=[*found.charts, *by_loss.charts],
        notes=[*found.notes, *by_loss.notes],
    )


def _by_loss(groups: Sequence[Group]) -> Finding:
    """Of timed jobs, by their training losses."""
    targets = targets_of(groups)
    sweeps = _sweeps(groups, targets)
    charts = [
        chart
        for name in _workloads(groups)
        for chart in _charts(name, [group for group in groups if group.workload == name], targets)
    ]
    return Finding(
        question="convergence",
        title=TITLE,
        summary=" ".join([_summary(groups, targets), *sentences(sweeps)]),
        tables=[_table(groups, targets), *([sweep_table(sweeps, "loss")] if sweeps else [])],
        charts=[*charts, *sweep_charts(sweeps, "loss")],
        notes=[
            f"Losses are per item, the mean over {100 * WINDOW:.0f} % of the steps (at least {LEAST_WINDOW}). The "
            "target of a workload on a machine is the lowest loss that each of its jobs reaches in every launch. Time "
            "is that of the steps alone. With synthetic data and one seed, the order on real data may be another.",
            *([STATEMENT] if sweeps else []),
            PUBLISHED,
        ],
    )


def _sweeps(groups: Sequence[Group], targets: dict[tuple[str, str], float]) -> list[list[Reached]]:
    points = []
    several = len({group.machine for group in groups}) > 1
    for group in groups:
        if group.asynchrony is not None:
            target = targets[group.workload, group.machine]
            items, middle, _ = _medians(group, target)
            task = ", ".join(filter(None, [group.workload, group.machine * several]))
            points.append(Reached(task, target, group.asynchrony, items, middle, len(group.courses)))
    return sweeps_of(points)


def groups_of(records: Sequence[Record]) -> list[Group]:
    """Jobs with enough steps, by workload, machine and job."""
    found: dict[tuple[str, str, str, int, Asynchrony | None], list[Course]] = defaultdict(list)
    names, tasks = job_names(records), _tasks(records)
    summed = {each.spec.workload for each in records if each.ranks and each.ranks.settings.get("loss_is_summed")}
    for record in records:
        enough = record.outcome == "ok" and record.ranks and len(record.losses) >= LEAST_STEPS
        if enough and record.items_per_step and record.ranks and record.spec.kind == "timed":
            name, async_groups = names[id(record)], asynchrony_of(record)
            key = (tasks[record.spec.id], record.machine_label, name, record.ranks.ranks, async_groups)
            found[key].append(course_of(record, record.spec.workload in summed))
    groups = [Group(*key, courses) for key, courses in found.items()]
    order = {name: workload_order(name.partition(" (")[0]) for name in {each.workload for each in groups}}
    return sorted(
        groups, key=lambda each: (order[each.workload], each.workload, each.machine, each.ranks, _natural(each.name))
    )


def _tasks(records: Sequence[Record]) -> dict[str, str]:
    """By id of the spec: the workload, and what else it learns from or by where that differs between jobs."""
    specs = {record.spec.id: record.spec for record in records}
    fields = ("workload", "data", "preset", "options")
    learnt = [
        RunSpec(precision=each.precision or "fp32", **{name: getattr(each, name) for name in fields})
        for each in specs.values()
    ]
    return dict(zip(specs, told_apart([(each.workload, each) for each in learnt]), strict=True))


def _natural(name: str) -> list[str | int]:
    """period=4 before period=16."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def course_of(record: Record, summed: bool = False) -> Course:
    """Records of one rank did not always say that a loss is a sum over the batch; another job of the workload does."""
    assert record.items_per_step is not None
    scale = record.items_per_step if summed else 1
    values = [loss / scale for loss in record.losses]
    window = max(LEAST_WINDOW, round(WINDOW * len(values)))
    sums = [0.0, *accumulate(values)]
    ends = range(window, len(values) + 1)
    elapsed = elapsed_s(record)
    return Course(
        losses=[(sums[end] - sums[end - window]) / window for end in ends],
        items=[end * record.items_per_step for end in ends],
        seconds=[elapsed[end - 1] for end in ends],
    )


def targets_of(groups: Sequence[Group]) -> dict[tuple[str, str], float]:
    """By workload and machine."""
    found: dict[tuple[str, str], float] = {}
    for group in groups:
        key = (group.workload, group.machine)
        found[key] = max(group.lowest, found.get(key, group.lowest))
    return found


def _medians(group: Group, target: float) -> tuple[float, float, list[float]]:
    """Items and seconds to the target, in the median over launches, and the seconds of each."""
    reached = [(course, index) for course in group.courses if (index := course.reached(target)) is not None]
    times = [course.seconds[index] for course, index in reached]
    return statistics.median(course.items[index] for course, index in reached), statistics.median(times), times


def _summary(groups: Sequence[Group], targets: dict[tuple[str, str], float]) -> str:
    sentences, several = [], len({machine for _, machine in targets}) > 1
    for (workload, machine), target in targets.items():
        same = [group for group in groups if (group.workload, group.machine) == (workload, machine)]
        if len(same) < 2:
            continue
        times = {group.name: _medians(group, target)[1] for group in same}
        first, last = min(times, key=lambda name: times[name]), max(times, key=lambda name: times[name])
        ends = f"{seconds(times[first])} ({first}) to {seconds(times[last])} ({last})"
        where = f" on {machine}" * several
        sentences.append(f"{workload}{where} to a loss of {number(target)}: {ends}.")
    if not sentences:
        return "Only one job of each workload: nothing to compare."
    return " ".join([*sentences, basis([len(group.courses) for group in groups])])


def _table(groups: Sequence[Group], targets: dict[tuple[str, str], float]) -> Table:
    rows: list[list[Cell]] = []
    for group in groups:
        target = targets[group.workload, group.machine]
        items, middle, times = _medians(group, target)
        rows.append(
            [
                *(group.workload, group.name, group.machine, group.ranks, target),
                *(items, middle, min(times), max(times), len(group.courses)),
            ]
        )
    columns = ["workload", "job", "machine", "ranks", "target loss", "items", "time (s)", "fastest (s)", "slowest (s)"]
    columns += ["launches"]
    return Table(title="Items and time to the same loss", columns=columns, rows=rows, leading=True)


def _charts(workload: str, groups: Sequence[Group], targets: dict[tuple[str, str], float]) -> list[Chart]:
    """Loss over time, of the first launch of each job; and the time to the same loss, as the guide's Fig. 2 has it."""
    several = len({group.machine for group in groups}) > 1
    names = [", ".join(filter(None, [group.name, group.machine * several])) for group in groups]
    found = _loss_charts(workload, names, groups)
    if len(groups) > 1:
        times = [_medians(group, targets[workload, group.machine])[1] for group in groups]
        title = f"Time to the same loss: {workload}"
        bars = [Series(name="time", workload=workload, x=names, y=times)]
        found.append(Chart(kind="bar", title=title, x_title="job", y_title="seconds", unit="s", series=bars))
    return found


def _loss_charts(workload: str, names: Sequence[str], groups: Sequence[Group]) -> list[Chart]:
    """All jobs in one chart; where those are more lines than can be told apart, one chart for each number of ranks."""
    charts: dict[str, list[Series]] = defaultdict(list)
    for name, group in zip(names, groups, strict=True):
        apart = f", {count(group.ranks, 'rank')}" if len(groups) > MOST_LINES else ""
        course = group.courses[0]
        charts[f"Loss over time: {workload}{apart}"].append(Series(name=name, x=course.seconds, y=course.losses))
    return [
        Chart(kind="line", title=title, x_title="seconds", y_title="loss", series=series)
        for title, series in charts.items()
    ]


def _workloads(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(group.workload for group in groups))
