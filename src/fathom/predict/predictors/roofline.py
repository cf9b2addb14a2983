"""The roofline: an op takes as long as its FLOP at the device's rate, or its bytes at its bandwidth if that is longer.

A lower bound rather than an expectation, and the baseline that every other predictor is shown beside.
"""

from __future__ import annotations

from fathom.predict.target import Target, precision_of
from fathom.trace.flops import is_multiply_add
from fathom.trace.step_work import OpWork, StepWork


class Roofline:
    name = "roofline"

    def seconds(self, step: StepWork, target: Target) -> list[float]:
        return [roof_s(op, step, target) for op in step.ops]


def roof_s(op: OpWork, step: StepWork, target: Target) -> float:
    """0 for an op whose work is not known. Elementwise arithmetic has the rate of products, as the model has one."""
    precision = precision_of(op, step)
    if precision == "tf32" and not is_multiply_add(op.op):
        precision = "fp32"
    return max(_arithmetic_s(op, precision, target), (op.bytes or 0.0) / target.bytes_per_s)


def _arithmetic_s(op: OpWork, precision: str, target: Target) -> float:
    """0 for elementwise arithmetic at a rate that is not known: a sum in fp64 hardly takes longer than its bytes."""
    rate = target.known_peak(precision)
    if not op.flop or (rate is None and not is_multiply_add(op.op)):
        return 0.0
    return op.flop / (rate or target.peak(precision))


def is_compute_bound(op: OpWork, step: StepWork, target: Target) -> bool:
    return _arithmetic_s(op, precision_of(op, step), target) >= (op.bytes or 0.0) / target.bytes_per_s
