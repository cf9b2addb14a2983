"""Roofline with measured efficiencies: each class of ops reaches a part of the roof, and no call is shorter than some.

seconds = overhead + roofline / efficiency, both found for each class from the times of a campaign or of a record's op
rows. Of all predictors this one carries over to another device: its ceilings change, the efficiencies stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from fathom.predict.features import group_of
from fathom.predict.predictors.roofline import roof_s
from fathom.predict.target import Target, precision_of
from fathom.trace.flops import is_multiply_add
from fathom.trace.step_work import OpWork, StepWork

LEAST_S = 1e-7
Timed = Sequence[tuple[OpWork, float]]  # op calls, and the seconds of one
ALL = ""  # the class of ops that no other class has enough calls of
ENOUGH = 5  # calls, to fit a class of its own


@dataclass(frozen=True)
class ClassFit:
    overhead_s: float
    slowness: float  # 1 / efficiency: how many times longer than the roofline

    def seconds(self, roofline_s: float) -> float:
        return self.overhead_s + self.slowness * roofline_s


class Efficiency:
    name = "class efficiency"

    def __init__(self, fits: dict[str, ClassFit], precisions: Collection[str] = ("fp32",)) -> None:
        self.fits, self.precisions = fits, precisions  # that it was fitted in

    @classmethod
    def fitted(cls, timed: Timed, target: Target, precision: str = "fp32") -> Efficiency:
        step = bare_step(precision)
        groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for op, seconds in timed:
            if seconds > LEAST_S:  # a view on a GPU has no kernel, and no time
                pair = roof_s(op, step, target), seconds
                groups[group_of(op)].append(pair)
                groups[ALL].append(pair)
        idle = {group_of(op) for op, _ in timed} - set(groups)
        fits = {name: _fit(pairs) for name, pairs in groups.items() if len(pairs) >= ENOUGH}
        precisions = {precision_of(op, step) for op, _ in timed}
        return cls(fits | dict.fromkeys(idle, ClassFit(0.0, 0.0)), precisions)

    def seconds(self, step: StepWork, target: Target) -> list[float]:
        return [self._fit_of(op, step).seconds(roof_s(op, step, target)) for op in step.ops]

    def _fit_of(self, op: OpWork, step: StepWork) -> ClassFit:
        """Convolutions by fewer products may beat the ceiling of products; that carries to no other precision."""
        found = self.fits.get(group_of(op), self.fits.get(ALL, ClassFit(0.0, 1.0)))
        if precision_of(op, step) in self.precisions or not is_multiply_add(op.op):
            return found
        return replace(found, slowness=max(1.0, found.slowness))


def bare_step(precision: str) -> StepWork:
    """A step without ops: where only the precision matters."""
    return StepWork(workload="", phase="train", precision=precision, batch=1, item="item", ops=(), sequence=())


def _fit(pairs: Sequence[tuple[float, float]]) -> ClassFit:
    """Relative errors are minimised, and neither number is negative."""
    roofs, times = np.array(pairs, dtype=float).T
    scale = max(float(roofs.max()), LEAST_S)
    matrix = np.stack([np.ones_like(times), roofs / scale], axis=1) / times[:, None]
    (overhead, slowness), _ = nnls(matrix, np.ones(len(times)))
    return ClassFit(float(overhead), float(slowness) / scale)
