"""Whether an engine is faster than eager: one rule for `fathom engines`, `study --engine best` and the report."""

from __future__ import annotations

from collections.abc import Sequence

from fathom.analysis.statistics import Interval, ratio_interval
from fathom.core.record import Record
from fathom.core.trial import Trial

Launches = Sequence[Record]  # of one trial: equal work, one process each


def trials_of(runs: Launches) -> list[Trial]:
    return [record.trial for record in runs if record.trial is not None]


def agrees(runs: Launches) -> bool:
    """Whether no launch gave other results than eager."""
    return not any(trial.disagreement(runs[0].spec.precision or "fp32") for trial in trials_of(runs))


def speedup(runs: Launches) -> Interval:
    """Eager's step time over the engine's."""
    return ratio_interval([trial.speedups for trial in trials_of(runs)])


def fastest(trials: Sequence[Launches]) -> Launches | None:
    """That of the fastest engine that agrees with eager and is shown to be faster; None where eager is as good."""
    faster = [runs for runs in trials if trials_of(runs) and agrees(runs) and speedup(runs).low > 1]
    return max(faster, key=lambda runs: speedup(runs).median, default=None)
