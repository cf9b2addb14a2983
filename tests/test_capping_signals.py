"""A sweep that signals end, or whose workers are killed or hang: all is restored, and nothing is left running."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
import simulated_nvml as nvml
from crashing import governors as power
from killing import alive, ended, environment

from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.experiments.capping import sweep
from fathom.experiments.isolate import isolated
from fathom.experiments.journal import Journal


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> nvml.Driver:
    return nvml.with_card(monkeypatch)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state" / "capping.json")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("times", [1, 3])
def test_a_signal_ends_the_sweep_and_everything_is_restored(
    driver: nvml.Driver, journal: Journal, number: signal.Signals, times: int
) -> None:
    before = signal.getsignal(number)
    expected = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    ran: list[object] = []

    def run(value: float) -> None:
        ran.append(value)
        try:
            signal.raise_signal(number)
        finally:
            for _ in range(times - 1):
                signal.raise_signal(number)  # a second Ctrl-C does not interrupt the way out
            ran.append("cleaned up")

    with pytest.raises(expected) as raised:
        sweep(power(), [300, 400], run, journal, driver.clock)
    assert ran == [300, "cleaned up"]
    assert getattr(raised.value, "code", 128 + number) == 128 + number
    assert (driver.card.state.limit_w, journal.path.exists()) == (700.0, False)
    assert signal.getsignal(number) == before


def test_a_signal_within_a_change_waits_until_it_is_complete(
    driver: nvml.Driver, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, seen = nvml.nvmlDeviceSetPowerManagementLimit, []

    def interrupted(handle: str, milliwatts: int) -> None:
        signal.raise_signal(signal.SIGINT)
        change(handle, milliwatts)
        seen.append(milliwatts)

    monkeypatch.setattr(nvml, "nvmlDeviceSetPowerManagementLimit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep(power(), [300], lambda value: seen.append(round(value)), journal, driver.clock)
    assert seen == [300_000, 700_000], "changed and restored, and nothing run in between"
    assert driver.card.state.limit_w == 700.0


def test_a_handler_that_raises_nothing_is_called_each_time(driver: nvml.Driver, journal: Journal) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        sweep(power(), [300, 400], lambda value: signal.raise_signal(signal.SIGTERM), journal, driver.clock)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM] * 2


def test_an_ignored_signal_stays_ignored(driver: nvml.Driver, journal: Journal) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        sweep(power(), [300], lambda value: signal.raise_signal(signal.SIGHUP), journal, driver.clock)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_sweep_in_another_thread_installs_no_handlers(driver: nvml.Driver, journal: Journal) -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def run(value: float) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=sweep, args=(power(), [300], run, journal, driver.clock))
    thread.start()
    thread.join()
    assert (seen, driver.card.state.limit_w) == ([before], 700.0)


@pytest.mark.parametrize(("misdeed", "reason"), [("is_killed", "SIGKILL"), ("hangs", "heartbeat timeout")])
def test_a_worker_that_is_killed_or_hangs_is_a_failed_record_and_the_sweep_goes_on(
    driver: nvml.Driver, journal: Journal, monkeypatch: pytest.MonkeyPatch, misdeed: str, reason: str
) -> None:
    env = environment(FATHOM_QUICK="0")
    for name in ("PYTHONPATH", "FATHOM_MARK", "FATHOM_TESTS", "FATHOM_QUICK"):
        monkeypatch.setenv(name, env[name])
    bad = RunSpec(workload="quick", device="cpu", steps=3, options={"misdeed": misdeed})
    good = RunSpec(workload="quick", device="cpu", steps=3)

    def run(value: float) -> Record:
        patience_s = 2.0 if misdeed == "hangs" else 60.0
        return isolated(bad, heartbeat_timeout_s=patience_s) if value == 300 else isolated(good)

    try:
        records = sweep(power(), [300, 400], run, journal)
        assert [record.outcome for record in records] == ["failed", "ok"]
        assert reason in str(records[0].reason)
        assert driver.card.state.limit_w == 700.0
        assert alive(env["FATHOM_MARK"]) == []
    finally:
        ended(env["FATHOM_MARK"])
