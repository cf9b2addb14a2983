"""Record: what one run left behind. Raw values, units in the names, None for what was not measured."""

from __future__ import annotations

import dataclasses
import statistics
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from fathom.core.errors import DataError, FathomError
from fathom.core.spec import RunSpec

SCHEMA = 2
SHARED = "other programs were on the GPU: its time was not this run's alone, and the energy is that of all of them"


@dataclass(frozen=True, kw_only=True)
class Sections:
    """Where a program's time went, as the Minsky study cut it; wall_s is seen from outside, by a parent process."""

    import_s: float | None = None  # of torch and the suite; a part of init
    init_s: float | None = None  # imports and construction
    context_s: float | None = None  # waking the GPU: its driver and a context; a part of setup
    setup_s: float | None = None  # data, weights, device
    first_step_s: float | None = None  # the first step alone: allocations, algorithm choice
    run_s: float | None = None  # every step, warm-up included
    main_s: float | None = None
    wall_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class OpRow:
    """One op at one place in the network, per step: the mean over the middle half of the profiled steps."""

    op: str  # as torch names it, e.g. aten::addmm
    type: str  # Fathom op type, e.g. MatMul, Conv2DBackFilter (taxonomy.py)
    group: str  # class A-G of the paper's Fig. 3
    layer: str  # module path, "" outside every module
    role: str  # what it is for: "LSTM", "attention", "fully connected", "loss", "optimizer", ...
    phase: str  # forward, backward, optimizer, data or other
    shapes: str  # of the inputs
    calls: float
    cpu_s: float  # on the CPU, children included
    device_s: float | None  # kernels launched by it, sharing what they overlap; None on a CPU run
    flop: float
    bytes: float  # inputs read once and outputs written once


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One GPU kernel or copy under the op that launched it, per step."""

    name: str
    kind: str  # kernel, memcpy or memset
    op: str  # the op that launched it, as its rows name it; "" where none did
    type: str  # that op's type, or what the kernel's own name tells
    calls: float
    device_s: float  # its duration: two at once count twice, and share the time in rows


@dataclass(frozen=True, kw_only=True)
class ApiCall:
    """One function of the GPU's programming interface."""

    name: str  # e.g. cudaLaunchKernel
    calls: float
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class GpuTime:
    """How host and GPU kept each other busy, in one step or over the life of a program."""

    span_s: float  # of the step or the life; the rest are parts of it
    kernel_s: float  # sums over kernels: two at once count twice
    memcpy_s: float
    memset_s: float
    busy_s: float  # at least one of them running
    starved_s: float  # nothing running, as the next piece had not been launched when the one before ended
    gaps: float  # how often nothing was running
    longest_gap_s: float  # of a step, in the median: the first profiled one waits for the profiler, too
    launches: float
    api: list[ApiCall]  # longest first

    @property
    def api_s(self) -> float:
        return sum(call.cpu_s for call in self.api)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GpuTime:
        return cls(**{**data, "api": [ApiCall(**call) for call in data["api"]]})


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One profiled pass. Rows plus outside_s add up to the step."""

    rows: list[OpRow]
    kernels: list[Kernel]
    step_s: list[float]  # of the profiled steps, profiler running
    plain_step_s: list[float]  # the same steps without it, in the same process; none where only a trace was read
    outside_s: float  # per step, in no op (on a GPU: no kernel running)
    per_step_s: dict[str, list[float]]  # op type -> its time in each profiled step
    gpu: GpuTime | None = None  # a step, on average; None on a CPU
    ceiling_flop_per_s: float | None = None  # a measured matrix product on this device, in the run's precision
    ceiling_bytes_per_s: float | None = None  # a measured copy
    notes: list[str] = field(default_factory=list)
    data_s: float | None = None  # per step, wall time of preparing data, in ops or not; None where it was not marked

    @property
    def slowdown(self) -> float | None:
        """What the profiler itself cost: profiled over plain step time, medians."""
        if not self.plain_step_s:
            return None
        return statistics.median(self.step_s) / statistics.median(self.plain_step_s)

    def seconds(self, row: OpRow) -> float:
        """The time that counts: the device's where there is one, else the CPU's."""
        return row.cpu_s if row.device_s is None else row.device_s

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Profile:
        columns = data["rows"]["columns"]
        rows = [OpRow(**dict(zip(columns, values, strict=True))) for values in data["rows"]["values"]]
        kernels = [Kernel(**kernel) for kernel in data["kernels"]]
        gpu = GpuTime.from_json(data["gpu"]) if data.get("gpu") else None
        return cls(**{**data, "rows": rows, "kernels": kernels, "gpu": gpu})

    def to_json(self) -> dict[str, Any]:
        """Rows as a table: a profile has thousands, and their column names need saying once."""
        columns = [entry.name for entry in dataclasses.fields(OpRow)]
        values = [[getattr(row, name) for name in columns] for row in self.rows]
        plain = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        kernels = [dataclasses.asdict(kernel) for kernel in self.kernels]
        gpu = dataclasses.asdict(self.gpu) if self.gpu else None
        return {**plain, "rows": {"columns": columns, "values": values}, "kernels": kernels, "gpu": gpu}


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """Something to look at of a network that has learnt: a table, or a picture as PNG in base 64."""

    title: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    png: str | None = None


@dataclass(frozen=True, kw_only=True)
class Point:
    """Where a run of learning stood after a round."""

    items: int  # trained on so far
    seconds: float  # since the first step, looks at held-out data included
    loss: float  # the round's mean
    quality: float
    energy_j: float | None = None  # spent so far; None where nobody counts


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What came of training to a target, and what it took."""

    metric: str
    unit: str
    target: float | None  # None where nobody has said what would be good
    better: str  # higher or lower
    protocol: str
    quality: float | None  # after the last round
    reached: bool | None  # by that quality; None without a target
    seconds: float  # of all rounds, as are items and energy
    items: int
    energy_j: float | None
    metered: str | None  # what counted the energy
    curve: list[Point]
    resumed: int = 0  # how often it went on after a kill
    artifacts: list[Artifact] = field(default_factory=list)

    @property
    def to_target(self) -> Point | None:
        """Where it stood when it first reached the target: what that took. A protocol may have it go on from there."""
        target, sign = self.target, 1 if self.better == "higher" else -1
        if target is None:
            return None
        return next((point for point in self.curve if sign * point.quality >= sign * target), None)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Learning:
        curve = [Point(**point) for point in data["curve"]]
        kept = {key: value for key, value in data.items() if key != "exhibits"}
        shown = data.get("artifacts", data.get("exhibits", []))
        return cls(**{**kept, "curve": curve, "artifacts": [Artifact(**each) for each in shown]})


