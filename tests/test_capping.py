"""Capping: a sweep on a simulated card changes what it says, verifies it, and restores it whatever happens."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
import simulated_nvml as nvml
from simulated_card import Work

from fathom.core.errors import BadOption, CappingError, DataError, NotPermitted, NotRestored, OutOfRange
from fathom.experiments.capping import Capped, plan, restore_from_journal, sweep
from fathom.experiments.journal import Entry, Journal, default_path
from fathom.machine.governor import Allowed, Governor, find_governors
from fathom.machine.meter import Target

TARGET = Target(gpu_uuids=(nvml.UUID,))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> nvml.Driver:
    return nvml.with_card(monkeypatch)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state" / "capping.json")


def power() -> list[Governor]:
    return find_governors("nvml_power_limit", TARGET)


def capped(driver: nvml.Driver, journal: Journal) -> Capped:
    return Capped(power(), journal, driver.clock)


# --- what would change


def test_a_dry_run_tells_every_change_and_makes_none(driver: nvml.Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    first, second = plan(power(), [300, 900])
    assert str(first) == "GPU 0, NVML power limit: 700 W -> 300 W"
    refusal = "900 W is outside what the driver permits, 200 to 700 W"
    assert (first.refusal, second.refusal) == (None, refusal)
    assert str(second) == f"GPU 0, NVML power limit: 700 W -> 900 W: refused: {refusal}"
    (clock,) = plan(find_governors("nvml_locked_clocks", TARGET), [1001])
    assert (clock.before, clock.to) == ("no limit", "1005 MHz")
    assert "Restoring removes any lock" in clock.caveat
    assert driver.card.state.sets == []


@pytest.mark.usefixtures("driver")
def test_a_dry_run_tells_who_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert plan(power(), [300])[0].refusal == "NVML takes changes from root alone"


def test_a_dry_run_of_a_card_without_limits_tells_so(driver: nvml.Driver) -> None:
    driver.card.state.faults = {"nvmlDeviceGetPowerManagementLimit": nvml.NVML_ERROR_NOT_SUPPORTED}
    (change,) = plan(power(), [300])
    assert (change.before, change.refusal) == ("unknown", "the driver refuses: Not Supported")


# --- a sweep that goes well


def test_a_sweep_runs_under_each_value_and_leaves_everything_as_it_was(driver: nvml.Driver, journal: Journal) -> None:
    state, seen = driver.card.state, []
    state.limit_w = 650.0

    def run(value: float) -> float:
        seen.append((state.limit_w, journal.read()[0].before, journal.read()[0].wanted))
        return value

    assert sweep(power(), [300, 400], run, journal, driver.clock) == [300, 400]
    assert seen == [(300.0, 650.0, 300.0), (400.0, 650.0, 400.0)]
    assert state.sets == [("limit_w", 300.0), ("limit_w", 400.0), ("limit_w", 650.0)]
    assert not journal.path.exists()
    assert [path.name for path in journal.path.parent.iterdir()] == ["capping.lock"]


def test_locked_clocks_are_unlocked_again(driver: nvml.Driver, journal: Journal) -> None:
    driver.card.work = Work(compute_s=1.0)
    with Capped(find_governors("nvml_locked_clocks", TARGET), journal, driver.clock) as sweeping:
        driver.clock.sleep(1.0)
        assert sweeping.apply(1001.0) == [1005.0]
        assert driver.card.state.clock_mhz < 1020.0, "it waits until the clock has come down"
        assert journal.read()[0].before is None
    assert driver.card.state.locked_mhz is None


def test_nothing_is_written_where_nothing_is_applied(driver: nvml.Driver, journal: Journal) -> None:
    with capped(driver, journal):
        assert not journal.path.exists()
    assert driver.card.state.sets == []


def test_a_driver_that_shows_a_setting_a_second_late_is_waited_for(driver: nvml.Driver, journal: Journal) -> None:
    driver.card.state.lag_s = 1.0
    with capped(driver, journal) as sweeping:
        begun = driver.clock.now_s
        sweeping.apply(300)
        assert driver.card.state.limit_w == 300.0
        assert driver.clock.now_s - begun == pytest.approx(1.0, abs=0.06)
    assert driver.card.state.limit_w == 700.0


def test_a_driver_that_keeps_whole_watts_is_believed(driver: nvml.Driver, journal: Journal) -> None:
    driver.card.state.rounds_w = 1.0
    with capped(driver, journal) as sweeping:
        sweeping.apply(300.4)
        assert driver.card.state.limit_w == 300.0
    assert driver.card.state.limit_w == 700.0


# --- what is refused, and what goes wrong


@pytest.mark.parametrize(("lag_s", "rounds_w", "shown"), [(60.0, 0.0, "700 W"), (0.0, 50.0, "350 W")])
def test_a_setting_that_never_shows_is_an_error_and_restored(
    driver: nvml.Driver, journal: Journal, lag_s: float, rounds_w: float, shown: str
) -> None:
    driver.card.state.lag_s, driver.card.state.rounds_w = lag_s, rounds_w
    text = f"GPU 0: the driver shows {shown}, 5 s after it was set to 330 W"
    with pytest.raises(CappingError, match=text), capped(driver, journal) as sweeping:
        sweeping.apply(330)
    driver.clock.sleep(200.0)
    driver.card.advance(driver.clock.now_s)
    assert driver.card.state.limit_w == 700.0
    assert not journal.path.exists()


def test_a_value_out_of_range_is_refused_before_the_journal(driver: nvml.Driver, journal: Journal) -> None:
    with pytest.raises(OutOfRange, match="200 to 700 W"), capped(driver, journal) as sweeping:
        sweeping.apply(150)
    assert driver.card.state.sets == []
    assert not journal.path.exists()


@pytest.mark.parametrize("name", ["nvml_power_limit", "nvml_locked_clocks"])
def test_who_may_not_change_a_setting_is_told_so_and_has_nothing_to_restore(
    driver: nvml.Driver, journal: Journal, name: str
) -> None:
    driver.card.state.faults = dict.fromkeys(nvml.SETTERS, nvml.NVML_ERROR_NO_PERMISSION)
    governors = find_governors(name, TARGET)
    with pytest.raises(NotPermitted), Capped(governors, journal, driver.clock) as sweeping:
        sweeping.apply(600)
    assert not journal.path.exists()


def test_without_a_journal_nothing_is_changed(
    driver: nvml.Driver, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(BadOption, match="No space left on device; nothing was changed"):  # noqa: PT012, SIM117
        with capped(driver, journal) as sweeping:
            monkeypatch.setattr(os, "fsync", full)
            sweeping.apply(300)
    assert driver.card.state.sets == []
    assert [path.name for path in journal.path.parent.iterdir()] == ["capping.lock"]


def test_the_journal_is_on_disk_before_anything_is_changed(
    driver: nvml.Driver, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = os.fsync
    order: list[tuple[str, bool, float]] = []

    def sync(descriptor: int) -> None:
        kind = "folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "file"
        order.append((kind, journal.path.exists(), driver.card.state.limit_w))
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    with capped(driver, journal) as sweeping:
        sweeping.apply(300)
    assert order == [("file", False, 700.0), ("folder", True, 700.0), ("folder", False, 700.0)]


def test_a_timeout_of_the_driver_may_have_changed_the_setting(driver: nvml.Driver, journal: Journal) -> None:
    """So it is restored, other than after a refusal."""
    with pytest.raises(CappingError, match="Timeout"), capped(driver, journal) as sweeping:  # noqa: PT012
        driver.card.state.faults = {nvml.SETTERS[0]: nvml.NVML_ERROR_TIMEOUT}
        try:
            sweeping.apply(300)
        finally:
            driver.card.state.faults, driver.card.state.limit_w = {}, 300.0
    assert driver.card.state.limit_w == 700.0


def test_a_card_that_is_lost_leaves_a_journal_for_when_it_is_back(driver: nvml.Driver, journal: Journal) -> None:
    state = driver.card.state

    def lose(_: float) -> None:
        state.lost_after = state.calls

    lost = r"^not restored: GPU 0: the driver refuses: GPU is lost. Run fathom energy --restore; .*capping.json lists"
    with pytest.raises(NotRestored, match=lost):
        sweep(power(), [300, 400], lose, journal, driver.clock)
    with pytest.raises(NotRestored, match="GPU is lost"):
        restore_from_journal(journal, driver.clock)
    state.lost_after = None
    assert restore_from_journal(journal, driver.clock) == ["GPU 0: NVML power limit restored to 700 W"]
    assert (state.limit_w, journal.path.exists()) == (700.0, False)


class Dial(Governor):
    """A part of which nothing is known but its dial; some refuse."""

    name: ClassVar = "dial"
    unit: ClassVar = "W"
    dials: ClassVar[dict[str, float]] = {}
    broken: ClassVar[set[str]] = set()

    def __init__(self, part: str) -> None:
        self.part = self.scope = part

    @classmethod
    def find(cls, target: Target) -> Sequence[Dial]:
        return [cls(part) for part in cls.dials]

    @classmethod
    def at(cls, part: str) -> Dial:
        return cls(part)

    def current(self) -> float | None:
        return self.dials[self.part]

    def allowed(self) -> Allowed:
        return Allowed(0, 10)

    def apply(self, value: float) -> None:
        if self.part in self.broken:
            raise CappingError(f"{self.part}: stuck")
        self.dials[self.part] = value

    def restore(self, setting: float | None) -> None:
        assert setting is not None
        self.apply(setting)


def test_several_parts_are_changed_together_and_one_that_fails_does_not_keep_the_others(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dial, "dials", {"a": 7.0, "b": 8.0, "c": 9.0})
    monkeypatch.setattr(Dial, "broken", set())
    governors = find_governors(f"{__name__}:Dial", Target())

    def stick(_: float) -> None:
        assert Dial.dials == {"a": 5.0, "b": 5.0, "c": 5.0}
        Dial.broken.add("b")

    with pytest.raises(NotRestored, match="not restored: b: stuck"):
        sweep(governors, [5.0], stick, journal)
    assert Dial.dials == {"a": 7.0, "b": 5.0, "c": 9.0}
    assert [entry.part for entry in journal.read()] == ["b"]
    Dial.broken.clear()
    assert restore_from_journal(journal) == ["b: dial restored to 8 W"]
    assert Dial.dials == {"a": 7.0, "b": 8.0, "c": 9.0}


# --- one sweep at a time


def test_a_sweep_does_not_begin_before_the_last_one_is_restored(driver: nvml.Driver, journal: Journal) -> None:
    journal.path.parent.mkdir()
    driver.card.state.limit_w = 300.0
    journal.write([Entry.of(power()[0], 700.0, 300.0)])
    text = r"has not been restored \(GPU 0: 300 W instead of 700 W\); run fathom energy --restore first"
    with pytest.raises(NotRestored, match=text), capped(driver, journal):
        pass
    assert restore_from_journal(journal, driver.clock) == ["GPU 0: NVML power limit restored to 700 W"]
    assert restore_from_journal(journal, driver.clock) == []
    with capped(driver, journal) as sweeping:
        sweeping.apply(300)


def test_two_sweeps_at_once_are_refused_and_so_is_a_restore_during_one(driver: nvml.Driver, journal: Journal) -> None:
    with capped(driver, journal) as sweeping:
        sweeping.apply(300)
        with pytest.raises(CappingError, match="another power or clock sweep is running"), capped(driver, journal):
            pass
        with pytest.raises(CappingError, match="another power or clock sweep is running"):
            restore_from_journal(journal, driver.clock)
        assert driver.card.state.limit_w == 300.0


@pytest.mark.parametrize("content", [b"", b"[", b"{}", b'[{"part": 3}]'])
def test_a_damaged_journal_stops_a_sweep_and_is_kept(driver: nvml.Driver, journal: Journal, content: bytes) -> None:
    journal.path.parent.mkdir()
    journal.path.write_bytes(content)
    for attempt in (lambda: capped(driver, journal).__enter__(), lambda: restore_from_journal(journal)):
        with pytest.raises(DataError, match="not a journal of settings"):
            attempt()
    assert journal.path.read_bytes() == content


def test_a_journal_of_a_part_that_is_gone_is_kept(driver: nvml.Driver, journal: Journal) -> None:
    journal.path.parent.mkdir()
    gone = Entry(governor="no_such:Thing", part="x", scope="X 0", unit="W", before=1.0, wanted=2.0)
    journal.write([gone, Entry.of(power()[0], 700.0, 300.0)])
    with pytest.raises(NotRestored, match="cannot import no_such"):
        restore_from_journal(journal, driver.clock)
    assert journal.read() == [gone]
    assert driver.card.state.sets == [("limit_w", 700.0)]


def test_who_may_not_restore_has_nothing_to_restore_only_where_the_driver_shows_that(
    driver: nvml.Driver, journal: Journal
) -> None:
    """A crash between journal and change, by a user who may not change: such a lock cannot be read, a limit can."""
    driver.card.state.faults = dict.fromkeys(nvml.SETTERS, nvml.NVML_ERROR_NO_PERMISSION)
    journal.path.parent.mkdir()
    locks = find_governors("nvml_locked_clocks", TARGET)[0]
    journal.write([Entry.of(power()[0], 700.0, 300.0), Entry.of(locks, None, 900.0)])
    with pytest.raises(NotRestored, match="Insufficient Permissions"):
        restore_from_journal(journal, driver.clock)
    assert [entry.before for entry in journal.read()] == [None]
    driver.card.state.limit_w = 300.0
    journal.write([Entry.of(power()[0], 700.0, 300.0)])
    with pytest.raises(NotRestored, match="Insufficient Permissions"):
        restore_from_journal(journal, driver.clock)


def test_the_journal_is_the_users_and_the_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("fathom.experiments.journal.host_id", lambda: "abc")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "fathom" / "capping-abc.json"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/somebody/elses")
    home = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    assert default_path() == home / ".local" / "state" / "fathom" / "capping-abc.json"
