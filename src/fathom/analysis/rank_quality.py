"""Time and items until jobs of several ranks reach the same quality, from their validation curves."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fathom.analysis.finding import Cell, Chart, Series, Table
from fathom.analysis.rank_jobs import job_names
from fathom.analysis.rank_sweeps import Asynchrony, Reached, asynchrony_of, basis, sweeps_of
from fathom.analysis.selection import workload_order
from fathom.core.formatting import number, seconds
from fathom.core.record import Learning, Point, Record

_Key = tuple[str, int, Asynchrony | None]  # job, ranks


@dataclass(frozen=True)
class Task:
    """What is learnt: jobs are compared where this is equal."""

    workload: str
    machine: str
    data: str
    metric: str
    unit: str
    better: str
    target: float | None
    options: str  # of the workload

    @property
    def name(self) -> str:
        return f"{self.workload} on {self.data}"

    def at_least(self, quality: float, other: float) -> bool:
        return quality >= other if self.better == "higher" else quality <= other

    def best(self, curve: Sequence[Point]) -> float:
        qualities = [point.quality for point in curve]
        return max(qualities) if self.better == "higher" else min(qualities)


@dataclass(frozen=True)
class Trained:
    """All launches of one job, each with its curve and its result on the test split."""

    name: str
    ranks: int
    asynchrony: Asynchrony | None
    runs: list[Learning]

    def to(self, task: Task, quality: float) -> list[Point]:
        """Where each launch that reaches this quality does so first."""
        firsts = (next((p for p in run.curve if task.at_least(p.quality, quality)), None) for run in self.runs)
        return [point for point in firsts if point is not None]


def tasks_of(records: Sequence[Record]) -> dict[Task, list[Trained]]:
    found: dict[Task, dict[_Key, list[Learning]]] = defaultdict(lambda: defaultdict(list))
    names = job_names(records)
    for record in records:
        learning = record.learning
        if record.outcome == "ok" and record.ranks and learning and learning.curve:
            task = Task(
                record.spec.workload,
                record.machine_label,
                *(learning.data, learning.metric, learning.unit, learning.better, learning.target),
                str(sorted(record.spec.options.items())),
            )
            found[task][names[id(record)], record.ranks.ranks, asynchrony_of(record)].append(learning)
    order = sorted(found, key=lambda task: (workload_order(task.workload), task.machine, str(task)))
    return {task: [Trained(*key, found[task][key]) for key in sorted(found[task], key=_by_ranks)] for task in order}


def _by_ranks(key: _Key) -> tuple[int, str]:
    return key[1], key[0]


def quality_sweeps(tasks: dict[Task, list[Trained]]) -> list[list[Reached]]:
    """Of jobs of asynchronous groups."""
    points = []
    several = len({task.machine for task in tasks}) > 1
    for task, jobs in tasks.items():
        quality = common_quality(task, jobs)
        for job in jobs:
            if job.asynchrony is not None:
                reached = job.to(task, quality)
                items = statistics.median(point.items for point in reached)
                taken_s = statistics.median(point.seconds for point in reached)
                name = ", ".join(filter(None, [task.name, task.machine * several]))
                points.append(Reached(name, quality, job.asynchrony, items, taken_s, len(job.runs)))
    return sweeps_of(points)


def common_quality(task: Task, jobs: Sequence[Trained]) -> float:
    """The recipe's target where every launch reaches it in validation, else the best that every launch reaches."""
    bests = [task.best(run.curve) for job in jobs for run in job.runs]
    common = min(bests) if task.better == "higher" else max(bests)
    return task.target if task.target is not None and task.at_least(common, task.target) else common


def quality_sentences(tasks: dict[Task, list[Trained]]) -> list[str]:
    sentences, several = [], len({task.machine for task in tasks}) > 1
    for task, jobs in tasks.items():
        quality = common_quality(task, jobs)
        times = {job.name: statistics.median(point.seconds for point in job.to(task, quality)) for job in jobs}
        if len(times) < 2:
            continue
        first, last = min(times, key=lambda name: times[name]), max(times, key=lambda name: times[name])
        what = "the target" if quality == task.target else "the best that all reach"
        where = f" on {task.machine}" * several
        reached = f"{task.name}{where} to {number(quality)} {task.unit} ({what}) in validation"
        sentences.append(f"{reached}: {seconds(times[first])} ({first}) to {seconds(times[last])} ({last}).")
    return [*sentences, basis([len(job.runs) for jobs in tasks.values() for job in jobs])] if sentences else []


def quality_table(tasks: dict[Task, list[Trained]]) -> Table:
    rows: list[list[Cell]] = []
    for task, jobs in tasks.items():
        quality = common_quality(task, jobs)
        for job in jobs:
            points = job.to(task, quality)
            reached = None if task.target is None else len(job.to(task, task.target))
            tested = [run.quality for run in job.runs if run.quality is not None]
            rows.append(
                [
                    *(task.workload, task.data, job.name, task.machine, job.ranks),
                    *(f"{task.metric} ({task.unit})", quality),
                    statistics.median(point.items for point in points),
                    statistics.median(point.seconds for point in points),
                    min(point.seconds for point in points),
                    max(point.seconds for point in points),
                    *(task.target, reached, statistics.median(tested) if tested else None, len(job.runs)),
                ]
            )
    columns = ["workload", "data", "job", "machine", "ranks", "metric", "quality", "items", "time (s)", "fastest (s)"]
    columns += ["slowest (s)", "recipe's target", "launches that reach it", "test result", "launches"]
    return Table(title="Items and time to the same quality in validation", columns=columns, rows=rows, leading=True)


def quality_charts(tasks: dict[Task, list[Trained]]) -> list[Chart]:
    """The first launch of each job."""
    return [
        Chart(
            kind="line",
            title=f"Quality over time: {task.name}",
            x_title="seconds of training",
            y_title=f"{task.metric} ({task.unit}), validation",
            series=[
                Series(
                    name=job.name,
                    x=[point.seconds for point in job.runs[0].curve],
                    y=[point.quality for point in job.runs[0].curve],
                )
                for job in jobs
            ],
        )
        for task, jobs in tasks.items()
    ]
