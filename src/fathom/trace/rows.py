"""What a trace came to: op calls and pieces of GPU work, and the rows and kernels of a step that they add up to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fathom.core.record import Kernel, OpRow
from fathom.trace.flops import Call, bytes_moved, flop
from fathom.trace.taxonomy import group_of


@dataclass(slots=True)
class Occurrence:
    """One op call, the outermost one that has a type; or a kernel that no op launched."""

    op: str
    type: str
    layer: str
    role: str
    phase: str
    step: int
    cpu_us: float
    args: Mapping[str, Any]
    device_us: float = 0.0
    kernels: list[tuple[str, float]] = field(default_factory=list)  # with their part of the time, in microseconds
    calls: int = 1  # 0 for what an op's kernels did in a later step than the one that called it
    by_kernel: bool = False  # no op launched it


@dataclass(slots=True)
class Piece:
    """One kernel or copy on the GPU."""

    kind: str
    name: str
    begin: float
    end: float
    correlation: int
    owner: Occurrence | None  # the op that launched it; where none did and it ran in a step, what stands for it
    step: int | None = None  # in which it began


@dataclass
class Breakdown:
    """What a trace says. Times are in microseconds as in the file; rows() gives seconds per step."""

    occurrences: list[Occurrence]
    steps: list[tuple[float, float]]  # begin and end
    gpu: list[Piece]
    data_us: list[float] | None = None  # of each step, under the data marker; None in a trace without it

    @property
    def on_gpu(self) -> bool:
        return bool(self.gpu)

    @property
    def typical(self) -> set[int]:
        """The middle half of the steps by duration: one in which the system did something else is not typical."""
        order = sorted(range(len(self.steps)), key=lambda step: self.steps[step][1] - self.steps[step][0])
        quarter = len(order) // 4
        return set(order[quarter : len(order) - quarter])

    @property
    def phase(self) -> str:
        """What the trace is of: training, if anything was learnt in it."""
        return "train" if any(call.phase in {"backward", "optimizer"} for call in self.occurrences) else "infer"

    @property
    def notes(self) -> list[str]:
        """What a reader of the rows must know."""
        hidden = sum(call.device_us for call in self.occurrences if call.by_kernel)
        if not hidden:
            return []
        percent = 100 * hidden / sum(call.device_us for call in self.occurrences)
        return [
            f"{percent:.3g} % of the kernel time was launched by no op in the trace (CUDA graphs, compiled code): "
            "these rows are kernels, with neither a layer nor FLOP"
        ]

    def rows(self) -> list[OpRow]:
        """Occurrences gathered by op, place and shapes; the mean of the typical steps, so that rows add up."""
        typical = self.typical
        gathered: dict[tuple[str, ...], list[Occurrence]] = defaultdict(list)
        for call in self.occurrences:
            if call.step in typical:
                shapes = _shapes(call.args)
                gathered[call.op, call.type, call.layer, call.role, call.phase, shapes].append(call)
        return [self._row(key, calls, len(typical)) for key, calls in gathered.items()]

    def _row(self, key: tuple[str, ...], calls: list[Occurrence], steps: int) -> OpRow:
        op, kind, layer, role, phase, shapes = key
        args = calls[0].args
        inputs = Call.traced(op.partition(" ")[0], args)
        count = sum(call.calls for call in calls) / steps
        return OpRow(
            op=op,
            type=kind,
            group=group_of(kind),
            layer=layer,
            role=role,
            phase=phase,
            shapes=shapes,
            calls=count,
            cpu_s=sum(call.cpu_us for call in calls) / steps * 1e-6,
            device_s=sum(call.device_us for call in calls) / steps * 1e-6 if self.on_gpu else None,
            flop=flop(inputs) * count,
            bytes=bytes_moved(inputs) * count,
        )

    def kernels(self) -> list[Kernel]:
        """Every kernel and copy under its op, longest first; per step, the mean of the typical steps as in rows.

        A kernel's time is its own duration: two at once count twice here, and share their time in rows.
        """
        typical = self.typical
        totals: dict[tuple[str, str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for piece in self.gpu:
            if piece.step in typical and piece.owner is not None:
                op = "" if piece.owner.by_kernel else piece.owner.op
                total = totals[piece.kind, piece.name, op, piece.owner.type]
                total[0] += 1
                total[1] += piece.end - piece.begin
        count = len(typical)
        found = [
            Kernel(name=name, kind=kind, op=op, type=type_, calls=calls / count, device_s=time / count * 1e-6)
            for (kind, name, op, type_), (calls, time) in totals.items()
        ]
        return sorted(found, key=lambda kernel: -kernel.device_s)

    def per_step_s(self) -> dict[str, list[float]]:
        """Op type -> its time in each step."""
        series: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(self.steps))
        for call in self.occurrences:
            series[call.type][call.step] += (call.device_us if self.on_gpu else call.cpu_us) * 1e-6
        return dict(series)

    def outside_s(self) -> float:
        """Per typical step, the time in no op; on a GPU, the time in which no kernel ran."""
        busy = [0.0] * len(self.steps)
        for call in self.occurrences:
            busy[call.step] += call.device_us if self.on_gpu else call.cpu_us
        return self._typical_s([max(0.0, end - begin - busy[step]) for step, (begin, end) in enumerate(self.steps)])

    def data_s(self) -> float | None:
        """Per typical step, the wall time of preparing data, in ops or not; None where no marker tells."""
        return None if self.data_us is None else self._typical_s(self.data_us)

    def _typical_s(self, each_us: list[float]) -> float:
        typical = self.typical
        return sum(each_us[step] for step in typical) / len(typical) * 1e-6


def _shapes(args: Mapping[str, Any]) -> str:
    return " ".join(str(dims) for dims in args.get("Input Dims", []) if dims)
