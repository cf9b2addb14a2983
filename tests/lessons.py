"""Running a lesson in a test, killing it in a given round, and taking from its record what must come out the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fathom.core.record import Learning, Record
from fathom.core.spec import RunSpec
from fathom.training.run import learned


class Killed(BaseException):
    """Ends a run where a signal might: no Exception, so that nothing on the way records it as a failure."""


def ran(spec: RunSpec, die_in: int | None = None) -> Record:
    """Runs the lesson; given a round to die in, only as far as that round is told of, which is before it is kept."""

    def hear(told: Mapping[str, Any]) -> None:
        if die_in is not None and told.get("round") == die_in:
            raise Killed

    return learned(spec, lambda done, total: None, hear)


def learnt(record: Record) -> Learning:
    """What was learnt, of a run that must have come so far."""
    assert record.learning is not None
    return record.learning


def numbers(record: Record) -> list[tuple[int, float, float]]:
    """The curve without its seconds, which are never the same twice."""
    return [(point.items, point.loss, point.quality) for point in learnt(record).curve]
