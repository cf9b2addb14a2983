"""The sampling process: reads all meters of a run at a fixed period, beside the run and without torch.

A process of its own neither waits for the run's interpreter nor makes it wait. It writes a line of JSON for each
sample to a file, on the clock that all processes of a machine share, and ends with its parent.

    python -m fathom.machine.sampler FILE PERIOD PARENT TARGET

It reads "stop" from its standard input, and writes to its standard output "ready" after the first sample, and why it
ended if not for that.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from fathom.core.energy import PowerTrace, Reading
from fathom.machine.meter import Meter, Target, find_meters

PERIOD_S = 0.05  # NVML renews its counter about every 100 ms: as seldom as that, half of the updates would be missed
LEAST_PERIOD_S = 0.001
START_S = 10.0  # for the first sample; a run does not wait for longer
STOP_S = 5.0  # for the last one
COLUMNS = tuple(entry.name for entry in fields(Reading))


class _Head(msgspec.Struct):
    """The first line of the file: what is read."""

    meters: list[tuple[str, str, str]]  # label, scope and kind


class _Sample(msgspec.Struct):
    """A line of the file."""

    at: float  # time.monotonic()
    readings: list[list[float | None]]  # of each meter, in the order of COLUMNS; [] of one that failed
    cpu_s: float  # what the sampler has taken so far, with the commands that meters run
    late_s: list[float] = []  # of each meter, when it was read, since `at`


@dataclass(frozen=True)
class Samples:
    """What a sampler saw."""

    head: _Head
    samples: list[_Sample]
    period_s: float
    problems: list[str] = field(default_factory=list)  # why there are no more

    def traces(self, begun: float) -> list[PowerTrace]:
        """One for each meter, on a clock that begins at a moment of time.monotonic()."""
        return [self._trace(number, begun) for number in range(len(self.head.meters))]

    def cpu_s(self, begin: float, end: float) -> float | None:
        inside = [sample.cpu_s for sample in self.samples if begin <= sample.at <= end]
        return inside[-1] - inside[0] if len(inside) > 1 else None

    def _trace(self, number: int, begun: float) -> PowerTrace:
        label, scope, kind = self.head.meters[number]
        there = [sample for sample in self.samples if number < len(sample.readings) and sample.readings[number]]
        there = [sample for sample in there if any(value is not None for value in sample.readings[number])]
        columns: dict[str, list[Any]] = {
            name: [sample.readings[number][at] for sample in there] for at, name in enumerate(COLUMNS)
        }
        columns = {name: values for name, values in columns.items() if any(value is not None for value in values)}
        if "joules" in columns:
            first = next(value for value in columns["joules"] if value is not None)
            columns["joules"] = [None if value is None else round(value - first, 6) for value in columns["joules"]]
        if "throttles" in columns:  # bits, which a line of numbers gives back as a float
            columns["throttles"] = [None if value is None else int(value) for value in columns["throttles"]]
        late = [sample.late_s[number] if number < len(sample.late_s) else 0.0 for sample in there]
        seconds = [round(sample.at + after - begun, 6) for sample, after in zip(there, late, strict=True)]
        return PowerTrace(meter=label, scope=scope, kind=kind, seconds=seconds, **columns)


class Sampler:
    """Starts the sampling process, and takes what it saw; without meters it starts nothing.

    Whatever goes wrong with it, the run goes on: what was seen until then, and why there is no more, is in Samples.
    """

    def __init__(self, target: Target, period_s: float = PERIOD_S) -> None:
        self._target, self._period_s = target, max(LEAST_PERIOD_S, period_s)
        self._meters: list[Meter] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._told = b""  # by the process
        self._problems: list[str] = []

    def __enter__(self) -> Self:
        """Comes back after the first sample: what follows is sampled from its beginning."""
        self._meters = find_meters(self._target)
        if not self._meters:
            return self
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="fathom-")
            self._process = self._started()
        except OSError as error:
            self._problems.append(f"energy was not sampled: {error}")
            return self
        if b"\n" not in self._listen(START_S):
            self._problems.append(f"no sample in the first {START_S:g} s")
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()
        if self._folder is not None:
            self._folder.cleanup()

    def stop(self) -> Samples | None:
        """All samples; None where nothing is metered."""
        if not self._meters:
            return None
        self._end()
        told = self._told.decode(errors="replace").splitlines()
        self._problems += [line for line in told if line != "ready"]
        head = _Head([(meter.label, meter.scope, meter.kind) for meter in self._meters])
        return _read(self._file, Samples(head, [], self._period_s, self._problems))

    @property
    def metering(self) -> bool:
        """Whether a process is sampling now."""
        return self._process is not None

    def peek(self) -> Samples | None:
        """What it has seen so far; None where nothing is metered."""
        head = _Head([(meter.label, meter.scope, meter.kind) for meter in self._meters])
        return _read(self._file, Samples(head, [], self._period_s)) if self._meters else None

    @property
    def _file(self) -> Path | None:
        return None if self._folder is None else Path(self._folder.name) / "samples"

    def _started(self) -> subprocess.Popen[bytes]:
        """With the modules that this process finds, and none that happen to lie in the working directory."""
        command = [sys.executable, "-P", "-m", "fathom.machine.sampler", str(self._file), str(self._period_s)]
        return subprocess.Popen(
            [*command, str(os.getpid()), json.dumps(asdict(self._target))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )

    def _listen(self, seconds: float) -> bytes:
        """What the process tells, up to the end of a line or of its life, for so long at most."""
        assert self._process is not None
        assert self._process.stdout is not None
        pipe, until = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._told and select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            told = os.read(pipe, 4096)
            self._told += told
            if not told:
                break
        return self._told

    def _end(self) -> None:
        """Asks by a word: closing the pipe would not do where the run forked a child, which holds it open."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            told, _ = process.communicate(b"stop", timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            told, _ = process.communicate()
            self._problems.append(f"the sampler did not end within {STOP_S:g} s")
        self._told += told
        if process.returncode < 0:
            self._problems.append(f"the sampler was ended by signal {-process.returncode}")
        elif process.returncode:
            self._problems.append(f"the sampler failed with exit code {process.returncode}")


