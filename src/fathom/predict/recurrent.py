"""Recurrent layers of cuDNN: one call, with launches for every time step.

No calibration times its backward pass, which reads memory that only the forward pass can have written. It is predicted
from the forward call of the same step.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fathom.predict.features import shapes_of
from fathom.trace.step_work import OpWork, StepWork

FORWARD, BACKWARD = "aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"
BACKWARD_LAUNCHES = 2.0  # over the forward pass, as its FLOP: a gradient of the state and one of the weights


def with_backward(step: StepWork, seconds: Sequence[float]) -> list[float]:
    """Backward calls as long as the forward ones, in proportion to their FLOP."""
    known = [(found, op.flop) for op, found in zip(step.ops, seconds, strict=True) if op.op == FORWARD and op.flop]
    if not known:
        return list(seconds)
    rate = math.fsum(flop for _, flop in known) / max(math.fsum(found for found, _ in known), 1e-12)
    return [
        op.flop / rate if op.op == BACKWARD and op.flop else found for op, found in zip(step.ops, seconds, strict=True)
    ]


@dataclass(frozen=True)
class CellLaunches:
    """What launching a call costs the host for each cell: a layer at a time step."""

    loops: float

    @classmethod
    def of(cls, timed: Iterable[tuple[OpWork, float]]) -> CellLaunches | None:
        """The median over the forward calls; None without any."""
        found = [loops / cells for op, loops in timed if op.op == FORWARD and (cells := cells_of(op))]
        return cls(statistics.median(found)) if found else None

    def of_call(self, op: OpWork) -> float | None:
        """Loops of a call that was not timed; None where it is none of these."""
        if op.op not in (FORWARD, BACKWARD):
            return None
        return self.loops * cells_of(op) * (BACKWARD_LAUNCHES if op.op == BACKWARD else 1.0)


def cells_of(op: OpWork) -> int:
    """Time steps times weights, which a layer has as many of as any other; 0 where its shapes do not tell."""
    shapes = shapes_of(op.shapes)
    return int(shapes[0][0]) * len(shapes[1]) if len(shapes) > 1 and len(shapes[0]) == 3 else 0
