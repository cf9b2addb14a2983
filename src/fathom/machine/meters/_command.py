"""A command that is slow to answer, run again and again beside the sampling, which does not wait for it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence


class Repeated:
    """Started at most once in a period, and ended where it takes too long."""

    def __init__(self, command: Sequence[str], period_s: float, timeout_s: float) -> None:
        self._command, self._period_s, self._timeout_s = command, period_s, timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._begun = -float("inf")

    def answer(self) -> str | None:
        """What it printed since the last question; None while it works or rests. Raises OSError where it fails."""
        now = time.monotonic()
        if self._process is None:
            if now - self._begun >= self._period_s:
                self._begun = now
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            return None
        if self._process.poll() is None:
            if now - self._begun > self._timeout_s:
                self.close()
                raise TimeoutError(f"{self._command[0]}: no answer for {self._timeout_s:g} s")
            return None
        process, self._process = self._process, None
        printed, _ = process.communicate()
        if process.returncode:
            raise OSError(f"{self._command[0]}: exit code {process.returncode}")
        return printed

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
