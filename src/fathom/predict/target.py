"""What a step is predicted for: ceilings of one device, its memory, and what the host does around each op.

Ceilings are measured (a campaign of `fathom calibrate`), from the catalogue, or given by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Protocol

from fathom.core.errors import BadOption, UnknownName
from fathom.core.spec import EAGER
from fathom.predict.catalogue import PRECISIONS, Device
from fathom.predict.cold_operands import cold_bytes
from fathom.predict.core_speed import CoreSpeed
from fathom.predict.launches import Launches
from fathom.trace.step_work import OpWork, StepWork

CUDAGRAPH = "cudagraph"
ENGINES = (EAGER, CUDAGRAPH)  # whose steps are predicted
LEAST_KERNEL_S = 1e-6  # the shortest kernel takes twice as long on a stream; calls without one some nanoseconds


@dataclass(frozen=True)
class HostCosts:
    """Seconds that the host spends on one op call beside the op itself, by part of the step; and once a step."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    step_s: float = 0.0
    training_s: float = 0.0  # for each update of the weights, beside step_s
    cold_s_per_byte: float = 0.0  # of operands that a call timed alone has in its caches, and a step has not
    launch_s_per_loop: float = 0.0  # for each unit that launching a call takes, in place of seconds for all calls alike
    loop_s: float = 0.0  # that the unit takes on a host with these costs; 0: not known

    def of(self, part: str) -> float:
        return {"forward": self.forward_s, "backward": self.backward_s}.get(part, self.optimizer_s)

    def of_step(self, step: StepWork) -> float:
        """What does not depend on the number of calls."""
        cold_s = self.cold_s_per_byte * cold_bytes(step) if self.cold_s_per_byte else 0.0
        return self.step_s + self.training_s * step.updates * (step.phase == "train") + cold_s

    def scaled(self, factor: float) -> HostCosts:
        return HostCosts(*(factor * each for each in astuple(self)))


@dataclass(frozen=True)
class GraphCosts:
    """How a CUDA graph differs from its op calls timed alone, one after another on a stream."""

    saved_s: float = 0.0  # for each call with kernels: in a graph they follow each other sooner
    step_s: float = 0.0  # once: the batch is copied to where the graph reads it, and the result from where it is left

    def in_graph(self, seconds: float) -> float:
        """A call of so many seconds alone."""
        return max(0.0, seconds - self.saved_s) if has_kernels(seconds) else seconds

    def scaled(self, factor: float) -> GraphCosts:
        return GraphCosts(*(factor * each for each in astuple(self)))


def has_kernels(seconds: float) -> bool:
    """Whether a call that takes so long on a GPU does anything there: a view of a tensor does not."""
    return seconds > LEAST_KERNEL_S


