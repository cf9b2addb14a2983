"""Bytes that a step reads from memory where a call repeated alone finds them in a cache.

A call that is timed alone is repeated on the same tensors. In a step, other calls have used the caches meanwhile,
unless the same call was made just before: a recurrent layer reads the same weights at every time step.
"""

from __future__ import annotations

from fathom.trace.step_work import StepWork

KEPT_BYTES = 8e6  # of one call: operands beyond are in no cache when it is repeated, either
FORGOTTEN_BYTES = 32e6  # moved by other calls, after which its operands are in no cache


def cold_bytes(step: StepWork) -> float:
    """Summed over the calls in their order."""
    last: dict[int, float] = {}
    moved = found = 0.0
    for index in step.sequence:
        size = step.ops[index].bytes or 0.0
        if index not in last or moved - last[index] > FORGOTTEN_BYTES:
            found += min(size, KEPT_BYTES)
        moved += size
        last[index] = moved
    return found
