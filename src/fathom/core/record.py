"""Record: what one run left behind. Raw values, units in the names, None for what was not measured."""

from __future__ import annotations

import dataclasses
import statistics
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from fathom.core import summary, tables
from fathom.core.depth import TraceDepth
from fathom.core.disturbance import Disturbance
from fathom.core.energy import Energy
from fathom.core.errors import DataError, FathomError
from fathom.core.feeding import FeedTimes
from fathom.core.fingerprint import Gpu, Machine
from fathom.core.ranks import Ranks
from fathom.core.spec import RunSpec
from fathom.core.traced import Memory, RowKernels, Sources, Timeline
from fathom.core.trial import Trial
from fathom.core.typed import typed
from fathom.core.upgrades import UPGRADES
from fathom.core.validation import check

if TYPE_CHECKING:
    import pandas

SCHEMA = 4
_WRONG = (  # what a document that is no record may raise
    *(TypeError, KeyError, ValueError, AttributeError, ArithmeticError, RecursionError),
    *(msgspec.MsgspecError, FathomError),
)


COMPILED_ANEW = "imports take seconds longer: torch has no compiled Python files (.pyc), so each start compiles it"


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
    """One op in one layer of the network, per step: the mean over the middle half of the profiled steps."""

    op: str  # as torch names it, e.g. aten::addmm
    type: str  # Fathom op type, e.g. MatMul, Conv2DBackFilter (taxonomy.py)
    group: str  # class A-G of the paper's Fig. 3
    layer: str  # module path, "" outside every module
    role: str  # what it is for: "LSTM", "attention", "fully connected", "loss", "optimizer", ...
    phase: str  # forward, backward, optimizer, data or other
    shapes: str  # of the inputs
    calls: float
    cpu_s: float  # on the CPU: of an op with a type children included, of others what they do themselves
    device_s: float | None  # kernels launched by it, sharing what they overlap; None on a CPU run
    flop: float | None  # None: not known
    bytes: float | None  # inputs read once and outputs written once; None: not known
    dtypes: str = ""  # of the inputs in shapes; "" in records that have none
    kernel_s: float | None = None  # durations of its kernels, each in full, for rates; None on a CPU


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One GPU kernel or copy under the op that launched it, per step."""

    name: str
    kind: str  # kernel, memcpy or memset
    op: str  # the op that launched it, as its rows name it; "" where none did
    type: str  # that op's type, or what the kernel's own name says
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
    """How host and GPU kept each other busy, in one step or over a whole program."""

    span_s: float  # of the step or the program; the rest are parts of it
    kernel_s: float  # sums over kernels: two at once count twice
    memcpy_s: float
    memset_s: float
    busy_s: float  # at least one of them running
    starved_s: float  # nothing running, as the next piece had not been launched when the one before ended
    gaps: float  # how often nothing was running
    longest_gap_s: float  # of a step, in the median: the first profiled one waits for the profiler, too
    activities: float  # kernels, copies and memsets; the calls that launched them are in api
    api: list[ApiCall]  # longest first
    tail_s: float | None = (
        None  # nothing running after a step's last piece: the host's wait ends; None in older records
    )
    starved_in: dict[str, float] = field(default_factory=dict)  # what the host did then -> seconds; {}: not known

    @property
    def api_s(self) -> float:
        return sum(call.cpu_s for call in self.api)


@dataclass(frozen=True, kw_only=True)
class LightPass:
    """CPU steps under the profiler at its least cost, without shapes and layer marks: it bounds the time outside ops.

    Every event costs the profiler time. What an event inside an op costs is recorded as that op's time; what others
    cost, as time outside ops.
    """

    step_s: list[float]
    plain_step_s: list[float]  # without the profiler, half of them before and half after: a host's speed wanders
    op_s: float  # per step; the mean over the middle half of the steps, as all that follows
    outside_s: float
    events: float  # recorded in a step: ops, the ops inside them, marks
    events_in_ops: float  # those of them inside another op


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One profiled pass. Rows plus outside_s add up to the profiled step."""

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
    free_step_s: list[float] = field(default_factory=list)  # on a GPU, plain steps that were not waited for one by one
    light: LightPass | None = None  # on a CPU, where the profiler slowed the steps; None where there was no such pass
    depth: TraceDepth | None = None  # communication, idle time, launches, critical path; None in older records
    row_kernels: RowKernels | None = None  # None on a CPU, and in older records, as all that follows
    sources: Sources | None = None  # None where the trace has neither stacks nor waits for a device
    memory: Memory | None = None  # None where allocations were not recorded
    timeline: Timeline | None = None

    @property
    def slowdown(self) -> float | None:
        """What the profiler itself cost: profiled over plain step time, medians."""
        if not self.plain_step_s:
            return None
        return statistics.median(self.step_s) / statistics.median(self.plain_step_s)

    @property
    def unprofiled_s(self) -> float | None:
        """The median step without the profiler, and on a GPU without a wait for it; None where only a trace was read.

        Older records of a GPU have only steps that were waited for."""
        plain = self.free_step_s or self.plain_step_s
        return statistics.median(plain) if plain else None

    @property
    def phase(self) -> str:
        """train if the rows have a backward pass or an optimizer step, else infer."""
        return "train" if any(row.phase in ("backward", "optimizer") for row in self.rows) else "infer"

    @property
    def keeps_gpu_busy(self) -> bool:
        """Whether the GPU was busy in all but a little of a free-running step: a slower host takes no longer for it."""
        if self.gpu is None or not self.free_step_s:
            return False
        return self.gpu.busy_s >= GPU_BUSY * statistics.median(self.free_step_s)

    @cached_property
    def op_s(self) -> float:
        """Of all rows in a step, as profiled."""
        return sum(map(self.seconds, self.rows))

    def seconds(self, row: OpRow) -> float:
        """The time that counts: the device's where there is one, else the CPU's."""
        return row.cpu_s if row.device_s is None else row.device_s

    def rate_seconds(self, row: OpRow) -> float:
        """The time that FLOP/s and bytes/s are of: its kernels in full, whatever else runs at the same time.

        Older records have only the time that concurrent kernels share, in which each seems faster than it is.
        """
        return row.kernel_s or self.seconds(row)


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """Something to look at of a trained network: a table, or an image as PNG in base 64."""

    title: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[Any]] = field(default_factory=list)
    png: str | None = None


