"""Do the workloads learn, how long does it take, and what does it cost? Every seed is shown, not the best."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from fathom.analyses._settings import listed, unanswered, where, workload_order
from fathom.analysis import Cell, Chart, Finding, Picture, Series, Table
from fathom.record import Learning, Record

TITLE = "Do they learn, and what does it take?"


def analyse(records: Sequence[Record]) -> Finding:
    runs = sorted((record for record in records if record.spec.learn), key=_order)
    good = [(record, record.learning) for record in runs if record.learning and record.learning.curve]
    if not good:
        return unanswered("learning", TITLE, "no run of learning; `fathom learn autoenc --data mnist` makes one")
    return Finding(
        question="learning",
        title=TITLE,
        summary=_summary(good),
        tables=[_runs(runs), *_spread(good), *_exhibits(good)],
        charts=[
            chart for name in _names(good) for chart in _curves(name, [run for run in good if _name(run[0]) == name])
        ],
        pictures=[
            Picture(title=f"{record.spec.workload}, seed {record.spec.seed}: {exhibit.title}", png=exhibit.png)
            for record, learning in good
            for exhibit in learning.exhibits
            if exhibit.png
        ],
        notes=_notes(good),
    )


Run = tuple[Record, Learning]


def _order(record: Record) -> tuple[object, ...]:
    return workload_order(record.spec.workload), where(record), record.spec.seed, record.started


def _name(record: Record) -> str:
    """What is learnt: the workload, the data, and the switches that are on (memnet has another target where joint)."""
    spec = record.spec
    data = spec.data.rstrip("/").rpartition("/")[2] if spec.data else "synthetic data"
    switches = [name for name, value in spec.options.items() if value is True]
    return ", ".join([f"{spec.workload} on {data}", *switches])


def _names(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(_name(record) for record, _ in runs))


def _summary(runs: Sequence[Run]) -> str:
    reached: dict[str, list[bool]] = defaultdict(list)
    for record, learning in runs:
        reached[_name(record)].append(learning.reached)
    good = [name for name, all_of in reached.items() if all(all_of)]
    short = [f"{name} ({sum(all_of)} of {len(all_of)} runs)" for name, all_of in reached.items() if not all(all_of)]
    told = (
        f"{listed(good)} reached the target in every run." if good else "No workload reached its target in every run."
    )
    return told + (f" Not in all: {listed(short)}." if short and good else f" {listed(short)}." if short else "")


def _runs(records: Sequence[Record]) -> Table:
    rows: list[list[Cell]] = []
    for record in records:
        learning = record.learning
        head: list[Cell] = [_name(record), where(record), record.spec.seed]
        if learning is None:
            rows.append([*head, None, None, None, f"failed: {record.reason}", None, None, None, None])
            continue
        metric = f"{learning.metric} ({learning.unit})"
        outcome = "reached" if learning.reached else record.reason or "not reached"
        cost: list[Cell] = [learning.seconds, learning.items, learning.energy_j, learning.resumed]
        rows.append([*head, metric, learning.target, learning.quality, outcome, *cost])
    columns = [
        "what",
        "place",
        "seed",
        "metric",
        "target",
        "quality",
        "outcome",
        "time (s)",
        "items",
        "energy (J)",
        "resumed",
    ]
    return Table(title="Every run of learning", columns=columns, rows=rows)


def _spread(runs: Sequence[Run]) -> list[Table]:
    """Over the seeds of one thing on one machine; no table where there is one seed of each."""
    groups: dict[tuple[str, str, str], list[Learning]] = defaultdict(list)
    for record, learning in runs:
        groups[_name(record), where(record), learning.metric].append(learning)
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
        Table(
            title=f"{_name(record)}, seed {record.spec.seed}: {exhibit.title}",
            columns=exhibit.columns,
            rows=exhibit.rows,
        )
        for record, learning in runs
        for exhibit in learning.exhibits
        if exhibit.columns
    ]


def _curves(name: str, runs: Sequence[Run]) -> list[Chart]:
    quality = runs[0][1]
    series = [
        Series(
            name=f"seed {record.spec.seed}, {where(record)}",
            x=[point.seconds for point in learning.curve],
            y=[point.quality for point in learning.curve],
            text=[f"{point.items:,} items, loss {point.loss:.4g}" for point in learning.curve],
        )
        for record, learning in runs
    ]
    longest = max(learning.seconds for _, learning in runs)
    target = Series(name="target", x=[0.0, longest], y=[quality.target, quality.target])
    return [
        Chart(
            kind="line",
            title=f"{name}: {quality.metric}",
            x_title="time (s)",
            y_title=f"{quality.metric} ({quality.unit})",
            series=[*series, target],
        )
    ]


def _notes(runs: Sequence[Run]) -> list[str]:
    protocols = {f"{record.spec.workload}: {learning.protocol}." for record, learning in runs}
    metered = {learning.metered or "nothing: energy was not metered" for _, learning in runs}
    return [
        *sorted(protocols),
        "Time is from the first step to the last look at held-out data, those looks included. "
        f"Energy is what was counted by {' or '.join(sorted(metered))}.",
    ]
