"""A calibration campaign: what `fathom calibrate` measured on one device, in one compressed file of plain data."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from scipy.optimize import nnls

from fathom.core.errors import DataError
from fathom.core.files import MB, gunzipped, read_bytes, replace_whole
from fathom.predict.target import HostCosts, Target
from fathom.trace.step_work import BACKWARD, FORWARD, OPTIMIZER, OpWork

SUFFIX = ".calibration.json.gz"
MOST_BYTES = 64 * MB
FORMAT = 1
HOST_BOUND = 0.8  # a step whose kernels take less of it than this is paced by the host
PARTS = (FORWARD, BACKWARD, OPTIMIZER)
ENOUGH = 12  # whole steps, to tell the parts from each other


@dataclass(frozen=True, kw_only=True)
class TimedCall:
    """One op call, timed alone."""

    work: OpWork
    seconds: float
    host_s: float | None = None  # on a GPU, to launch it
    sources: tuple[str, ...] = ()  # the steps it occurs in: "vgg@32 train", "random 17"


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A whole step of a small random network, and the sum of its op calls timed alone: what is left is the host's."""

    name: str
    phase: str
    calls: dict[str, int]  # by part of the step
    ops_s: float
    step_s: float


@dataclass(frozen=True, kw_only=True)
class Campaign:
    machine: str  # its processor's label, as records have it
    device: str
    threads: int | None
    torch: str
    started: str
    flop_per_s: dict[str, float]  # measured ceilings, by precision
    bytes_per_s: float
    memory_bytes: float | None = None
    calls: list[TimedCall] = field(default_factory=list)
    probes: list[Probe] = field(default_factory=list)
    disturbances: list[str] = field(default_factory=list)  # why its times are not to be trusted, in the worst part
    failed: dict[str, str] = field(default_factory=dict)  # calls that this device cannot make, and why
    format: int = FORMAT

    @property
    def timed_alone(self) -> bool:
        """Whether its calls were timed one by one; else they are op rows of whole steps."""
        return bool(self.torch)

    @property
    def gpu(self) -> bool:
        return self.device.startswith("cuda")

    def target(self) -> Target:
        """The device as measured."""
        return Target(
            name=self.machine,
            gpu=self.gpu,
            flop_per_s=self.flop_per_s,
            bytes_per_s=self.bytes_per_s,
            memory_bytes=self.memory_bytes,
            host=fit_host(self.probes, self.gpu),
            measured=True,
        )


def write(path: Path, campaign: Campaign) -> None:
    """Whole or not at all: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_whole(path, gzip.compress(msgspec.json.encode(campaign), mtime=0))


def read(path: Path) -> Campaign:
    try:
        text = gunzipped(path, read_bytes(path, MOST_BYTES), MOST_BYTES)
        found = msgspec.json.decode(text, type=Campaign)
    except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
        raise DataError(f"{path} is no calibration of this version ({error}); make one with fathom calibrate") from None
    if found.format != FORMAT:
        raise DataError(f"{path} has format {found.format}, this version reads {FORMAT}; run fathom calibrate again")
    return found


def source_of(workload: str, batch: int, phase: str) -> str:
    """How a step is named in what was timed of it."""
    return f"{workload}@{batch} {phase}"


def find(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def fit_host(probes: Sequence[Probe], gpu: bool) -> HostCosts:
    """Seconds around each call by part, and once a step. Relative errors are minimised, and nothing is negative.

    On a CPU they are what ops leave of a step. On a GPU they are all of a step that waits for its host.
    """
    chosen = [each for each in probes if not gpu or each.ops_s < HOST_BOUND * each.step_s]
    if len(chosen) < 2:
        return HostCosts()
    steps = np.array([each.step_s for each in chosen])
    left = steps if gpu else np.maximum(0.0, steps - np.array([each.ops_s for each in chosen]))
    counts = np.array([[float(each.calls.get(part, 0)) for part in PARTS] for each in chosen])
    if len(chosen) < ENOUGH:
        counts = counts.sum(axis=1, keepdims=True)
    solved, _ = nnls(np.hstack([counts, np.ones((len(chosen), 1))]) / steps[:, None], left / steps)
    *each_s, step_s = map(float, solved)
    forward_s, backward_s, optimizer_s = each_s if len(each_s) > 1 else each_s * len(PARTS)
    return HostCosts(forward_s, backward_s, optimizer_s, step_s)
