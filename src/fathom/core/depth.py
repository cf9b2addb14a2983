"""What a trace tells beyond its op rows: communication, idle time, launches, copies and the critical path.

Times are sums over the whole trace unless a name says per step; a default means that it is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class GpuSplit:
    """What the GPU did in a stretch of time: span_s = computation_s + both exposed times + idle_s."""

    span_s: float
    computation_s: float  # at least one kernel running that is no communication
    communication_s: float  # at least one communication kernel running
    exposed_communication_s: float  # of it, no computation running
    memory_s: float  # at least one copy or memset running
    exposed_memory_s: float  # of it, no kernel running
    idle_s: float

    @property
    def busy_s(self) -> float:
        return self.computation_s + self.exposed_communication_s + self.exposed_memory_s

    @property
    def overlap(self) -> float | None:
        """The share of communication time in which computation ran, too; None without communication."""
        if self.communication_s <= 0:
            return None
        return 1 - self.exposed_communication_s / self.communication_s


@dataclass(frozen=True, kw_only=True)
class KernelKind:
    """All GPU activities of one kind; durations are added up: two at once count twice."""

    kind: str  # computation, communication or memory
    count: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Collective:
    """The calls of one collective in one process group, in the order in which their kernels ran."""

    name: str  # all_reduce, all_gather, ...; "communication" where the trace does not tell
    group: str  # the process group's name; "" where the trace does not tell
    ranks: str  # its members, as the trace lists them; "" where it does not
    size: int | None  # how many these are
    seconds: list[float]  # each kernel's duration, which includes the wait for other ranks
    steps: list[int | None]  # in which each was launched; None: between steps
    bytes: list[int | None]  # of each message, as nccl-tests counts it; None: not known

    @property
    def known(self) -> tuple[int, float]:
        """Bytes and seconds of the calls whose size is known."""
        sized = [(size, time) for size, time in zip(self.bytes, self.seconds, strict=True) if size is not None]
        return sum(size for size, _ in sized), sum(time for _, time in sized)

    @property
    def algorithm_bytes_per_s(self) -> float | None:
        """Message size over time; None where no size is known."""
        size, time = self.known
        return size / time if size and time > 0 else None

    @property
    def bus_bytes_per_s(self) -> float | None:
        """What nccl-tests calls bus bandwidth: comparable with a link's speed, whatever the number of ranks."""
        rate = self.algorithm_bytes_per_s
        if rate is None or not self.size:
            return None
        others = (self.size - 1) / self.size
        factors = {"all_reduce": 2 * others, "all_gather": others, "reduce_scatter": others, "all_to_all": others}
        return rate * factors.get(self.name, 1.0)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One stream from its first activity to its last: why it was idle in between, and how much was queued on it."""

    device: str
    stream: str
    activities: int
    busy_s: float
    host_wait_s: float  # idle, as the next activity was launched only after the one before had ended
    kernel_wait_s: float  # idle although launched, for less than 30 us: the delay between two kernels
    other_s: float  # idle although launched, for longer: waiting for another stream, say
    queue_mean: float | None = None  # activities launched but not begun, mean over time; None: launches not known
    queue_max: int | None = None
    queue_per_step: list[float] = field(default_factory=list)  # the mean of each step


@dataclass(frozen=True, kw_only=True)
class Launches:
    """Activities whose launch is in the trace. Delays are medians, 95th percentiles and maxima."""

    count: int
    delay_median_s: float  # from the beginning of the launch call to that of the activity
    delay_p95_s: float
    delay_max_s: float
    after_call_mean_s: float  # from the end of the launch call, at least 0: HolisticTraceAnalysis's launch delay
    shorter_than_call: int  # activities shorter than the call that launched them
    shorter_than_call_s: float
    short: int  # kernels below 10 us, launch known or not
    short_s: float
    kernels: int  # all kernels
    kernels_s: float


@dataclass(frozen=True, kw_only=True)
class Copies:
    """Copies in one direction, or memsets."""

    direction: str  # HtoD, DtoH, DtoD, PtoP, memset, ...
    count: int
    seconds: float
    bytes: int | None = None  # of those whose size the trace has; None: of none
    sized_s: float = 0.0  # the time of these

    @property
    def bytes_per_s(self) -> float | None:
        return self.bytes / self.sized_s if self.bytes is not None and self.sized_s > 0 else None


@dataclass(frozen=True, kw_only=True)
class PathPart:
    """What has a part of the critical path, per step: the mean over the steps that rows have."""

    kind: str  # host, computation, communication, memory or wait
    name: str  # the op on the host, the op type of a kernel, or what was waited for
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """The chain of work that the end of the trace waited for, cut into steps; its parts add up to the step."""

    parts: list[PathPart]  # longest first
    per_step_s: dict[str, list[float]]  # kind -> its time in each step

    def kind_s(self, kind: str) -> float:
        """Per step, as the parts."""
        return sum(part.seconds for part in self.parts if part.kind == kind)


@dataclass(frozen=True, kw_only=True)
class TraceDepth:
    """All of it, of one trace and thus one rank."""

    rank: int | None = None
    world_size: int | None = None
    whole: GpuSplit | None = None  # from the first GPU activity to the end of the last; None on a CPU
    steps: list[GpuSplit] = field(default_factory=list)
    kinds: list[KernelKind] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    launches: Launches | None = None  # None: the trace has no launches
    copies: list[Copies] = field(default_factory=list)
    path: CriticalPath | None = None
