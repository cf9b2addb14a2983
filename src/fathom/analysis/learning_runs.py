"""Training runs by task: which records are seeds of one task, what each came to, and whether a target counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fathom.analysis.selection import workload_order
from fathom.core.record import Learning, Point, Record

PLAIN = ("precision", "engine")  # settings named by their value alone: "bf16" is clear without "precision"
FEWEST = 3  # seeds: fewer do not tell how a recipe does with another one


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
    """One workload trained on one data set in one way, with every seed, on whatever machine."""

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
    def seeds(self) -> dict[int, bool]:
        """Whether each reached the target, in all of its runs where it has several: on two machines, say."""
        reached: dict[int, bool] = {}
        for run in self.runs:
            seed = run.record.spec.seed or 0
            reached[seed] = run.reached and reached.get(seed, True)
        return reached

    @property
    def counts_as_reached(self) -> bool | None:
        """At least 4 of 5 seeds, or all of 3 or 4; None with fewer. A run that failed is one that did not."""
        seeds = self.seeds
        if len(seeds) < FEWEST:
            return None
        return sum(seeds.values()) >= len(seeds) - len(seeds) // 5

    @property
    def count(self) -> str:
        """How many seeds reached the target: "4 of 5, 1 failed"."""
        return f"{sum(self.seeds.values())} of {len(self.seeds)}{self.failures}"

    @property
    def has_target(self) -> bool:
        """Assumed where no run came to an evaluation."""
        return self.evaluation is None or self.evaluation.target is not None

    @property
    def failures(self) -> str:
        count = len(self.runs) - len(self.succeeded)
        return f", {count} failed" if count else ""


def training_runs(records: Sequence[Record]) -> list[Run]:
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
        others = [evaluations[id(other)] for other in twins]
        own = evaluations[id(run.record)]
        if own and any(other != own for other in others):  # no switch distinguishes them
            # weights that were chosen by the test data are others than those chosen in validation
            chosen = [f"evaluated on {own[-1]}"] if any(other and other[-1] != own[-1] for other in others) else []
            run = replace(run, variant=", ".join([*_differing(run.record, twins).values(), *chosen]))
        aims = _aims(run.record, [other for other in twins if evaluations[id(other)] == own], records)
        named.append(replace(run, variant=", ".join([run.variant, *aims] if run.variant else aims)))
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
    """Everything but data and seed in which two runs of the same subject may differ, and their results by it.

    Not the machine: time and energy are its own, but quality with the same settings is not.
    """
    spec = record.spec
    chosen = {"preset": spec.preset, "precision": spec.precision, "engine": spec.engine, "batch": spec.batch}
    return {**chosen, "evaluations": spec.evaluations, **spec.options}


def _evaluation(record: Record, records: Sequence[Record]) -> tuple[str, ...] | None:
    """The metric, the split of its result and that of its curve; of a run that came to nothing, other seeds'."""
    found = _known(record, records)
    return (found.metric, found.split, found.curve_split) if found else None


def _aims(record: Record, twins: Sequence[Record], records: Sequence[Record]) -> list[str]:
    """Target and recipe where they differ between runs that are alike in all else: these are no seeds of one task."""
    own = _known(record, records)
    others = [found for other in twins if (found := _known(other, records))]
    if own is None:
        return []
    target = [f"target {own.target:g}"] if own.target is not None else ["no target"]
    recipe = [f"recipe {own.recipe}"] if own.recipe else []
    targets, recipes = {other.target for other in others}, {other.recipe for other in others if other.recipe}
    return [*(target if len(targets) > 1 else []), *(recipe if len(recipes) > 1 else [])]


def _known(record: Record, records: Sequence[Record]) -> Learning | None:
    """What came of this run, or else of one with another seed alone."""

    def same(other: Record) -> bool:
        ours, theirs = record.spec, other.spec
        return (ours.workload, ours.data) == (theirs.workload, theirs.data) and _settings(record) == _settings(other)

    return next((each.learning for each in (record, *filter(same, records)) if each.learning), None)
