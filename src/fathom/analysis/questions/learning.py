"""Do the workloads learn, how long does it take, and what does it cost? Every seed is shown, not the best."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fathom.analysis.finding import Cell, Chart, Finding, Picture, Series, Table
from fathom.analysis.questions._artifacts import shown
from fathom.analysis.questions._words import listed, spread, unanswered
from fathom.analysis.selection import last_attempts, workload_order
from fathom.core.record import Artifact, Learning, Point, Record

TITLE = "Do they learn, and what does it take?"
PLAIN = ("place", "precision")  # what is told by its value alone: "bf16" says what it is


@dataclass(frozen=True)
class Run:
    """One run of learning, with a name that it shares with the other seeds of the same lesson alone."""

    record: Record
    thing: str  # "memnet on babi"
    way: str  # what tells it from others of the same thing: "joint", or nothing

    @property
    def name(self) -> str:
        return f"{self.thing} ({self.way})" if self.way else self.thing

    @property
    def failed(self) -> bool:
        """A run that diverged may have a curve, and is no result for all that."""
        return self.record.outcome != "ok" or self.record.learning is None or not self.record.learning.curve

    @property
    def learning(self) -> Learning:
        assert self.record.learning is not None
        return self.record.learning

    @property
    def shared(self) -> bool:
        return bool(self.record.disturbance.gpu_shared)

    @property
    def arrival(self) -> Point | None:
        """Where it first reached a target that it had in the end, too."""
        return self.learning.to_target if not self.failed and self.learning.reached else None

    @property
    def energy_to_target(self) -> float | None:
        """Where a record did not count round by round, it is known only if the run stopped at its target."""
        point = self.arrival
        if point is None or point.energy_j is not None:
            return point.energy_j if point else None
        return self.learning.energy_j if point == self.learning.curve[-1] else None


@dataclass(frozen=True)
class Lesson:
    """One thing learnt in one way, with every seed."""

    name: str
    runs: list[Run]

    @property
    def judged(self) -> Learning | None:
        return next((run.record.learning for run in self.runs if run.record.learning), None)

    @property
    def good(self) -> list[Run]:
        return [run for run in self.runs if not run.failed]

    @property
    def arrived(self) -> list[Run]:
        return [run for run in self.runs if run.arrival]

    @property
    def has_target(self) -> bool:
        """So it is taken to have where no run came as far as telling."""
        return self.judged is None or self.judged.target is not None

    @property
    def artifacts(self) -> list[Artifact]:
        by_seed = {run.record.spec.seed: run.learning.artifacts for run in self.good}
        return shown(self.name, by_seed) if by_seed else []

    @property
    def failures(self) -> str:
        count = len(self.runs) - len(self.good)
        return f", {count} failed" if count else ""


def analyse(records: Sequence[Record]) -> Finding:
    asked = [record for record in records if record.spec.kind == "training"]
    if not asked:
        return unanswered("learning", TITLE, "no run of learning; `fathom learn autoenc --data mnist` makes one")
    runs = _runs_of(last_attempts(asked))
    names = dict.fromkeys(run.name for run in runs)
    lessons = [Lesson(name, [run for run in runs if run.name == name]) for name in names]
    good = [run for run in runs if not run.failed]
    artifacts = [artifact for lesson in lessons for artifact in lesson.artifacts]
    tables = [Table(title=each.title, columns=each.columns, rows=each.rows) for each in artifacts if each.columns]
    return Finding(
        question="learning",
        title=TITLE,
        summary=_summary(lessons),
        tables=[_lessons(lessons), _every_run(runs), *tables],
        charts=_charts(runs),
        pictures=[Picture(title=each.title, png=each.png) for each in artifacts if each.png],
        notes=[*_protocols(good), *_first_seeds(lessons), *_shared(lessons), *_passed_over(len(asked) - len(runs))],
    )


def _runs_of(records: Sequence[Record]) -> list[Run]:
    """Runs by name and seed; where a workload learnt the same data in several ways, the name says what differs."""
    metrics = {id(record): _metric(record, records) for record in records}
    runs = []
    for record in records:
        rivals = [other for other in records if _thing(other) == _thing(record)]
        alike = [other for other in rivals if metrics[id(other)] == metrics[id(record)]]
        # a switch may choose another lesson; all else is told where the lesson is the same
        same = _told(record, alike)
        way = [text for name, text in _told(record, rivals).items() if text == name or name in same]
        runs.append(Run(record, _thing(record), ", ".join(way)))
    named = []
    for run in runs:
        twins = [other.record for other in runs if other.name == run.name]
        if any(metrics[id(other)] != metrics[id(run.record)] for other in twins):  # then no switch tells them apart
            run = replace(run, way=", ".join(_told(run.record, twins).values()))
        named.append(run)
    return sorted(named, key=lambda run: (workload_order(run.record.spec.workload), run.name, run.record.spec.seed))


def _told(record: Record, others: Sequence[Record]) -> dict[str, str]:
    """What has another value in some of the others, in words; a switch by its name."""
    return {
        name: name if value is True else str(value) if name in PLAIN else f"{name} {value}"
        for name, value in _way(record).items()
        if value is not None and any(_way(other).get(name) != value for other in others)
    }


def _thing(record: Record) -> str:
    """A workload and what it learns from: a folder, the game that it plays, or what is invented for it."""
    spec = record.spec
    data = spec.data.rpartition("/")[2] if spec.data else spec.options.get("game", "synthetic data")
    return f"{spec.workload} on {data}"


def _way(record: Record) -> dict[str, Any]:
    """Everything but the seed in which two runs of the same thing may differ."""
    spec = record.spec
    chosen = {"preset": spec.preset, "precision": spec.precision, "evaluations": spec.evaluations, **spec.options}
    return {**chosen, "place": record.machine_label}


def _metric(record: Record, records: Sequence[Record]) -> str | None:
    """What it is judged by; a run that came to nothing would have been judged as the other seeds are."""
    rivals = [other for other in records if _thing(other) == _thing(record)]
    alike = (other.learning for other in (record, *rivals) if _way(other) == _way(record))
    return next((learning.metric for learning in alike if learning), None)


def _summary(lessons: Sequence[Lesson]) -> str:
    aiming = [lesson for lesson in lessons if lesson.has_target]
    whole = [lesson.name for lesson in aiming if len(lesson.arrived) == len(lesson.runs)]
    short = [
        f"{lesson.name}, {len(lesson.arrived)} of {len(lesson.runs)} runs{lesson.failures}"
        for lesson in aiming
        if lesson.name not in whole
    ]
    free = [f"{lesson.name}{lesson.failures}" for lesson in lessons if not lesson.has_target]
    named = f": {listed(whole)}" if whole else ""
    told = [f"{len(whole)} of {len(aiming)} lessons reached their target in every run{named}."] if aiming else []
    told += [f"Not in every run: {'; '.join(short)}."] if short else []
    told += [f"Judged without a target: {'; '.join(free)}."] if free else []
    return " ".join(told)


def _lessons(lessons: Sequence[Lesson]) -> Table:
    """What one asks first: how good, how often, and what it took to get there."""
    columns = ["what", "metric", "target", "quality: median (least to most)", "reached", "time to target (s)"]
    columns += ["items to target", "energy to target (kJ)", "whole lesson (s)"]
    return Table(title="Every lesson, over its seeds", columns=columns, rows=[_lesson(lesson) for lesson in lessons])


def _lesson(lesson: Lesson) -> list[Cell]:
    judged, alone = lesson.judged, _alone(lesson.arrived)
    reached = f"{len(lesson.arrived)} of {len(lesson.runs)}{lesson.failures}"
    qualities = [run.learning.quality for run in lesson.good if run.learning.quality is not None]
    items = _median(run.arrival.items for run in lesson.arrived if run.arrival)
    return [
        lesson.name,
        f"{judged.metric} ({judged.unit})" if judged else None,
        judged.target if judged else None,
        spread(qualities) if qualities else None,
        reached if lesson.has_target else f"no target{lesson.failures}",
        _median(run.arrival.seconds for run in alone if run.arrival),
        None if items is None else round(items),
        _median(_kilo(run.energy_to_target) for run in alone),
        _median(run.learning.seconds for run in _alone(lesson.good)),
    ]


def _alone(runs: Sequence[Run]) -> list[Run]:
    """Those that had the GPU to themselves, where there are such: the others cannot tell what it takes."""
    return [run for run in runs if not run.shared] or list(runs)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _kilo(joules: float | None) -> float | None:
    return None if joules is None else joules / 1000


def _every_run(runs: Sequence[Run]) -> Table:
    """One row a seed; where it ran is told if it is not the same for all."""
    settings = {
        "place": [run.record.machine_label for run in runs],
        "precision": [run.record.spec.precision for run in runs],
    }
    differing = {name: values for name, values in settings.items() if len(set(values)) > 1}
    rows: list[list[Cell]] = []
    for number, run in enumerate(runs):
        head: list[Cell] = [run.name, *(values[number] for values in differing.values()), run.record.spec.seed]
        rows.append([*head, *_results(run), _outcome(run)])
    columns = ["what", *differing, "seed", "quality", "to target (s)", "time (s)", "items", "energy (kJ)", "outcome"]
    return Table(title="Every run of learning", columns=columns, rows=rows)


def _results(run: Run) -> list[Cell]:
    if run.failed:
        return [None] * 5
    learning, arrival = run.learning, run.arrival
    to_target = arrival.seconds if arrival else None
    return [learning.quality, to_target, learning.seconds, learning.items, _kilo(learning.energy_j)]


def _outcome(run: Run) -> str:
    if run.failed:
        return f"failed: {run.record.reason or 'it has not looked at held-out data'}"
    learning, kills = run.learning, run.learning.resumed
    said = ["no target" if learning.reached is None else "reached" if learning.reached else "not reached"]
    said += [f"went on after {kills} kill{'s' if kills > 1 else ''}"] if kills else []
    said += ["shared the GPU"] if run.shared else []
    return "; ".join(said)


def _charts(runs: Sequence[Run]) -> list[Chart]:
    """One for each thing and metric, so that what differs in an option is seen side by side."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.record.learning and run.learning.curve:
            groups.setdefault((run.thing, run.learning.metric), []).append(run)
    return [_chart(group) for group in groups.values()]


