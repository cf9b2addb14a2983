"""Do the workloads learn, how long does it take, and what does it cost? Every seed is shown, not the best."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fathom.analyses._words import listed, unanswered
from fathom.analysis import Cell, Chart, Finding, Picture, Series, Table
from fathom.record import Learning, Record
from fathom.setting import where, workload_order

TITLE = "Do they learn, and what does it take?"


@dataclass(frozen=True)
class Run:
    """One run of learning, with a name that it shares with the other seeds of the same thing alone."""

    record: Record
    name: str

    @property
    def learning(self) -> Learning:
        assert self.record.learning is not None
        return self.record.learning

    @property
    def title(self) -> str:
        return f"{self.name}, seed {self.record.spec.seed}"


def analyse(records: Sequence[Record]) -> Finding:
    runs = _runs_of(records)
    if not runs:
        return unanswered("learning", TITLE, "no run of learning; `fathom learn autoenc --data mnist` makes one")
    good = [run for run in runs if run.record.learning and run.learning.curve]
    return Finding(
        question="learning",
        title=TITLE,
        summary=_summary(good) if good else "No run of learning came as far as a first look at held-out data.",
        tables=[_table(runs), *_spread(good), *_exhibits(good)],
        charts=[_curves([run for run in good if run.name == name]) for name in dict.fromkeys(run.name for run in good)],
        pictures=[
            Picture(title=f"{run.title}: {exhibit.title}", png=exhibit.png)
            for run in good
            for exhibit in run.learning.exhibits
            if exhibit.png
        ],
        notes=_notes(good) if good else [],
    )


def _runs_of(records: Sequence[Record]) -> list[Run]:
    """Runs in order; where a workload learnt the same data in several ways, the name says what differs."""
    chosen = sorted((record for record in records if record.spec.learn), key=_order)
    named = []
    for record in chosen:
        own = _way(record)
        others = [(_metric(other), _way(other)) for other in chosen if _thing(other) == _thing(record)]
        said = []
        for name, value in own.items():
            # a switch may choose another lesson; all else is told where the lesson is the same
            rivals = [way for metric, way in others if value is True or metric == _metric(record)]
            if any(way.get(name) != value for way in rivals):
                said.append(name if value is True else f"{name} {value}")
        named.append(Run(record, ", ".join([_thing(record), *said])))
    return named


def _metric(record: Record) -> str | None:
    return record.learning.metric if record.learning else None


def _order(record: Record) -> tuple[object, ...]:
    return workload_order(record.spec.workload), where(record), record.spec.seed, record.started


def _thing(record: Record) -> str:
    """A workload and what it learns from: a folder, the game that it plays, or what is invented for it."""
    spec = record.spec
    data = spec.data.rstrip("/").rpartition("/")[2] if spec.data else spec.options.get("game", "synthetic data")
    return f"{spec.workload} on {data}"


def _way(record: Record) -> dict[str, Any]:
    """Everything but the seed and the place in which two runs of the same thing may differ."""
    spec = record.spec
    return {"preset": spec.preset, "precision": spec.precision, "rounds": spec.rounds, **spec.options}


def _summary(runs: Sequence[Run]) -> str:
    reached: dict[str, list[bool]] = defaultdict(list)
    for run in runs:
        reached[run.name].append(run.learning.reached)
    good = [name for name, all_of in reached.items() if all(all_of)]
    short = [f"{name} ({sum(all_of)} of {len(all_of)} runs)" for name, all_of in reached.items() if not all(all_of)]
    told = (
        f"{listed(good)} reached the target in every run." if good else "No workload reached its target in every run."
    )
    return told + (f" Not in all: {listed(short)}." if short and good else f" {listed(short)}." if short else "")


def _table(runs: Sequence[Run]) -> Table:
    rows: list[list[Cell]] = []
    for run in runs:
        record, learning = run.record, run.record.learning
        head: list[Cell] = [run.name, where(record), record.spec.seed]
        if learning is None:
            rows.append([*head, None, None, None, f"failed: {record.reason}", None, None, None, None])
            continue
        metric = f"{learning.metric} ({learning.unit})"
        outcome = "reached" if learning.reached else record.reason or "not reached"
        cost: list[Cell] = [learning.seconds, learning.items, learning.energy_j, learning.resumed]
        rows.append([*head, metric, learning.target, learning.quality, outcome, *cost])
    columns = ["what", "place", "seed", "metric", "target", "quality", "outcome"]
    columns += ["time (s)", "items", "energy (J)", "resumed"]
    return Table(title="Every run of learning", columns=columns, rows=rows)


def _spread(runs: Sequence[Run]) -> list[Table]:
    """Over the seeds of one thing on one machine; no table where there is one seed of each."""
    groups: dict[tuple[str, str, str], list[Learning]] = defaultdict(list)
    for run in runs:
        groups[run.name, where(run.record), run.learning.metric].append(run.learning)
    rows: list[list[Cell]] = []
    for (name, place, metric), all_of in groups.items():
        values = [learning.quality for learning in all_of if learning.quality is not None]
        if len(values) > 1:
            seconds = statistics.median(learning.seconds for learning in all_of)
            rows.append(
                [name, place, metric, len(values), min(values), statistics.median(values), max(values), seconds]
            )
    columns = ["what", "place", "metric", "runs", "least", "median", "most", "median time (s)"]
    return [Table(title="Over the seeds", columns=columns, rows=rows)] if rows else []


def _exhibits(runs: Sequence[Run]) -> list[Table]:
    return [
        Table(title=f"{run.title}: {exhibit.title}", columns=exhibit.columns, rows=exhibit.rows)
        for run in runs
        for exhibit in run.learning.exhibits
        if exhibit.columns
    ]


def _curves(runs: Sequence[Run]) -> Chart:
    quality = runs[0].learning
    series = [
        Series(
            name=f"seed {run.record.spec.seed}, {where(run.record)}",
            x=[point.seconds for point in run.learning.curve],
            y=[point.quality for point in run.learning.curve],
            text=[f"{point.items:,} items, loss {point.loss:.4g}" for point in run.learning.curve],
        )
        for run in runs
    ]
    longest = max(run.learning.seconds for run in runs)
    target = Series(name="target", x=[0.0, longest], y=[quality.target, quality.target])
    return Chart(
        kind="line",
        title=f"{runs[0].name}: {quality.metric}",
        x_title="time (s)",
        y_title=f"{quality.metric} ({quality.unit})",
        series=[*series, target],
    )


def _notes(runs: Sequence[Run]) -> list[str]:
    protocols = {f"{run.record.spec.workload}: {run.learning.protocol}." for run in runs}
    metered = {run.learning.metered or "nothing: energy was not metered" for run in runs}
    return [
        *sorted(protocols),
        "Time is from the first step to the last look at held-out data, those looks included. "
        f"Energy is what was counted by {' or '.join(sorted(metered))}.",
    ]
