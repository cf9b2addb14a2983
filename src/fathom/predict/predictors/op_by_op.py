"""Each call of a step at the time that the same call took alone on this device; others as another predictor says.

The network itself has never run: its calls have, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable

from fathom.predict.campaign import TimedCall
from fathom.predict.predictors.base import Predictor
from fathom.predict.recurrent import with_backward
from fathom.predict.target import Target
from fathom.trace.step_work import StepWork

MOSTLY = 0.95  # of the time in ops, from which the calls of a step count as timed


class OpByOp:
    name = "op by op"

    def __init__(self, calls: Iterable[TimedCall], otherwise: Predictor) -> None:
        self._known = {each.work.spec: each.seconds for each in calls}
        self._otherwise = otherwise

    def seconds(self, step: StepWork, target: Target) -> list[float]:
        fallback = self._otherwise.seconds(step, target)
        found = [self._known.get(op.spec, other) for op, other in zip(step.ops, fallback, strict=True)]
        return with_backward(step, found)

    def timed(self, step: StepWork, target: Target) -> bool:
        return self.known_share(step, target) >= MOSTLY

    def known_share(self, step: StepWork, target: Target) -> float:
        """The part of the predicted op time that was measured."""
        each = self.seconds(step, target)
        pairs = list(zip(step.ops, each, step.calls, strict=True))
        total = sum(seconds * calls for _, seconds, calls in pairs)
        return sum(seconds * calls for op, seconds, calls in pairs if op.spec in self._known) / total if total else 0.0
