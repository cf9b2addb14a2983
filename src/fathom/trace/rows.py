"""The contents of a trace: op calls and GPU activities, and their totals per step as op rows and kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fathom.core import formatting
from fathom.core.errors import FathomError
from fathom.core.record import Kernel, OpRow
from fathom.core.traced import RowKernels
from fathom.trace.calls import GpuActivity, OpCall
from fathom.trace.costs import Costs, alike
from fathom.trace.event import Event
from fathom.trace.event_columns import EventColumns, Integers
from fathom.trace.flops import Cost
from fathom.trace.intervals import Floats
from fathom.trace.taxonomy import group_of
from fathom.trace.threads import HostThread

ROUNDING = 1e-6  # of a step, by which op times and time outside ops may miss it


class CallTimes(NamedTuple):
    """One entry per op call: its step and its time, on a GPU that of its kernels."""

    step: Integers
    us: Floats


@dataclass
class Breakdown:
    """A trace broken down into op calls. Times are in microseconds as in the file; rows() gives seconds per step."""

    op_calls: list[OpCall]
    steps: list[tuple[float, float]]  # begin and end
    gpu_activities: list[GpuActivity]
    data_us: list[float] | None = None  # per step, in the data marker; None in a trace without the marker
    events: list[int] = field(default_factory=list)  # per step, what the profiler recorded on the CPU: ops and marks
    events_in_ops: list[int] = field(default_factory=list)  # those of them nested in an op call of op_calls
    host: list[HostThread] = field(default_factory=list)
    all_steps: bool = False  # whether every step counts, as in a trace that a user has; else the typical ones
    waits: list[tuple[Event, OpCall | None]] = field(default_factory=list)  # calls that wait for a device, with the op
    columns: EventColumns = field(default_factory=lambda: EventColumns.of([]))  # all events
    marked: bool = True  # whether the trace tells its steps; without, all of it is one
    ops_outside: int = 0  # op calls, those inside others not among them, before, between and after the steps
    ambiguous: int = 0  # launches under an id that several processes of a merged trace have

    @property
    def on_gpu(self) -> bool:
        return bool(self.gpu_activities)

    @property
    def typical_steps(self) -> set[int]:
        """The middle half of the steps by duration, which excludes steps that the system interrupted."""
        if self.all_steps:
            return set(range(len(self.steps)))
        order = sorted(range(len(self.steps)), key=lambda step: self.steps[step][1] - self.steps[step][0])
        quarter = len(order) // 4
        return set(order[quarter : len(order) - quarter])

    @property
    def notes(self) -> list[str]:
        """Remarks on the rows, for people."""
        found = []
        if without_op := sum(call.device_us for call in self.op_calls if call.kernel_only):
            percent = 100 * without_op / sum(call.device_us for call in self.op_calls)
            found.append(
                f"{percent:.3g} % of the kernel time was launched by no op in the trace (CUDA graphs, say): "
                "these rows are kernels, without layer and FLOP"
            )
        if self.ambiguous:
            found.append(
                f"{formatting.count(self.ambiguous, 'launch id')} of several processes, as in a trace merged from "
                "those of several ranks: whose kernels these are is not known. A folder with a trace of each rank tells"
            )
        if (devices := len({activity.stream[0] for activity in self.gpu_activities})) > 1:
            found.append(f"{devices} GPUs are in the trace: busy is the time in which any of them works, and idle none")
        if not self.marked:
            found.append(
                "no step is marked: the whole trace counts as one step, however many it holds. torch.profiler marks "
                "steps where it has a schedule, and step() is called after each"
            )
        if self.ops_outside:
            found.append(f"not counted: {formatting.count(self.ops_outside, 'op call')} outside all steps")
        return found

    def grouped(self) -> RowGroups:
        """The op calls of the typical steps by op, layer, phase, shapes and dtypes: one group a row."""
        typical_steps = self.typical_steps
        calls = [call for call in self.op_calls if call.step in typical_steps]
        firsts, kinds = alike(calls)
        costs = Costs(self.op_calls)
        rows: dict[tuple[str, ...], int] = {}
        row_of = np.array([rows.setdefault(costs.row_key(call), len(rows)) for call in firsts], dtype=np.int64)
        kind = np.array(kinds, dtype=np.int64)
        made = np.array([call.calls > 0 for call in calls], dtype=np.bool_)
        counts = np.bincount(kind[made], minlength=len(firsts)).tolist()
        order = np.lexsort((kind, row_of[kind]))
        return RowGroups(
            keys=list(rows),
            calls=calls,
            order=order,
            row=row_of[kind],
            costs=costs.totals(firsts, counts, row_of.tolist(), len(rows)),
        )

    def rows(self, groups: RowGroups | None = None) -> list[OpRow]:
        """One for each group, given or made here: the mean of the typical steps, so that rows add up."""
        groups = groups or self.grouped()
        steps = len(self.typical_steps)
        return [
            OpRow(
                op=op,
                type=kind,
                group=group_of(kind),
                layer=layer,
                role=role,
                phase=phase,
                shapes=shapes,
                calls=calls / steps,
                cpu_s=cpu / steps * 1e-6,
                device_s=device / steps * 1e-6 if self.on_gpu else None,
                flop=None if cost.flop is None else cost.flop / steps,
                bytes=None if cost.bytes is None else cost.bytes / steps,
                dtypes=dtypes,
                kernel_s=kernels / steps * 1e-6 if self.on_gpu else None,
            )
            for (op, kind, layer, role, phase, shapes, dtypes), cost, calls, cpu, device, kernels in zip(
                groups.keys,
                groups.costs,
                groups.sums(call.calls for call in groups.calls),
                groups.sums(call.cpu_us for call in groups.calls),
                groups.sums(call.device_us for call in groups.calls),
                groups.sums(call.kernel_us for call in groups.calls),
                strict=True,
            )
        ]

    def row_kernels(self, groups: RowGroups) -> RowKernels | None:
        """Which kernels each row launched; None on a CPU."""
        if not self.on_gpu:
            return None
        names: dict[str, int] = {}
        rows = groups.row.tolist()
        totals: dict[tuple[int, int], list[float]] = defaultdict(list)
        launched = np.array([bool(call.kernels) for call in groups.calls], dtype=np.bool_)
        for index in groups.order[launched[groups.order]].tolist():
            row = rows[index]
            for name, time in groups.calls[index].kernels:
                totals[row, names.setdefault(name, len(names))].append(time)
        steps = len(self.typical_steps)
        return RowKernels(
            names=list(names),
            rows=[row for row, _ in totals],
            kernels=[kernel for _, kernel in totals],
            calls=[len(times) / steps for times in totals.values()],
            seconds=[sum(times) / steps * 1e-6 for times in totals.values()],
        )

    def kernels(self) -> list[Kernel]:
        """Every kernel and copy with its op, longest first; per step, the mean of the typical steps as in rows().

        A kernel's time is its duration: concurrent kernels count in full here, whereas rows() divides their time.
        """
        typical_steps = self.typical_steps
        totals: dict[tuple[str, str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for activity in self.gpu_activities:
            if activity.step in typical_steps and activity.op_call is not None:
                op = "" if activity.op_call.kernel_only else activity.op_call.op
                total = totals[activity.kind, activity.name, op, activity.op_call.type]
                total[0] += 1
                total[1] += activity.end - activity.begin
        count = len(typical_steps)
        found = [
            Kernel(name=name, kind=kind, op=op, type=type_, calls=calls / count, device_s=time / count * 1e-6)
            for (kind, name, op, type_), (calls, time) in totals.items()
        ]
        return sorted(found, key=lambda kernel: -kernel.device_s)

    def times(self) -> CallTimes:
        """Of all op calls as they are now."""
        step = np.array([call.step for call in self.op_calls], dtype=np.int64)
        us = [call.device_us for call in self.op_calls] if self.on_gpu else [call.cpu_us for call in self.op_calls]
        return CallTimes(step, np.array(us, dtype=np.float64))

    def per_step_s(self, times: CallTimes | None = None) -> dict[str, list[float]]:
        """Op type -> its time in each step."""
        step, us = times or self.times()
        types: dict[str, int] = {}
        kinds = np.array([types.setdefault(call.type, len(types)) for call in self.op_calls], dtype=np.int64)
        cells = np.bincount(kinds * len(self.steps) + step, us * 1e-6, minlength=len(types) * len(self.steps))
        series = cells.reshape(len(types), len(self.steps))
        return {kind: each.tolist() for kind, each in zip(types, series, strict=True)}

    def op_s(self) -> float:
        """In ops, of all typical steps."""
        step, us = self.times()
        return float(us[np.isin(step, list(self.typical_steps))].sum()) * 1e-6

    def outside_s(self, times: CallTimes | None = None) -> float:
        """Time in no op, per typical step; on a GPU, the time in which no kernel ran."""
        step, us = times or self.times()
        busy = np.bincount(step, us, minlength=len(self.steps)).tolist()
        outside = [end - begin - busy[step] for step, (begin, end) in enumerate(self.steps)]
        for left, (begin, end) in zip(outside, self.steps, strict=True):
            if left < -ROUNDING * (end - begin):
                raise FathomError(f"op times exceed a step by {-left:.3g} of {end - begin:.6g} us: an error of Fathom")
        return max(0.0, self._mean_of_typical_s(outside))

    def data_s(self) -> float | None:
        """Wall time of preparing data, per typical step, in ops or not; None in a trace without data markers."""
        return None if self.data_us is None else self._mean_of_typical_s(self.data_us)

    def events_per_step(self) -> tuple[float, float]:
        """How many events the profiler recorded in a typical step, and how many of them inside ops."""
        return self._mean_of_typical(self.events), self._mean_of_typical(self.events_in_ops)

    def _mean_of_typical_s(self, each_us: Sequence[float]) -> float:
        return self._mean_of_typical(each_us) * 1e-6

    def _mean_of_typical(self, each: Sequence[float]) -> float:
        typical_steps = self.typical_steps
        return sum(each[step] for step in typical_steps) / len(typical_steps)


@dataclass(frozen=True)
class RowGroups:
    """The op calls of the typical steps, and the row of each."""

    keys: list[tuple[str, ...]]  # of each row: op, type, layer, role, phase, shapes, dtypes
    calls: list[OpCall]
    row: Integers  # of each call
    order: Integers  # of the calls, row by row
    costs: list[Cost]  # of each row

    def sums(self, values: Iterable[float]) -> list[float]:
        """Of one value for each call, by row."""
        each = np.fromiter(values, np.float64, len(self.calls))[self.order]
        sums: list[float] = np.bincount(self.row[self.order], each, minlength=len(self.keys)).tolist()
        return sums
