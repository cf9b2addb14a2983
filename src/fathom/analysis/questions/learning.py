"""Do the workloads reach their target quality, how long does it take, and what does it cost? Every seed is shown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fathom.analysis.finding import Cell, Chart, Finding, Image, Series, Table, not_measured
from fathom.analysis.formatting import listed, median_and_range
from fathom.analysis.questions._artifacts import shown
from fathom.analysis.selection import last_attempts, workload_order
from fathom.core.record import Artifact, Learning, Point, Record

TITLE = "Do the workloads reach their target quality, and at what cost?"
ORDER = 30
PLAIN = ("machine", "precision")  # settings named by their value alone: "bf16" is clear without "precision"
FEWEST = 3  # runs: fewer do not tell how a recipe does with another seed
CURVE_OF = {"validation": "in validation", "train": "on the training data", "test": "on the test data"}


@dataclass(frozen=True)
class Run:
    """One training run; its name is shared by the other seeds of the same task alone."""

    record: Record
    subject: str  # the workload and its data: "NAME on mnist"
    variant: str  # what distinguishes it from others of the same subject: "joint", or nothing

    @property
    def name(self) -> str:
        return f"{self.subject} ({self.variant})" if self.variant else self.subject

    @property
    def failed(self) -> bool:
        """A run that diverged may have a curve, and still has no result."""
        return self.record.outcome != "ok" or self.record.learning is None or not self.record.learning.curve

    @property
    def learning(self) -> Learning:
        assert self.record.learning is not None
        return self.record.learning

    @property
    def shared(self) -> bool:
        return bool(self.record.disturbance.gpu_shared)

    @property
    def moved(self) -> bool:
        """Resumed on another machine: its time and energy are those of none."""
        return bool(self.learning.earlier)

    @property
    def reached(self) -> bool:
        """By its result, whatever its curve says."""
        return not self.failed and bool(self.learning.reached)

    @property
    def at_target(self) -> Point | None:
        """The evaluation that first reached the target, if the result reached it too."""
        return self.learning.to_target if self.reached else None

    @property
    def energy_to_target(self) -> float | None:
        """Without energy per evaluation, it is known only if the run stopped at its target."""
        point = self.at_target
        if point is None or point.energy_j is not None:
            return point.energy_j if point else None
        return self.learning.energy_j if point == self.learning.curve[-1] else None


@dataclass(frozen=True)
class TrainingTask:
    """One workload trained on one data set in one way, with every seed."""

    name: str
    runs: list[Run]

    @property
    def evaluation(self) -> Learning | None:
        """Metric, unit and target, of any of its runs."""
        return next((run.record.learning for run in self.runs if run.record.learning), None)

    @property
    def succeeded(self) -> list[Run]:
        return [run for run in self.runs if not run.failed]

    @property
    def reached(self) -> list[Run]:
        return [run for run in self.runs if run.reached]

    @property
    def counts_as_reached(self) -> bool | None:
        """At least 4 of 5 seeds, or all of 3 or 4; None with fewer. A run that failed is one that did not."""
        if len(self.runs) < FEWEST:
            return None
        tolerated = len(self.runs) // 5
        return len(self.reached) >= len(self.runs) - tolerated

    @property
    def count(self) -> str:
        """How often the target was reached, in words: "reached in 4 of 5 runs, 1 failed"."""
        runs = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        return f"reached in {len(self.reached)} of {runs}{self.failures}"

    @property
    def has_target(self) -> bool:
        """Assumed where no run came to an evaluation."""
        return self.evaluation is None or self.evaluation.target is not None

    @property
    def artifacts(self) -> list[Artifact]:
        by_seed = {run.record.spec.seed or 0: run.learning.artifacts for run in self.succeeded}
        return shown(self.name, by_seed) if by_seed else []

    @property
    def failures(self) -> str:
        count = len(self.runs) - len(self.succeeded)
        return f", {count} failed" if count else ""


def analyse(records: Sequence[Record]) -> Finding:
    training = [record for record in records if record.spec.kind == "training"]
    if not training:
        return not_measured("learning", TITLE, "fathom learn WORKLOAD")
    runs = _runs_of(last_attempts(training))
    names = dict.fromkeys(run.name for run in runs)
    tasks = [TrainingTask(name, [run for run in runs if run.name == name]) for name in names]
    succeeded = [run for run in runs if not run.failed]
    artifacts = [artifact for task in tasks for artifact in task.artifacts]
    tables = [Table(title=each.title, columns=each.columns, rows=each.rows) for each in artifacts if each.columns]
    return Finding(
        question="learning",
        title=TITLE,
        summary=_summary(tasks),
        tables=[_task_table(tasks), _run_table(runs), *tables],
        charts=_charts(runs),
        images=[Image(title=each.title, png=each.png) for each in artifacts if each.png],
        notes=[
            *_protocols(succeeded),
            *_first_seeds(tasks),
            *_shared(tasks),
            *_moved(runs),
            *_repeated(len(training) - len(runs)),
        ],
    )


def _runs_of(records: Sequence[Record]) -> list[Run]:
    """Runs by name and seed; where a workload learnt the same data in several ways, the name says what differs."""
    evaluations = {id(record): _evaluation(record, records) for record in records}
    subjects = {id(record): _subject(record, records) for record in records}
    runs = []
    for record in records:
        rivals = [other for other in records if subjects[id(other)] == subjects[id(record)]]
        alike = [other for other in rivals if evaluations[id(other)] == evaluations[id(record)]]
        # a switch may choose another recipe; all else is named where the metric is the same
        same = _differing(record, alike)
        variant = [text for name, text in _differing(record, rivals).items() if text == name or name in same]
        runs.append(Run(record, subjects[id(record)], ", ".join(variant)))
    named = []
    for run in runs:
        twins = [other.record for other in runs if other.name == run.name]
        if any(
            evaluations[id(other)] != evaluations[id(run.record)] for other in twins
        ):  # no switch distinguishes them
            run = replace(run, variant=", ".join(_differing(run.record, twins).values()))
        named.append(run)
    return sorted(named, key=lambda run: (workload_order(run.record.spec.workload), run.name, run.record.spec.seed))


def _differing(record: Record, others: Sequence[Record]) -> dict[str, str]:
    """The settings that have another value in some of the others, as text; a switch by its name."""
    return {
        name: name if value is True else str(value) if name in PLAIN else f"{name} {value}"
        for name, value in _settings(record).items()
        if value is not None and any(_settings(other).get(name) != value for other in others)
    }


def _subject(record: Record, records: Sequence[Record]) -> str:
    """A workload and the data it learnt from; a run that came to nothing has the data of its other seeds."""
    found = _known(record, records)
    data = found.data if found else record.spec.data and record.spec.data.rpartition("/")[2]
    return f"{record.spec.workload} on {data}" if data else record.spec.workload


def _settings(record: Record) -> dict[str, Any]:
    """Everything but data and seed in which two runs of the same subject may differ."""
    spec = record.spec
    chosen = {"preset": spec.preset, "precision": spec.precision, "evaluations": spec.evaluations, **spec.options}
    return {**chosen, "machine": record.machine_label}


def _evaluation(record: Record, records: Sequence[Record]) -> tuple[str, str] | None:
    """The metric and the split it is evaluated on; a run that came to nothing has those of its other seeds."""
    found = _known(record, records)
    return (found.metric, found.split) if found else None


def _known(record: Record, records: Sequence[Record]) -> Learning | None:
    """What came of this run, or else of one with another seed alone."""

    def same(other: Record) -> bool:
        ours, theirs = record.spec, other.spec
        return (ours.workload, ours.data) == (theirs.workload, theirs.data) and _settings(record) == _settings(other)

    return next((each.learning for each in (record, *filter(same, records)) if each.learning), None)


def _summary(tasks: Sequence[TrainingTask]) -> str:
    """How many tasks count as reached, and of every task in how many runs."""
    aiming = [task for task in tasks if task.has_target]
    whole, short, few = (
        [f"{task.name}, {task.count}" for task in aiming if task.counts_as_reached is verdict]
        for verdict in (True, False, None)
    )
    judged = len(whole) + len(short)
    many = "training task counts" if judged == 1 else "training tasks count"
    first = f"{len(whole)} of {judged} {many} as reached (in at least 4 of 5 runs, or in all of 3 or 4)"
    free = [f"{task.name}{task.failures}" for task in tasks if not task.has_target]
    sentences = [f"{first}: {'; '.join(whole)}" if whole else first] if judged else []
    sentences += [f"In too few: {'; '.join(short)}"] if short else []
    sentences += [f"With fewer than {FEWEST} runs: {'; '.join(few)}"] if few else []
    sentences += [f"Without a target: {'; '.join(free)}"] if free else []
    return " ".join(f"{sentence}." for sentence in sentences)


def _task_table(tasks: Sequence[TrainingTask]) -> Table:
    """Quality, how often the target was reached, and what that took."""
    columns = ["task", "metric", "target", "quality: median (min to max)", "reached", "counts as reached"]
    columns += ["time to target (s)", "items to target", "energy to target (kJ)", "whole run (s)"]
    return Table(
        title="Every training task, over its seeds", columns=columns, rows=list(map(_task_row, tasks)), leading=True
    )


def _task_row(task: TrainingTask) -> list[Cell]:
    evaluation, alone = task.evaluation, _alone(task.reached)
    verdict = {True: "yes", False: "no", None: "too few runs"}[task.counts_as_reached]
    qualities = [run.learning.quality for run in task.succeeded if run.learning.quality is not None]
    items = _median(run.at_target.items for run in task.reached if run.at_target)
    return [
        task.name,
        f"{evaluation.metric} ({evaluation.unit})" if evaluation else None,
        evaluation.target if evaluation else None,
        median_and_range(qualities) if qualities else None,
        f"{len(task.reached)} of {len(task.runs)}{task.failures}" if task.has_target else f"no target{task.failures}",
        verdict if task.has_target else None,
        _median(run.at_target.seconds for run in alone if run.at_target),
        None if items is None else round(items),
        _median(_kilo(run.energy_to_target) for run in alone),
        _median(run.learning.seconds for run in _alone(task.succeeded)),
    ]


def _alone(runs: Sequence[Run]) -> list[Run]:
    """Those that had the GPU to themselves, or all where there are none: a shared GPU distorts time and energy.

    Without those of several machines, whose time and energy are of none.
    """
    stayed = [run for run in runs if not run.moved]
    return [run for run in stayed if not run.shared] or stayed


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _kilo(joules: float | None) -> float | None:
    return None if joules is None else joules / 1000


def _run_table(runs: Sequence[Run]) -> Table:
    """One row per seed; machine and precision are columns where they are not the same for all."""
    settings: dict[str, list[str | None]] = {
        "machine": [run.record.machine_label for run in runs],
        "precision": [run.record.spec.precision for run in runs],
    }
    differing = {name: values for name, values in settings.items() if len(set(values)) > 1}
    rows: list[list[Cell]] = []
    for number, run in enumerate(runs):
        head: list[Cell] = [run.name, *(values[number] for values in differing.values()), run.record.spec.seed]
        rows.append([*head, *_results(run), _outcome(run)])
    columns = ["task", *differing, "seed", "quality", "to target (s)", "time (s)", "items", "energy (kJ)", "outcome"]
    alarms = [
        (row, columns.index("outcome")) for row, run in enumerate(runs) if run.failed or run.learning.reached is False
    ]
    return Table(title="Every training run", columns=columns, rows=rows, leading=True, alarms=alarms)


def _results(run: Run) -> list[Cell]:
    if run.failed:
        return [None] * 5
    learning, point = run.learning, run.at_target
    if run.moved:
        return [learning.quality, None, None, learning.items, None]
    to_target = point.seconds if point else None
    return [learning.quality, to_target, learning.seconds, learning.items, _kilo(learning.energy_j)]


def _outcome(run: Run) -> str:
    if run.failed:
        return f"failed: {run.record.reason or 'no evaluation'}"
    learning, resumed = run.learning, run.learning.resumed
    parts = ["no target" if learning.reached is None else "reached" if learning.reached else "not reached"]
    parts += [f"resumed {'once' if resumed == 1 else f'{resumed} times'}"] if resumed else []
    parts += [f"began on {listed(list(dict.fromkeys(each.name for each in learning.earlier)))}"] if run.moved else []
    parts += ["shared the GPU"] if run.shared else []
    return "; ".join(parts)


def _charts(runs: Sequence[Run]) -> list[Chart]:
    """One per subject, metric and split, so that variants are seen side by side."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        if run.record.learning and run.learning.curve:
            groups.setdefault((run.subject, run.learning.metric, run.learning.curve_split), []).append(run)
    return [_chart(group) for group in groups.values()]


