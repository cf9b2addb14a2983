"""Starts: whether the first runs of a series could start at all; a fault of the installation fails every one of them.

A run has started when it has reported progress: a single worker with its first step, a job of ranks when a rank begins.
A worker that was killed or that hung is no such case, as the next run may need less memory; nor is a run that was
refused, which takes no time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fathom.core.events import OnProgress
from fathom.core.record import Record
from fathom.core.spec import RunSpec

TRIES = 3  # runs, of different specs as far as there are so many, that have to fail in the same way


class Starts:
    """Apart for each device and engine, and for single workers and ranks: those of one may start, of another not."""

    def __init__(self, specs: Sequence[RunSpec]) -> None:
        alike: dict[tuple[object, ...], list[RunSpec]] = defaultdict(list)
        for spec in specs:
            alike[_way(spec)].append(spec)
        self._of = {way: Start(same) for way, same in alike.items()}

    def of(self, spec: RunSpec) -> Start:
        return self._of[_way(spec)]


def _way(spec: RunSpec) -> tuple[object, ...]:
    return spec.device, spec.engine, spec.ranks is not None


class Start:
    """The runs in one way, from the first one on."""

    def __init__(self, specs: Sequence[RunSpec]) -> None:
        self._runs, self._different = len(specs), min(TRIES, len({spec.id for spec in specs}))
        self._failed: list[Record] = []
        self._over = False  # a run has started: from here on, failures are those of single runs
        self._progressed = self._told = False

    def watched(self, on_progress: OnProgress) -> OnProgress:
        """The same, for one run, which notes that there was progress."""
        self._progressed = False

        def report(done: int, total: int) -> None:
            self._progressed = True
            on_progress(done, total)

        return report

    def look(self, record: Record) -> None:
        """At what the run left."""
        reported = record.sections.wall_s is not None  # by a worker that ended by itself
        began = self._progressed or bool(record.warmup_s or record.step_s or record.losses)
        self._failed.append(record)
        same = len({each.reason for each in self._failed}) == 1
        self._over = self._over or record.outcome == "ok" or began or not reported or not same

    @property
    def failing(self) -> bool:
        different = len({record.spec.id for record in self._failed})
        return not self._over and len(self._failed) >= TRIES and different >= self._different

    def reason(self) -> str | None:
        """Why the others are not made, in one line, once."""
        if self._told:
            return None
        self._told = True
        left = self._runs - len(self._failed)
        more = f"{left} more run{'s' * (left != 1)} not made"
        return f"the first {len(self._failed)} runs could not start: {self._failed[0].reason}; {more}"