@dataclass(frozen=True, kw_only=True)
class Point:
    """Where a training run stood at an evaluation."""

    items: int  # trained on so far
    seconds: float  # since the first step, evaluations included
    loss: float  # the mean since the evaluation before
    quality: float  # on the curve's split
    energy_j: float | None = None  # spent so far; None where it is not metered


@dataclass(frozen=True, kw_only=True)
class EarlierMachine:
    """Another machine, or another GPU, that a training run began on before it was resumed on that of its record."""

    name: str  # of its processor
    host_id: str | None  # as in Machine
    gpu_uuid: str | None
    evaluations: int  # how many of the curve's were made when it was left, those of machines before it included


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What came of training to a target quality, and what it took."""

    metric: str
    unit: str
    target: float | None  # None where no target is known
    better: str  # higher or lower
    protocol: str  # on what data, counted how, evaluated when: for people
    quality: float | None  # the result, on `split`
    reached: bool | None  # by that quality; None without a target
    seconds: float  # of the whole run, as are items and energy
    items: int
    energy_j: float | None
    metered: str | None  # what counted the energy
    curve: list[Point]
    data: str = "synthetic data"  # what it learnt from: a data set's folder, a game, or synthetic data
    split: str = "test"  # the split that quality was evaluated on
    curve_split: str = "test"  # ... and that of the curve: in older records the test split, as the result
    selected: int | None = None  # the evaluation whose weights were tested, from 1 on; None is the last
    departures: list[str] = field(default_factory=list)  # settings that differ from the default training recipe
    recipe: str | None = None  # the id of the recipe's fields; None in records that have none
    data_id: str | None = None  # of its files' names and sizes; None for synthetic data, and in older records
    resumed: int = 0  # how often it was resumed after a kill
    earlier: list[EarlierMachine] = field(
        default_factory=list
    )  # where any is, seconds and energy are of no one machine
    artifacts: list[Artifact] = field(default_factory=list)

    @property
    def to_target(self) -> Point | None:
        """The first evaluation that reached the target: what that took. A recipe may go on from there.

        Where the result reached it and no evaluation on the way did, it is the one whose weights were tested; likewise
        where evaluations are on training data, which do not tell.
        """
        target, sign = self.target, 1 if self.better == "higher" else -1
        if target is None or not self.curve:
            return None
        tested = self.curve[(self.selected or 0) - 1] if self.reached and self.curve_split != "test" else None
        if self.curve_split == "train":
            return tested
        return next((point for point in self.curve if sign * point.quality >= sign * target), tested)


GPU_BUSY = 0.95  # of a step with the GPU busy, from which a slower host does not make it longer
SLOWDOWN = 0.9  # profiled over unprofiled step time: no profiler makes steps faster


def moment() -> str:
    """Now, in a form that sorts."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, kw_only=True)