def _chart(runs: Sequence[Run]) -> Chart:
    """The title says what all of them have in common, each line the rest."""
    variants, evaluation = {run.variant for run in runs}, runs[0].learning
    longest = max(run.learning.curve[-1].seconds for run in runs)
    targets = dict.fromkeys(run.learning.target for run in runs if run.learning.target is not None)
    return Chart(
        kind="line",
        title=f"{runs[0].name if len(variants) == 1 else runs[0].subject}: {_measured(evaluation)}",
        x_title="time (s)",
        y_title=f"{evaluation.metric} ({evaluation.unit})",
        series=[
            *(_curve(run, run.variant if len(variants) > 1 else "") for run in runs),
            *(Series(name="target", role="target", x=[0.0, longest], y=[target, target]) for target in targets),
        ],
        unit=evaluation.unit,
    )


def _measured(learning: Learning) -> str:
    """What a curve is of: "BLEU in validation"; a metric that says so itself is not told twice."""
    split = CURVE_OF.get(learning.curve_split, f"on the {learning.curve_split} data")
    return learning.metric if split in learning.metric else f"{learning.metric} {split}"


def _curve(run: Run, variant: str) -> Series:
    curve = run.learning.curve
    parts = [variant, f"seed {run.record.spec.seed}", "failed" if run.failed else ""]
    parts += ["on several machines"] if run.moved else []
    return Series(
        name=", ".join(text for text in parts if text),
        x=[point.seconds for point in curve],
        y=[point.quality for point in curve],
        text=[f"{point.items:,} items, loss {point.loss:.4g}" for point in curve],
    )


