"""What the host needs to launch each op call on a GPU, in units of the fixed loop of machine/cpu_speed.py.

A host's core may run at half of its speed for minutes, and a loop timed beside each call slows down with it: the ratio
stays.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fathom.predict.recurrent import CellLaunches
from fathom.trace.step_work import OpWork


@dataclass(frozen=True)
class Launches:
    """A call that was timed has its own loops, another the median of its op, one of an unknown op that of all ops.

    A recurrent layer that was not timed has those of its time steps.
    """

    by_spec: Mapping[str, float] = field(default_factory=dict)
    by_op: Mapping[str, float] = field(default_factory=dict)
    usual: float = 0.0
    cell: CellLaunches | None = None

    @classmethod
    def of(cls, timed: Iterable[tuple[OpWork, float]]) -> Launches:
        timed = list(timed)
        by_spec, by_op = dict[str, float](), defaultdict[str, list[float]](list)
        for op, loops in timed:
            by_spec[op.spec] = loops
            by_op[op.op].append(loops)
        medians = {name: statistics.median(loops) for name, loops in by_op.items()}
        usual = statistics.median(medians.values()) if medians else 0.0
        return cls(by_spec, medians, usual, CellLaunches.of(timed))

    def loops(self, op: OpWork) -> float:
        if (own := self.by_spec.get(op.spec)) is not None:
            return own
        if self.cell and (of_cells := self.cell.of_call(op)):
            return of_cells
        return self.by_op.get(op.op, self.usual)
