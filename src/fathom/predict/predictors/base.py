"""What a predictor is: seconds of one call of each op of a step, on a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fathom.predict.target import Target
from fathom.trace.step_work import StepWork


class Predictor(Protocol):
    """On a GPU the seconds are those of the kernels; on a CPU those of the op, without what the host does around it."""

    name: str

    def seconds(self, step: StepWork, target: Target) -> Sequence[float]:
        """Of one call of each of step.ops."""