def _protocols(runs: Sequence[Run]) -> list[str]:
    if not runs:
        return []
    metered = sorted({run.learning.metered for run in runs if run.learning.metered})
    energy = f"Energy was counted by {' or '.join(metered)}" if metered else "Energy was not metered"
    return [
        *sorted({_protocol(run) for run in runs}),
        *_splits(runs),
        "A target counts as reached when at least 4 of 5 runs reach it, or all of 3 or 4; a failed run does not. Every "
        "seed is shown.",
        "Time runs from the first step to an evaluation, this and earlier evaluations included; the test at the end is "
        "not. Time to target is that to the first evaluation that reached the target; where none on the way did, or "
        "where they are on training data, it is that to the weights that were tested. Medians to target are over the "
        f"runs that reached it. {energy}.",
    ]


def _splits(runs: Sequence[Run]) -> list[str]:
    """What quality and curves are of: runs of older records were evaluated on the test data all the way."""
    found = {run.learning.curve_split for run in runs}
    told = {
        "validation": "Quality is the result on the test data, evaluated once, with the weights that were best in "
        "validation; the curve is of the validation data.",
        "train": "Where no data is held out for validation, quality is that of the last weights on data that was "
        "not trained on, evaluated once; the curve is of the training data.",
        "test": "Where the curve is of the test data, they were evaluated after every interval, and quality is that of "
        "the last evaluation.",
    }
    return [note for split, note in told.items() if split in found]


