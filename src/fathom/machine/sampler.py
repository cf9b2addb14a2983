"""The sampling process: reads all meters of a run at a fixed period, beside the run and without torch.

A process of its own neither waits for the run's interpreter nor makes it wait. It writes a line of JSON for each
sample to a file, on the clock that all processes of a machine share, and ends with its parent.

    python -m fathom.machine.sampler FILE PERIOD TARGET
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import msgspec

from fathom.core.energy import PowerTrace, Reading
from fathom.machine.meter import Meter, Target, find_meters

PERIOD_S = 0.1  # as NVML's counter is renewed
START_S = 10.0  # for the sampler to write its first line
STOP_S = 5.0  # for the sampler to write its last line
COLUMNS = tuple(entry.name for entry in fields(Reading))


class _Head(msgspec.Struct):
    """The first line of the file: what is read."""

    meters: list[tuple[str, str, str]]  # label, scope and kind


class _Sample(msgspec.Struct):
    """A line of the file."""

    at: float  # time.monotonic()
    readings: list[list[float | None]]  # of each meter, in the order of COLUMNS
    cpu_s: float  # what the sampler has taken so far


@dataclass(frozen=True)
class Samples:
    """What a sampler saw."""

    head: _Head
    samples: list[_Sample]
    period_s: float

    def traces(self, begun: float) -> list[PowerTrace]:
        """One for each meter, on a clock that begins at a moment of time.monotonic()."""
        return [self._trace(number, begun) for number in range(len(self.head.meters))]

    def cpu_s(self, begin: float, end: float) -> float | None:
        inside = [sample.cpu_s for sample in self.samples if begin <= sample.at <= end]
        return inside[-1] - inside[0] if len(inside) > 1 else None

    def _trace(self, number: int, begun: float) -> PowerTrace:
        label, scope, kind = self.head.meters[number]
        there = [sample for sample in self.samples if number < len(sample.readings) and sample.readings[number]]
        columns: dict[str, list[Any]] = {
            name: [sample.readings[number][at] for sample in there] for at, name in enumerate(COLUMNS)
        }
        columns = {name: values for name, values in columns.items() if any(value is not None for value in values)}
        if "joules" in columns:
            first = next(value for value in columns["joules"] if value is not None)
            columns["joules"] = [None if value is None else value - first for value in columns["joules"]]
        seconds = [round(sample.at - begun, 6) for sample in there]
        return PowerTrace(meter=label, scope=scope, kind=kind, seconds=seconds, **columns)


class Sampler:
    """Starts the sampling process, and takes what it saw; without meters it starts nothing."""

    def __init__(self, target: Target, period_s: float = PERIOD_S) -> None:
        self._target, self._period_s = target, period_s
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        if find_meters(self._target):
            self._folder = tempfile.TemporaryDirectory()
            command = [sys.executable, "-m", "fathom.machine.sampler", str(self._file), str(self._period_s)]
            self._process = subprocess.Popen(
                [*command, json.dumps(asdict(self._target))], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
            )
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def _file(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "samples"

    def stop(self) -> Samples | None:
        """All samples; None where nothing is metered."""
        if self._process is None:
            return None
        self._end()
        return _read(self._file, self._period_s)

    @property
    def metering(self) -> bool:
        return self._process is not None

    def peek(self) -> Samples | None:
        """What it has seen so far; None where nothing is metered, or not yet."""
        return _read(self._file, self._period_s) if self._folder is not None else None

    def wait_for_sample(self) -> None:
        """Until the first one is there: the process takes a moment to start."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and not ((seen := self.peek()) and seen.samples):
            time.sleep(self._period_s / 2)

    def _end(self) -> None:
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()  # the sign to end
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _read(path: Path, period_s: float) -> Samples | None:
    """The lines of a file; a last one that was cut off does not count."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return None
    if not lines:
        return None
    decode = msgspec.json.Decoder(_Sample).decode
    return Samples(msgspec.json.decode(lines[0], type=_Head), [decode(line) for line in lines[1:]], period_s)


def main(path: str, period: str, target: str) -> None:
    """Samples until standard input closes, which it does when the parent ends, however that comes."""
    meters, period_s = find_meters(msgspec.json.decode(target, type=Target)), float(period)
    encode = msgspec.json.encode
    os.set_blocking(0, False)
    with Path(path).open("wb", buffering=0) as file:
        file.write(encode(_Head([(meter.label, meter.scope, meter.kind) for meter in meters])) + b"\n")
        due = time.monotonic()
        while not _closed():
            now = time.monotonic()
            file.write(encode(_Sample(now, _readings(meters), time.process_time())) + b"\n")
            due = max(due + period_s, now)  # a sample that came late does not make the next ones hurry
            time.sleep(max(0.0, due - time.monotonic()))


def _closed() -> bool:
    try:
        return os.read(0, 1) == b""
    except BlockingIOError:
        return False


def _readings(meters: Sequence[Meter]) -> list[list[float | None]]:
    return [_reading(meter) for meter in meters]


def _reading(meter: Meter) -> list[float | None]:
    """In the order of COLUMNS; nothing where the meter fails, as a card does that was lost."""
    try:
        reading = meter.read()
    except (OSError, ValueError):
        return []
    return [getattr(reading, name) for name in COLUMNS]


if __name__ == "__main__":
    main(*sys.argv[1:])
