"""The contents of a trace: op calls and GPU activities, and their totals per step as op rows and kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from fathom.core.errors import FathomError
from fathom.core.record import Kernel, OpRow
from fathom.core.traced import RowKernels
from fathom.trace.call import DEFAULT_WIDTH, FLOATING, WIDTH, TracedCall
from fathom.trace.event import EMPTY, NO_ARGS, NO_CORRELATION, Event, OpArgs
from fathom.trace.event_columns import EventColumns
from fathom.trace.flops import Cost, cost
from fathom.trace.taxonomy import AUTOGRAD, OTHER, group_of
from fathom.trace.threads import HostThread

ROUNDING = 1e-6  # of a step, by which op times and time outside ops may miss it


class OpCall(msgspec.Struct, gc=False):  # hundreds of thousands: made in a third of a dataclass's time
    """One op call: the outermost one that has an op type, one without with its self time, or kernels of no op."""

    op: str
    type: str
    layer: str
    role: str
    phase: str
    step: int
    cpu_us: float
    args: OpArgs = NO_ARGS
    device_us: float = 0.0  # of its kernels, sharing what they overlap
    kernel_us: float = 0.0  # of its kernels, each in full
    kernels: list[tuple[str, float]] = []  # a new list for each; name and attributed time in microseconds
    calls: int = 1  # 0 for the part of an op's kernels that ran in a later step than the call
    kernel_only: bool = False  # stands for a kernel that no op launched
    is_wrapper: bool = False  # an op without a type that calls others: its time is what it adds to theirs
    inner: tuple[str, OpArgs] | None = None  # the op inside whose arguments tell the cost (INNER)
    event: Event | None = None  # None for a kernel that no op launched


class GpuActivity(msgspec.Struct, gc=False):
    """One kernel, copy or memset on the GPU."""

    kind: str
    name: str
    begin: float
    end: float
    correlation: int = NO_CORRELATION
    op_call: OpCall | None = None  # the op that launched it; if none did and it ran in a step, its kernel_only stand-in
    step: int | None = None  # the step in which it began
    launched: float = float("nan")  # when; NaN where the trace does not have the call
    stream: tuple[object, object] = (0, 0)  # device and stream
    launch: Event | None = None  # the call that launched it; None where the trace does not have it
    args: msgspec.Raw = EMPTY  # as in the file


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
    def phase(self) -> str:
        """train if the trace has a backward pass or an optimizer step, else infer."""
        return "train" if any(call.phase in {"backward", "optimizer"} for call in self.op_calls) else "infer"

    @property
    def notes(self) -> list[str]:
        """Remarks on the rows, for people."""
        without_op = sum(call.device_us for call in self.op_calls if call.kernel_only)
        if not without_op:
            return []
        percent = 100 * without_op / sum(call.device_us for call in self.op_calls)
        return [
            f"{percent:.3g} % of the kernel time was launched by no op in the trace (CUDA graphs, say): "
            "these rows are kernels, without layer and FLOP"
        ]

    def grouped(self) -> RowGroups:
        """The op calls of the typical steps by op, layer, phase, shapes and dtypes: one group a row."""
        typical_steps = self.typical_steps
        costs = _Costs(self.op_calls)
        by_arguments: dict[tuple[str, str, str, str, str, int], list[OpCall]] = defaultdict(list)
        for call in self.op_calls:
            if call.step in typical_steps:
                by_arguments[call.op, call.type, call.layer, call.role, call.phase, id(call.args)].append(call)
        grouped: dict[tuple[str, ...], list[OpCall]] = defaultdict(list)
        for (*what, args), calls in by_arguments.items():
            inputs = costs.inputs[args]
            grouped[*what, inputs.shapes, inputs.dtypes] += calls
        return RowGroups(grouped, costs)

    def rows(self, groups: RowGroups | None = None) -> list[OpRow]:
        """One for each group, given or made here: the mean of the typical steps, so that rows add up."""
        groups = groups or self.grouped()
        steps = len(self.typical_steps)
        return [self._row(key, calls, steps, groups.costs) for key, calls in groups.calls.items()]

    def row_kernels(self, groups: RowGroups) -> RowKernels | None:
        """Which kernels each row launched; None on a CPU."""
        if not self.on_gpu:
            return None
        names: dict[str, int] = {}
        totals: dict[tuple[int, int], tuple[int, float]] = {}
        for row, calls in enumerate(groups.calls.values()):
            times: dict[str, list[float]] = defaultdict(list)
            for call in calls:
                for name, time in call.kernels:
                    times[name].append(time)
            for name, of_name in times.items():
                totals[row, names.setdefault(name, len(names))] = len(of_name), sum(of_name)
        steps = len(self.typical_steps)
        return RowKernels(
            names=list(names),
            rows=[row for row, _ in totals],
            kernels=[kernel for _, kernel in totals],
            calls=[count / steps for count, _ in totals.values()],
            seconds=[time / steps * 1e-6 for _, time in totals.values()],
        )

    def _row(self, key: tuple[str, ...], calls: list[OpCall], steps: int, costs: _Costs) -> OpRow:
        op, kind, layer, role, phase, shapes, dtypes = key
        flop, moved = costs.total(calls)
        return OpRow(
            op=op,
            type=kind,
            group=group_of(kind),
            layer=layer,
            role=role,
            phase=phase,
            shapes=shapes,
            calls=sum(call.calls for call in calls) / steps,
            cpu_s=sum(call.cpu_us for call in calls) / steps * 1e-6,
            device_s=sum(call.device_us for call in calls) / steps * 1e-6 if self.on_gpu else None,
            flop=None if flop is None else flop / steps,
            bytes=None if moved is None else moved / steps,
            dtypes=dtypes,
            kernel_s=sum(call.kernel_us for call in calls) / steps * 1e-6 if self.on_gpu else None,
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

    def per_step_s(self) -> dict[str, list[float]]:
        """Op type -> its time in each step."""
        series: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(self.steps))
        for call in self.op_calls:
            series[call.type][call.step] += (call.device_us if self.on_gpu else call.cpu_us) * 1e-6
        return dict(series)

    def outside_s(self) -> float:
        """Time in no op, per typical step; on a GPU, the time in which no kernel ran."""
        busy = [0.0] * len(self.steps)
        for call in self.op_calls:
            busy[call.step] += call.device_us if self.on_gpu else call.cpu_us
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


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of op calls with equal arguments, as rows show them."""

    shapes: str
    dtypes: str
    widths: frozenset[int]  # bytes per element of the floating-point tensors
    traced: TracedCall  # of no op yet

    @classmethod
    def of(cls, args: OpArgs) -> _Inputs:
        traced = TracedCall.from_args("", args)
        # a number in a tensor without dimensions has the dtype of Python's numbers
        dtypes = {traced.dtype(at) for at, dims in enumerate(traced.dims) if dims} & FLOATING
        return cls(traced.shown_shapes, traced.shown_dtypes, frozenset(WIDTH[dtype] for dtype in dtypes), traced)