def _protocol(run: Run) -> str:
    learning = run.learning
    changed = f" Settings that differ from the default training recipe: {', '.join(learning.departures)}."
    return f"{run.record.spec.workload}: {learning.protocol}.{changed if learning.departures else ''}"


def _first_seeds(tasks: Sequence[TrainingTask]) -> list[str]:
    if all(len(task.succeeded) < 2 or not task.artifacts for task in tasks):
        return []
    return ["Images, and tables that differ between seeds in more than numbers, are those of the first seed."]


def _shared(tasks: Sequence[TrainingTask]) -> list[str]:
    if not any(run.shared for task in tasks for run in task.succeeded):
        return []
    only = [task.name for task in tasks if task.succeeded and all(run.shared for run in task.succeeded)]
    note = (
        "Time and energy of a run that shared the GPU with other programs are not its own alone. Medians of time and "
        "energy leave such runs out where other runs of the same task had the GPU to themselves."
    )
    return [f"{note} All runs shared the GPU: {listed(only)}." if only else note]


def _moved(runs: Sequence[Run]) -> list[str]:
    count = sum(not run.failed and run.moved for run in runs)
    which = f"{count} {'run was' if count == 1 else 'runs were'} resumed on another machine"
    return [f"{which}: time and energy are of no one machine, and not given."] if count else []


def _repeated(count: int) -> list[str]:
    runs = "1 run" if count == 1 else f"{count} runs"
    return [f"Not shown: {runs} superseded by a later run of the same spec."] if count else []