class Measured(Protocol):
    """A device whose ceilings were measured."""

    @property
    def machine(self) -> str: ...
    @property
    def gpu(self) -> bool: ...
    @property
    def flop_per_s(self) -> Mapping[str, float]: ...
    @property
    def bytes_per_s(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Target:
    """One device. On a GPU, host and device work at the same time; on a CPU, one after the other."""

    name: str
    gpu: bool
    flop_per_s: Mapping[str, float]  # by precision: of matrix products
    bytes_per_s: float
    memory_bytes: float | None = None  # None: not known
    host: HostCosts = field(default_factory=HostCosts)
    launches: Launches = field(default_factory=Launches)
    graphs: GraphCosts = field(default_factory=GraphCosts)
    engine: str = EAGER
    speed: CoreSpeed | None = None  # of a CPU's core, at which it was calibrated
    measured: bool = False  # whether the ceilings are measured; else peaks, which nothing reaches
    tdp_w: float | None = None
    listed: str | None = None  # as the catalogue calls it, where its name is another

    @property
    def model(self) -> str:
        """The name that links and measured energy are known by."""
        return self.listed or self.name

    @classmethod
    def of(cls, device: Device) -> Target:
        """From the catalogue: one of the devices that a framework sees, where a board has several."""
        peaks = {name: device.peak_flop_per_s(name) for name in PRECISIONS}
        known = {name: peak / device.parts for name, peak in peaks.items() if peak is not None}
        if not known or device.memory_bytes_per_s is None:
            missing = "memory bandwidth" if known else "peak FLOP/s"
            by_hand = "`fathom predict` takes --peak-tflops and --bandwidth instead of --on"
            hint = "fathom calibrate measures it" if device.kind == "cpu" else by_hand
            raise BadOption(f"the catalogue has no {missing} of {device.name}; {hint}")
        return cls(
            name=device.name,
            gpu=device.kind != "cpu",
            flop_per_s=known,
            bytes_per_s=device.memory_bytes_per_s / device.parts,
            memory_bytes=None if device.memory_bytes is None else device.memory_bytes / device.parts,
            tdp_w=None if device.tdp_w is None else device.tdp_w / device.parts,
        )

    @classmethod
    def measured_as(cls, machine: Measured, host: HostCosts, memory_bytes: float | None = None) -> Target:
        """With the ceilings of a campaign, or of a machine that comes with Fathom."""
        return cls(
            name=machine.machine,
            gpu=machine.gpu,
            flop_per_s=machine.flop_per_s,
            bytes_per_s=machine.bytes_per_s,
            memory_bytes=memory_bytes,
            host=host,
            measured=True,
        )

    def host_s(self, op: OpWork) -> float:
        """What the host does for one call of it."""
        launching_s = self.host.launch_s_per_loop * self.launches.loops(op) if self.host.launch_s_per_loop else 0.0
        return self.host.of(op.part) + launching_s

    def in_step_s(self, seconds: float) -> float:
        """Of a call that takes so long when it is timed alone."""
        return seconds if self.engine == EAGER else self.graphs.in_graph(seconds)

    @property
    def once_s(self) -> float:
        """What the device does once a step beside the calls."""
        return 0.0 if self.engine == EAGER else self.graphs.step_s

    def without_costs(self) -> Target:
        """The ceilings alone, as the roofline has them."""
        return replace(self, host=HostCosts(), graphs=GraphCosts())

    def beside_host(self, loop_s: float | None) -> Target:
        """Beside a host on which the loop takes this time: another one, or the same while its core is slower."""
        if not self.gpu or not loop_s or not self.host.loop_s:
            return self
        return replace(self, host=self.host.scaled(loop_s / self.host.loop_s))

    def is_like(self, loop_s: float | None, slow_host: bool) -> bool:
        """Whether a step is as on this target that was measured beside a loop of this time, on a slow host or not.

        On a GPU what the host does is predicted at any speed of its core. On a CPU all of a step depends on it, and op
        calls not alike: it must be as it was in the calibration.
        """
        if self.gpu:
            return bool(self.host.loop_s) or not slow_host
        return not slow_host if self.speed is None else self.speed.is_usual(loop_s)

    def executed_by(self, engine: str) -> Target:
        """A CUDA graph is launched as one: what the host does for each op call is gone, and what kernels wait for."""
        check_engine(engine)
        if engine == EAGER:
            return self
        if not self.gpu:
            raise BadOption(f"{engine} needs a GPU, and {self.name} is a CPU")
        host = HostCosts(step_s=self.host.step_s, loop_s=self.host.loop_s)
        return replace(self, host=host, engine=engine)

    def peak(self, precision: str) -> float:
        """FLOP/s of products in it. A device without it computes in fp32."""
        rate = self.known_peak(precision)
        if rate is None:
            raise BadOption(f"no {precision} peak of {self.name} is known")
        return rate

    def known_peak(self, precision: str) -> float | None:
        return self.flop_per_s.get(precision, None if precision == "fp64" else self.flop_per_s.get("fp32"))

    def lacks(self, precision: str) -> str | None:
        """Why no step is predicted in it: another precision in its place would not be what was asked for.

        A model of mixed precisions has none: its ops say what they compute in.
        """
        if precision in self.flop_per_s or precision not in PRECISIONS:
            return None
        instead = "; it has fp16" if precision == "bf16" and "fp16" in self.flop_per_s else ""
        return f"no {precision} peak of {self.name} is known{instead}"


def check_engine(name: str) -> None:
    if name not in ENGINES:
        raise UnknownName.among("engine to predict", name, ENGINES)


def precision_of(op: OpWork, step: StepWork) -> str:
    """What an op computes in: the narrowest of its floating-point operands, tf32 where the step's fp32 products do."""
    own = op.precision or "fp32"
    return "tf32" if (own, step.precision) == ("fp32", "tf32") else own


def gigabytes(count: float) -> str:
    """Bytes to three digits, or more where a whole number has more: 4.75 GB, 80 GB, 12,413 GB."""
    size = count / 1e9
    return f"{size:,.0f} GB" if size >= 1000 else f"{size:.3g} GB"
