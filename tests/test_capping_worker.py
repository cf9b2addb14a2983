"""fathom energy below a cap with real workers: ended by a signal, or its worker killed, the limit is restored."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import simulated_nvml as nvml
from killing import alive, described, ended, environment, outlived

from fathom.core.store import Store


class Command:
    """The process, its records, the card that it caps and its journal."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.card = folder, folder / "card"
        marks = environment(XDG_STATE_HOME=str(folder / "state"))
        self.env = {**marks, **nvml.environment(self.card)}
        self.mark = self.env["FATHOM_MARK"] = marks["FATHOM_MARK"]
        self.env["XDG_STATE_HOME"] = marks["XDG_STATE_HOME"]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "capped_command", str(self.folder / "records"), *arguments]
        return subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def limit_w(self) -> float:
        return nvml.loaded(self.card).limit_w

    def is_clean(self) -> None:
        """As it was before, whatever happened."""
        left = outlived(alive(self.mark))
        assert left == [], described(left)
        assert self.limit_w() == 700.0
        assert {value for _, value in map(tuple, nvml.loaded(self.card).sets)} > {700.0}, "it was changed"
        assert list((self.folder / "state").glob("**/*.json")) == []

    def outcomes(self) -> dict[float | None, str]:
        records = Store(self.folder / "records").records()
        return {record.spec.power_cap_w: record.outcome for record in records}


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    found = Command(tmp_path)
    try:
        yield found
    finally:
        ended(found.mark)


def wait_for_steps(process: subprocess.Popen[str], run: int) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line == f"run {run}\n":
            return
    raise AssertionError(f"ended before that: {process.communicate()[1]}")


def worker_of(process: subprocess.Popen[str]) -> psutil.Process:
    (supervisor,) = psutil.Process(process.pid).children()
    (worker,) = supervisor.children()
    return worker


@pytest.mark.slow
def test_sigterm_while_a_worker_runs_below_a_cap(command: Command) -> None:
    process = command.start()
    wait_for_steps(process, 1)
    assert command.limit_w() == 300.0
    process.terminate()
    _, told = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, told
    assert "Traceback" not in told
    command.is_clean()
    assert command.outcomes() == {450.0: "ok"}, "what was complete is kept"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_below_a_cap_before_there_is_a_worker(command: Command, number: signal.Signals) -> None:
    process = command.start(str(int(number)))
    _, told = process.communicate()
    assert process.returncode == 128 + number, told
    assert "Traceback" not in told
    command.is_clean()


@pytest.mark.slow
def test_a_worker_that_is_killed_below_a_cap_is_a_failed_record_and_the_sweep_goes_on(command: Command) -> None:
    process = command.start()
    wait_for_steps(process, 1)
    assert command.limit_w() == 300.0
    worker_of(process).kill()
    _, told = process.communicate()
    assert process.returncode == 1, told
    assert "killed by SIGKILL" in " ".join(told.split())
    command.is_clean()
    assert command.outcomes() == {450.0: "ok", 300.0: "failed", None: "ok"}