class _Costs:
    """What op calls cost, each by its own arguments. Equal arguments are looked at once: a trace repeats its steps."""

    def __init__(self, op_calls: list[OpCall]) -> None:
        distinct = {id(call.args): call.args for call in op_calls}
        self.inputs = {key: _Inputs.of(args) for key, args in distinct.items()}  # by identity: equal ones are kept once
        self._known: dict[tuple[str, int], Cost] = {}
        widths = {width for inputs in self.inputs.values() for width in inputs.widths}
        # tensors in lists have no dtype in a trace: that of the others, unless these have several, as under autocast
        self.list_width = (widths or {DEFAULT_WIDTH}).pop() if len(widths) < 2 else None

    def total(self, calls: list[OpCall]) -> Cost:
        """The sum over the calls of a row; not known where that of one call is not."""
        alike: dict[tuple[str, int, bool], list[OpCall]] = defaultdict(list)
        for call in calls:
            if call.calls:
                op, args = call.inner or (call.op, call.args)
                alike[op, id(args), call.is_wrapper].append(call)
        found = [(len(same), self._of(same[0])) for same in alike.values()]
        flop, moved = [(count, each.flop) for count, each in found], [(count, each.bytes) for count, each in found]
        return Cost(_sum(flop), _sum(moved))

    def _of(self, call: OpCall) -> Cost:
        if call.type == AUTOGRAD or (call.is_wrapper and call.type != OTHER):
            return Cost(0.0, 0.0)  # the ops inside it do the work
        op, args = call.inner or (call.op.partition(" ")[0], call.args)
        key = (op, id(args))
        if key not in self._known:
            traced = self.inputs[id(args)].traced if id(args) in self.inputs else _Inputs.of(args).traced
            self._known[key] = cost(traced.of(op, self.list_width))
        return self._known[key]


@dataclass(frozen=True)
class RowGroups:
    """The op calls of each row, in the order of the rows."""

    calls: dict[tuple[str, ...], list[OpCall]]
    costs: _Costs


def _sum(values: list[tuple[int, float | None]]) -> float | None:
    known = [count * value for count, value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