def moment() -> str:
    """Now, in a form that sorts."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, kw_only=True)
class Record:
    spec: RunSpec
    machine: Mapping[str, Any]
    device: str  # what the spec's device came to
    outcome: str  # "ok" or "failed"
    reason: str | None = None  # why it failed
    sections: Sections = field(default_factory=Sections)
    warmup_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)  # of inference, the first few
    items_per_step: int | None = None
    parameters: int | None = None
    peak_host_bytes: int | None = None
    peak_device_bytes: int | None = None
    profile: Profile | None = None
    learning: Learning | None = None
    life: GpuTime | None = None  # of a life run: all of the program after its context stood
    notes: list[str] = field(default_factory=list)
    started: str = field(default_factory=moment)
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    schema: int = SCHEMA

    @property
    def place(self) -> str:
        """What it ran on, in words: records of several machines stand side by side under these."""
        if self.device.startswith("cuda") and self.machine.get("gpus"):
            return str(self.machine["gpus"][0]["name"])
        cpu = self.machine["cpu"]
        cores = len(cpu["affinity"] or []) or cpu["logical_cores"]
        return f"{cpu['name']}, {cores} core{'' if cores == 1 else 's'}"

    def to_json(self) -> dict[str, Any]:
        plain = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return {
            **plain,
            "spec": self.spec.to_json(),
            "sections": dataclasses.asdict(self.sections),
            "profile": self.profile.to_json() if self.profile else None,
            "learning": dataclasses.asdict(self.learning) if self.learning else None,
            "life": dataclasses.asdict(self.life) if self.life else None,
        }

    @classmethod
    def from_json(cls, data: Any, origin: str = "record") -> Record:
        """A record read back; anything else is refused with its origin, so that a folder can hold unreadable."""
        if not isinstance(data, dict) or not {"schema", "spec", "outcome"} <= data.keys():
            raise DataError(f"{origin}: not a Fathom record")
        if data["schema"] not in (1, SCHEMA):
            raise DataError(f"{origin}: schema {data['schema']}, this Fathom reads schemas 1 to {SCHEMA}")
        try:
            if data["schema"] == 1:
                data = _from_schema_1(data)
            parts = {
                "spec": RunSpec.from_json(data["spec"]),
                "sections": Sections(**data.get("sections", {})),
                "profile": Profile.from_json(data["profile"]) if data.get("profile") else None,
                "learning": Learning.from_json(data["learning"]) if data.get("learning") else None,
                "life": GpuTime.from_json(data["life"]) if data.get("life") else None,
            }
            record = cls(**{**data, **parts})
            _check(record)
            return record
        except (TypeError, KeyError, ValueError, AttributeError, msgspec.MsgspecError, FathomError) as error:
            raise DataError(f"{origin}: not a Fathom record: {error}") from None


def _check(record: Record) -> None:
    """A problem's file may have the right names with the wrong things: better told here than met in a report."""
    msgspec.convert(msgspec.to_builtins(record), Record)
    if not record.place:  # raises by itself where the machine is none
        raise TypeError("machine has no name")


def _from_schema_1(data: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 did not know which op had launched a kernel; all else that is new may be absent."""
    profile = data.get("profile")
    if profile:
        profile = {**profile, "kernels": [{"op": "", "type": "", **kernel} for kernel in profile["kernels"]]}
    return {**data, "schema": SCHEMA, "profile": profile}