def _read(path: Path | None, nothing: Samples) -> Samples:
    """The lines of a file, up to one that was cut off."""
    try:
        lines = [] if path is None else path.read_bytes().split(b"\n")[:-1]
    except OSError:
        lines = []
    if not lines:
        return nothing
    samples: list[_Sample] = []
    decode = msgspec.json.Decoder(_Sample).decode
    try:
        head = msgspec.json.decode(lines[0], type=_Head)
        samples.extend(decode(line) for line in lines[1:])
    except msgspec.DecodeError:
        return Samples(nothing.head, samples, nothing.period_s, [*nothing.problems, "a sample cannot be read"])
    return Samples(head, samples, nothing.period_s, nothing.problems)


def main(path: str, period: str, parent: str, target: str) -> None:
    """Samples until it is told to stop or its parent is gone, however that came."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which tells when to stop
    _leave_the_runs_cores()
    meters = find_meters(msgspec.json.decode(target, type=Target))
    try:
        with Path(path).open("wb", buffering=0) as file:
            _write(file, _Head([(meter.label, meter.scope, meter.kind) for meter in meters]))
            for number, sample in enumerate(_samples(meters, float(period), int(parent))):
                _write(file, sample)
                if not number:
                    _tell("ready")
    except OSError as error:
        _tell(f"sampling ended: {error.strerror or error}")
    finally:
        for meter in meters:
            meter.close()


def _samples(meters: Sequence[Meter], period_s: float, parent: int) -> Iterator[_Sample]:
    """One in each period, and a last one when it is told to stop."""
    due, stopped = time.monotonic(), False
    while os.getppid() == parent:
        yield _sample(meters)
        if stopped:
            return
        due = max(due + period_s, time.monotonic())  # a sample that came late does not make the next ones hurry
        stopped = bool(select.select([0], [], [], max(0.0, due - time.monotonic()))[0])


def _sample(meters: Sequence[Meter]) -> _Sample:
    begun = time.monotonic()
    readings, late_s = [], []
    for meter in meters:
        asked = time.monotonic()
        readings.append(_reading(meter))
        late_s.append(round((asked + time.monotonic()) / 2 - begun, 6))
    commands = resource.getrusage(resource.RUSAGE_CHILDREN)
    return _Sample(begun, readings, time.process_time() + commands.ru_utime + commands.ru_stime, late_s)


def _reading(meter: Meter) -> list[float | None]:
    """In the order of COLUMNS; nothing where the meter fails, as a card does that was lost."""
    try:
        reading = meter.read()
    except (OSError, ValueError):
        return []
    return [getattr(reading, name) for name in COLUMNS]


def _write(file: IO[bytes], line: msgspec.Struct) -> None:
    """All of it, or an error: a disk that is full may take a part."""
    text = msgspec.json.encode(line) + b"\n"
    if file.write(text) != len(text):
        raise OSError("the disk is full")


def _tell(line: str) -> None:
    try:
        os.write(1, line.encode() + b"\n")
    except OSError:
        return  # the parent is gone


def _leave_the_runs_cores() -> None:
    """Where a run is bound to some cores, sampling takes none of their time; others may not be allowed."""
    if not hasattr(os, "sched_setaffinity"):
        return
    others = set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0)
    try:
        if others:
            os.sched_setaffinity(0, others)
    except OSError:
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
