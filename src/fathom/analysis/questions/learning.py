"""Do the workloads reach their target quality, how long does it take, and what does it cost? Every seed is shown."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from fathom.analysis.finding import Cell, Chart, Finding, Image, Series, Table, not_measured
from fathom.analysis.learning_runs import FEWEST, Run, TrainingTask, training_runs
from fathom.analysis.questions._artifacts import shown
from fathom.analysis.selection import finished_attempts
from fathom.core.formatting import listed, median_and_range
from fathom.core.record import Artifact, Learning, Record

TITLE = "Do the workloads reach their target quality, and at what cost?"
ORDER = 30
CURVE_OF = {"validation": "in validation", "train": "on the training data", "test": "on the test data"}


def analyse(records: Sequence[Record]) -> Finding:
    training = [record for record in records if record.spec.kind == "training"]
    if not training:
        return not_measured("learning", TITLE, "fathom learn WORKLOAD")
    runs = training_runs(finished_attempts(training))
    names = dict.fromkeys(run.name for run in runs)
    tasks = [TrainingTask(name, [run for run in runs if run.name == name]) for name in names]
    succeeded = [run for run in runs if not run.failed]
    artifacts = [artifact for task in tasks for artifact in _artifacts(task)]
    tables = [Table(title=each.title, columns=each.columns, rows=each.rows) for each in artifacts if each.columns]
    return Finding(
        question="learning",
        title=TITLE,
        summary=_summary(tasks),
        tables=[_task_table(tasks), _cost_table(tasks), _run_table(runs), *tables],
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


def _artifacts(task: TrainingTask) -> list[Artifact]:
    by_seed = {run.record.spec.seed or 0: run.learning.artifacts for run in task.succeeded}
    return shown(task.name, by_seed) if by_seed else []


def _summary(tasks: Sequence[TrainingTask]) -> str:
    """How many tasks count as reached, and of every task with how many seeds."""
    aiming = [task for task in tasks if task.has_target]
    whole, short, few = (
        [f"{task.name}, {task.count}" for task in aiming if task.counts_as_reached is verdict]
        for verdict in (True, False, None)
    )
    judged = len(whole) + len(short)
    many = "training task counts" if judged == 1 else "training tasks count"
    first = f"{len(whole)} of {judged} {many} as reached (with at least 4 of 5 seeds, or all of 3 or 4)"
    free = [f"{task.name}{task.failures}" for task in tasks if not task.has_target]
    sentences = [f"{first}: {'; '.join(whole)}" if whole else first] if judged else []
    sentences += [f"With too few: {'; '.join(short)}"] if short else []
    sentences += [f"Of fewer than {FEWEST} seeds: {'; '.join(few)}"] if few else []
    sentences += [f"Without a target: {'; '.join(free)}"] if free else []
    return " ".join(f"{sentence}." for sentence in sentences)


def _task_table(tasks: Sequence[TrainingTask]) -> Table:
    """Quality, and how often the target was reached."""
    columns = ["task", "metric", "target", "quality: median (min to max)", "reached", "counts as reached"]
    return Table(
        title="Every training task, over its seeds", columns=columns, rows=list(map(_task_row, tasks)), leading=True
    )


def _task_row(task: TrainingTask) -> list[Cell]:
    evaluation = task.evaluation
    verdict = {True: "yes", False: "no", None: "too few seeds"}[task.counts_as_reached]
    qualities = [run.learning.quality for run in task.succeeded if run.learning.quality is not None]
    return [
        task.name,
        f"{evaluation.metric} ({evaluation.unit})" if evaluation else None,
        evaluation.target if evaluation else None,
        median_and_range(qualities) if qualities else None,
        task.count if task.has_target else f"no target{task.failures}",
        verdict if task.has_target else None,
    ]


def _cost_table(tasks: Sequence[TrainingTask]) -> Table:
    """What the target took, on each machine: medians over the runs that had the GPU to themselves."""
    groups = [(task.name, machine, runs) for task in tasks for machine, runs in _by_machine(task.succeeded).items()]
    columns = ["task", "machine", "runs", "time to target (s)", "items to target", "energy to target (kJ)"]
    columns += ["whole run (s)", "shared the GPU"]
    rows: list[list[Cell]] = [[name, machine, *_cost(runs)] for name, machine, runs in groups]
    if not any(runs[0].shared for _, _, runs in groups):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(title="Time and energy to the target", columns=columns, rows=rows, leading=True)


def _by_machine(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Those that had the GPU to themselves, or all where there are none: a shared GPU distorts time and energy.

    Without those of several machines, whose time and energy are of none.
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        if not run.moved:
            found.setdefault(run.record.machine_label, []).append(run)
    return {machine: [run for run in there if not run.shared] or there for machine, there in found.items()}


def _cost(runs: Sequence[Run]) -> list[Cell]:
    reached = [run for run in runs if run.reached]
    items = _median(run.at_target.items for run in reached if run.at_target)
    return [
        len(runs),
        _median(run.at_target.seconds for run in reached if run.at_target),
        None if items is None else round(items),
        _median(_kilo(run.energy_to_target) for run in reached),
        _median(run.learning.seconds for run in runs),
        "yes" if runs[0].shared else "no",
    ]


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
    """The title says what all of them have in common, each line the rest; a curve on training data meets no target.

    Over time where all ran on one machine with the GPU to themselves, else over items, which no other program changes.
    """
    variants, evaluation = {run.variant for run in runs}, runs[0].learning
    by_time = len({run.record.machine_label for run in runs}) == 1 and not any(run.shared or run.moved for run in runs)
    seeds = Counter((run.variant, run.record.spec.seed) for run in runs)
    lines = [
        _curve(run, by_time, variant=len(variants) > 1, machine=seeds[run.variant, run.record.spec.seed] > 1)
        for run in runs
    ]
    longest = max(line.x[-1] for line in lines)
    aiming = [run.learning for run in runs if run.learning.curve_split != "train"]
    targets = dict.fromkeys(learning.target for learning in aiming if learning.target is not None)
    return Chart(
        kind="line",
        title=f"{runs[0].name if len(variants) == 1 else runs[0].subject}: {_measured(evaluation)}",
        x_title="time (s)" if by_time else "items",
        y_title=f"{evaluation.metric} ({evaluation.unit})",
        series=[
            *lines,
            *(Series(name="target", role="target", x=[0.0, longest], y=[target, target]) for target in targets),
        ],
        unit=evaluation.unit,
    )


def _measured(learning: Learning) -> str:
    """What a curve is of: "BLEU in validation"; a metric that says so itself is not told twice."""
    split = CURVE_OF.get(learning.curve_split, f"on the {learning.curve_split} data")
    return learning.metric if split in learning.metric else f"{learning.metric} {split}"


def _curve(run: Run, by_time: bool, *, variant: bool, machine: bool) -> Series:
    curve = run.learning.curve
    parts = [run.variant if variant else "", run.record.machine_label if machine else ""]
    parts += [f"seed {run.record.spec.seed}", "failed" if run.failed else ""]
    parts += ["on several machines"] if run.moved else []
    return Series(
        name=", ".join(text for text in parts if text),
        x=[point.seconds if by_time else point.items for point in curve],
        y=[point.quality for point in curve],
        text=[f"{point.items:,} items, {point.seconds:.0f} s, loss {point.loss:.4g}" for point in curve],
    )


def _protocols(runs: Sequence[Run]) -> list[str]:
    if not runs:
        return []
    metered = sorted({run.learning.metered for run in runs if run.learning.metered})
    energy = f"Energy was counted by {' or '.join(metered)}" if metered else "Energy was not metered"
    return [
        *sorted({_protocol(run) for run in runs}),
        *_splits(runs),
        "A target counts as reached when at least 4 of 5 seeds reach it, or all of 3 or 4, each in all of its runs; a "
        "failed run does not. Every seed is shown.",
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
    if all(len(task.succeeded) < 2 or not _artifacts(task) for task in tasks):
        return []
    return ["Images, and tables that differ between seeds in more than numbers, are those of the first seed."]


def _shared(tasks: Sequence[TrainingTask]) -> list[str]:
    if not any(run.shared for task in tasks for run in task.succeeded):
        return []
    return [
        "Time and energy of a run that shared the GPU with other programs are not its own alone. Medians of time and "
        "energy leave such runs out where other runs of the same task had the GPU of that machine to themselves."
    ]


def _moved(runs: Sequence[Run]) -> list[str]:
    count = sum(not run.failed and run.moved for run in runs)
    which = f"{count} {'run was' if count == 1 else 'runs were'} resumed on another machine"
    return [f"{which}: time and energy are of no one machine, and not given."] if count else []


def _repeated(count: int) -> list[str]:
    runs = "1 failed run" if count == 1 else f"{count} failed runs"
    return [f"Not shown: {runs}, made again later with the same settings and seed."] if count else []
