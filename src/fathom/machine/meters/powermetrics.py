"""macOS: powermetrics, which tells the power of CPU and GPU to root, or to whom sudo lets run it without a password."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import ClassVar, Self

from fathom.core.energy import POWER, Reading
from fathom.machine.meter import Meter, Target

PLATFORM = sys.platform
COMMAND = "/usr/bin/powermetrics"
PERIOD_MS = 100
SUDO_S = 5.0  # for sudo to say whether it would ask for a password
LINES = {  # scope -> the line that shows it: milliwatts of Apple's chips, watts of Intel's
    "CPU package 0": re.compile(r"^(?:CPU Power: (\d+) mW|.*package power \(CPUs\+GT\+SA\): ([\d.]+)W)", re.M),
    "GPU 0": re.compile(r"^GPU Power: (\d+) mW()", re.M),
}


class PowerMetrics(Meter):
    """CPU or GPU of the one chip; both read what one command prints."""

    label: ClassVar = "powermetrics"
    kind = POWER

    def __init__(self, scope: str, printed: _Printed) -> None:
        self.scope, self._printed, self._seen = scope, printed, 0

    @classmethod
    def find(cls, target: Target) -> Sequence[Self]:
        command = _permitted()
        if command is None:
            return []
        printed = _Printed([*command, "--samplers", "cpu_power,gpu_power", "-i", str(PERIOD_MS)])
        return [cls(scope, printed) for scope in LINES]

    @classmethod
    def hint(cls, target: Target) -> str | None:
        if PLATFORM != "darwin" or _permitted() is not None:
            return None
        return f"power of CPU and GPU: run as root, or let sudo run {COMMAND} without a password"

    def read(self) -> Reading:
        """Nothing where no new sample was printed since the last look."""
        number, values = self._printed.latest()
        if number == self._seen:
            return Reading()
        self._seen = number
        return Reading(watts=values.get(self.scope))

    def close(self) -> None:
        self._printed.close()


class _Printed:
    """The command, started at the first look; it ends when nobody reads what it prints."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command, self._text, self._number = command, "", 0
        self._values: dict[str, float] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def latest(self) -> tuple[int, dict[str, float]]:
        """How many samples were printed so far, and the watts of the last one by scope."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)
        self._take(self._process)
        return self._number, self._values

    def _take(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        printed = process.stdout.read()
        if printed == b"" and process.poll() is not None:
            raise OSError(f"{COMMAND}: exit code {process.returncode}")
        self._text += (printed or b"").decode(errors="replace")
        *samples, self._text = re.split(r"(?m)^(?=\*\*\* Sampled system activity)", self._text)
        for sample in samples:
            values = {scope: watts for scope, line in LINES.items() if (watts := _watts(line, sample)) is not None}
            if values:
                self._number, self._values = self._number + 1, values

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdout is not None:
            process.stdout.close()  # a command of root's may not be ended by us; it cannot print any more, and ends
            try:
                process.terminate()
            except PermissionError:
                return
            process.wait()


def _watts(line: re.Pattern[str], sample: str) -> float | None:
    found = line.search(sample)
    if found is None:
        return None
    return float(found[1]) / 1e3 if found[1] else float(found[2])


def _permitted() -> list[str] | None:
    """The command for this user; None where it is not there or would ask for a password."""
    if PLATFORM != "darwin" or not os.access(COMMAND, os.X_OK):
        return None
    if os.geteuid() == 0:
        return [COMMAND]
    try:
        asked = subprocess.run(["sudo", "-n", "-l", COMMAND], capture_output=True, timeout=SUDO_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return ["sudo", "-n", COMMAND] if asked.returncode == 0 else None