class Record:
    spec: RunSpec
    machine: Machine
    device: str  # what the spec's device came to
    outcome: Literal["ok", "failed"]
    reason: str | None = None  # why it failed
    gpu_uuid: str | None = None  # which of the machine's GPUs it ran on
    sections: Sections = field(default_factory=Sections)
    warmup_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)  # of inference, the first few
    item: str | None = None  # what one item is in this phase: "image", "transition", ...
    items_per_step: int | None = None
    parameters: int | None = None
    peak_host_bytes: int | None = None
    peak_device_bytes: int | None = None
    profile: Profile | None = None
    learning: Learning | None = None
    energy: Energy | None = None  # over the timed steps; None where nothing is metered
    trial: Trial | None = None  # of an engine: beside eager in the same process
    program: GpuTime | None = None  # of a program run: all of the program after its context stood
    feed: FeedTimes | None = None  # of a feed run; None in all others
    ranks: Ranks | None = None  # of a job of several ranks; its step_s are those of the slowest rank, step by step
    disturbance: Disturbance = field(default_factory=Disturbance)
    notes: list[str] = field(default_factory=list)  # for people: nothing is decided by their words
    started: str = field(default_factory=moment)
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    schema: int = SCHEMA
    origin: str | None = field(default=None, compare=False)  # the folder it was read from; not part of its JSON

    @property
    def gpu(self) -> Gpu | None:
        """The card it ran on; None on a CPU."""
        return self.machine.gpu(self.gpu_uuid, self.device) if self.device.startswith("cuda") else None

    @property
    def disturbances(self) -> list[str]:
        """Why its times are not to be trusted; none for an undisturbed run, or one that nobody looked at.

        What slows the host is none of them where the GPU is busy all the time.
        """
        profile, seen = self.profile, self.disturbance
        found = seen.on_gpu if profile and profile.keeps_gpu_busy else seen.reasons
        slowdown = profile.slowdown if profile else None
        if slowdown is None or slowdown >= SLOWDOWN:
            return found
        return [*found, f"{slowdown:.3g} profiled over unprofiled step time"]

    @property
    def disturbed(self) -> bool:
        return bool(self.disturbances)

    @property
    def machine_label(self) -> str:
        """The processor it ran on: records of several machines stand side by side under these.

        Two machines may have the same one: analysis/labels.py renames their processors where records meet.
        """
        return str(self.gpu.name) if self.gpu is not None else self.machine.cpu.label

    def __str__(self) -> str:
        """A few lines: what ran where, its step time and throughput, its largest op types."""
        return summary.text(self)

    def _repr_html_(self) -> str:
        """The same as a small table, which a notebook shows."""
        return summary.html(self)

    def frame(self) -> pandas.DataFrame:
        """The op rows as a pandas table, values per step: record.frame().groupby("type").seconds.sum()."""
        return tables.table(tables.op_rows(self), tables.OP_COLUMNS)

    def to_json(self) -> dict[str, Any]:
        """Plain data; op rows as a table, as a profile has thousands and their column names need saying once."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        document.pop("origin", None)
        if self.profile:
            columns = [entry.name for entry in dataclasses.fields(OpRow)]
            values = [[getattr(row, name) for name in columns] for row in self.profile.rows]
            document["profile"]["rows"] = {"columns": columns, "values": values}
        return document

    @classmethod
    def from_json(cls, data: Any, origin: str = "record") -> Record:
        """A record read back; anything else is refused with its origin, so that a folder can hold other files."""
        if not isinstance(data, dict) or not {"schema", "spec", "outcome"} <= data.keys():
            raise DataError(f"{origin}: not a Fathom record")
        if type(data["schema"]) is not int or data["schema"] not in (*UPGRADES, SCHEMA):
            found = " ".join(repr(data["schema"]).split())[:40]
            raise DataError(f"{origin}: schema {found}, this Fathom reads schemas 1 to {SCHEMA}")
        try:
            while data["schema"] != SCHEMA:
                data = UPGRADES[data["schema"]](data)
            if unknown := data.keys() - (cls.__dataclass_fields__.keys() - {"origin"}):
                raise TypeError(f"unknown field {min(unknown)}")
            return check(typed(_with_op_rows(data), cls))
        except _WRONG as error:
            raise DataError(f"{origin}: not a Fathom record: {' '.join(str(error).split())[:300]}") from None


def _with_op_rows(data: dict[str, Any]) -> dict[str, Any]:
    """The table of op rows as the list of them."""
    profile = data.get("profile")
    if not profile:
        return data
    columns = profile["rows"]["columns"]
    rows = [dict(zip(columns, values, strict=True)) for values in profile["rows"]["values"]]
    return {**data, "profile": {**profile, "rows": rows}}