def _chart(runs: Sequence[Run]) -> Chart:
    """The name says whatever all of them have in common, each line the rest."""
    ways, judged = {run.way for run in runs}, runs[0].learning
    longest = max(run.learning.curve[-1].seconds for run in runs)
    targets = dict.fromkeys(run.learning.target for run in runs if run.learning.target is not None)
    return Chart(
        kind="line",
        title=f"{runs[0].name if len(ways) == 1 else runs[0].thing}: {judged.metric}",
        x_title="time (s)",
        y_title=f"{judged.metric} ({judged.unit})",
        series=[
            *(_curve(run, run.way if len(ways) > 1 else "") for run in runs),
            *(Series(name="target", x=[0.0, longest], y=[target, target]) for target in targets),
        ],
    )


def _curve(run: Run, way: str) -> Series:
    curve = run.learning.curve
    said = [way, f"seed {run.record.spec.seed}", "failed" if run.failed else ""]
    return Series(
        name=", ".join(text for text in said if text),
        x=[point.seconds for point in curve],
        y=[point.quality for point in curve],
        text=[f"{point.items:,} items, loss {point.loss:.4g}" for point in curve],
    )


def _protocols(runs: Sequence[Run]) -> list[str]:
    if not runs:
        return []
    metered = sorted({run.learning.metered for run in runs if run.learning.metered})
    energy = f"Energy is what was counted by {' or '.join(metered)}" if metered else "Energy was not metered"
    return [
        *sorted({f"{run.record.spec.workload}: {run.learning.protocol}." for run in runs}),
        "Time is from the first step to a look at held-out data, that look and those before included: the first that "
        "reached the target, or the last, where a protocol says how long to train. Medians of what it took to the "
        f"target are of the runs that reached it. {energy}.",
    ]


def _first_seeds(lessons: Sequence[Lesson]) -> list[str]:
    if all(len(lesson.good) < 2 or not lesson.artifacts for lesson in lessons):
        return []
    return ["Where seeds differ in more than numbers, pictures and tables are the first one's; records hold them all."]


def _shared(lessons: Sequence[Lesson]) -> list[str]:
    if not any(run.shared for lesson in lessons for run in lesson.good):
        return []
    only = [lesson.name for lesson in lessons if lesson.good and all(run.shared for run in lesson.good)]
    told = (
        "Runs that shared the GPU with other programs took longer for it, and their energy is that of all of them: "
        "medians of time and energy leave them out where other runs of the same lesson had the GPU to themselves."
    )
    return [f"{told} There are no such runs of {listed(only)}." if only else told]


def _passed_over(count: int) -> list[str]:
    runs = "1 run is" if count == 1 else f"{count} runs are"
    return [f"{runs} left out, as the same was run again: the last that went well counts."] if count else []
