"""A calibration campaign: what `fathom calibrate` measured on one device, in one compressed file of plain data."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from fathom.core.errors import DataError
from fathom.core.files import MB, gunzipped, read_bytes, replace_whole
from fathom.predict.core_speed import CoreSpeed
from fathom.predict.graph_costs import fit_graphs
from fathom.predict.host_costs import fit_host
from fathom.predict.launches import Launches
from fathom.predict.probe import Probe
from fathom.predict.target import Target
from fathom.trace.step_work import OpWork

SUFFIX = ".calibration.json.gz"
MOST_BYTES = 64 * MB
FORMAT = 2
TWICE = {"aten::baddbmm.out": (0, 5), "aten::addcmul.default": (1, 2), "aten::addcmul_.default": (1, 2)}


@dataclass(frozen=True, kw_only=True)
class TimedCall:
    """One op call, timed alone."""

    work: OpWork
    seconds: float
    host_s: float | None = None  # on a GPU, to launch it
    loop_s: float | None = None  # of a fixed loop beside that: how fast the host's core was
    sources: tuple[str, ...] = ()  # the steps it occurs in: "vgg@32 train", "random 17"

    @property
    def launch_loops(self) -> float | None:
        """What launching it takes, in units of the loop; None on a CPU, and in files of earlier versions."""
        return self.host_s / self.loop_s if self.host_s is not None and self.loop_s else None


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
    def speed(self) -> CoreSpeed | None:
        """Of a CPU's core, as it usually was while calls were timed; None where that is not known."""
        return None if self.gpu else CoreSpeed.usual(each.loop_s for each in self.calls)

    @property
    def share_of_fastest(self) -> float | None:
        """That speed over the fastest that a call was timed at."""
        speed = self.speed
        return None if speed is None else min(each.loop_s for each in self.calls if each.loop_s) / speed.loop_s

    @property
    def at_other_speed(self) -> int:
        """Op calls that were timed while the core was faster or slower than usual."""
        speed = self.speed
        return 0 if speed is None else sum(not speed.is_usual(each.loop_s) for each in self.calls)

    @property
    def gpu(self) -> bool:
        return self.device.startswith("cuda")

    def target(self) -> Target:
        """The device as measured."""
        target = Target.measured_as(self, fit_host(self.probes, self.gpu), self.memory_bytes)
        return replace(target, launches=launches_of(self.calls), graphs=fit_graphs(self.probes), speed=self.speed)


def launches_of(calls: Iterable[TimedCall]) -> Launches:
    return Launches.of((each.work, each.launch_loops) for each in calls if each.launch_loops is not None)


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
    if found.format == 1:
        calls = [replace(each, work=replace(each.work, spec=_marked(each.work.spec))) for each in found.calls]
        found = replace(found, calls=calls, format=FORMAT)
    if found.format != FORMAT:
        raise DataError(f"{path} has format {found.format}, this version reads {FORMAT}; run fathom calibrate again")
    return found


def _marked(spec: str) -> str:
    """As a spec is written today: files of format 1 do not say that two arguments are one tensor.

    In steps of networks they are in these ops; when they were timed, they were two.
    """
    name = spec[2:].partition('"')[0]
    if name not in TWICE:
        return spec
    first, second = TWICE[name]
    entries = json.loads(spec)
    if entries[1 + first] == entries[1 + second]:
        entries[1 + second] = ["S", first]
    return json.dumps(entries, separators=(",", ":"))


def source_of(workload: str, batch: int, phase: str) -> str:
    """How a step is named in what was timed of it."""
    return f"{workload}@{batch} {phase}"


def find(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))
