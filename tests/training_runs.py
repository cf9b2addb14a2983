"""Running a training recipe in a test, killing it at a given evaluation, and taking what must come out the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fathom.core.record import Learning, Record
from fathom.core.spec import RunSpec
from fathom.training.run import train


class Killed(BaseException):
    """Ends a run where a signal might: no Exception, so that nothing on the way records it as a failure."""


def trained(spec: RunSpec, die_at: int | None = None) -> Record:
    """Follows the recipe; to die at an evaluation is to end when it is reported, which is before its checkpoint."""

    def on_event(event: Mapping[str, Any]) -> None:
        if die_at is not None and event.get("evaluation") == die_at:
            raise Killed

    return train(spec, on_event=on_event)


def learning_of(record: Record) -> Learning:
    """What came of a training run that must have got so far."""
    assert record.learning is not None
    return record.learning


def numbers(record: Record) -> list[tuple[int, float, float]]:
    """The curve without its seconds, which are never the same twice."""
    return [(point.items, point.loss, point.quality) for point in learning_of(record).curve]
