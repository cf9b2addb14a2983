"""Governors: what each mechanism sets, permits and refuses, on a simulated card and on folders made up as sysfs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import simulated_nvml as nvml
from simulated_card import Card, Model, State, Work

from fathom.core import plugins
from fathom.core.errors import CappingError, NotPermitted, NotSupported, OutOfRange
from fathom.machine.governor import Allowed, Governor, find_governors
from fathom.machine.governors import cpufreq, rapl_limit
from fathom.machine.meter import Target

TARGET = Target(gpu_uuids=(nvml.UUID,))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> nvml.Driver:
    return nvml.with_card(monkeypatch)


def power() -> Governor:
    return find_governors("nvml_power_limit", TARGET)[0]


def clocks() -> Governor:
    return find_governors("nvml_locked_clocks", TARGET)[0]


def test_there_are_four_governors() -> None:
    assert plugins.names("governors") == ["cpufreq", "nvml_locked_clocks", "nvml_power_limit", "rapl_limit"]


def test_a_power_limit_is_set_and_put_back_in_watts(driver: nvml.Driver) -> None:
    governor = power()
    assert (governor.scope, governor.part, governor.unit) == ("GPU 0", nvml.UUID, "W")
    assert (governor.current(), governor.allowed()) == (700.0, Allowed(200.0, 700.0))
    governor.apply(450.5)
    assert (driver.card.state.limit_w, governor.current()) == (450.5, 450.5)
    assert governor.holds(450.0, tolerance=1.0)
    assert not governor.holds(450.0)
    governor.restore(700.0)
    assert driver.card.state.limit_w == 700.0


def test_clocks_are_locked_from_above_alone_and_to_a_step_of_the_driver(driver: nvml.Driver) -> None:
    governor = clocks()
    assert governor.current() is None
    assert governor.allowed().steps == tuple(driver.card.model.clocks)
    assert governor.permitted(1001.0) == 1005.0
    governor.apply(1005.0)
    assert driver.card.state.locked_mhz == 1005.0
    driver.card.work = Work(compute_s=1.0)
    driver.clock.sleep(1.0)
    assert governor.holds(1005.0, governor.tolerance)
    governor.restore(None)
    driver.clock.sleep(1.0)
    assert driver.card.state.locked_mhz is None
    assert not governor.holds(1005.0, governor.tolerance), "without the lock the clock is above it"
    assert "also one that was set before" in governor.caveat


@pytest.mark.parametrize("value", [199.0, 701.0, float("nan"), float("inf"), -1.0])
def test_a_value_out_of_range_is_refused_with_the_range(driver: nvml.Driver, value: float) -> None:
    with pytest.raises(OutOfRange, match=r"GPU 0: .* W is outside what the driver permits, 200 to 700 W"):
        power().permitted(value)
    assert driver.card.state.sets == []


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        (
            nvml.NVML_ERROR_NO_PERMISSION,
            NotPermitted,
            r"Insufficient Permissions \(NVML takes changes from root alone\)",
        ),
        (nvml.NVML_ERROR_NOT_SUPPORTED, NotSupported, "Not Supported"),
        (nvml.NVML_ERROR_FUNCTION_NOT_FOUND, NotSupported, "Function Not Found"),
        (nvml.NVML_ERROR_INVALID_ARGUMENT, OutOfRange, "Invalid Argument"),
        (nvml.NVML_ERROR_GPU_IS_LOST, CappingError, "GPU is lost"),
        (nvml.NVML_ERROR_TIMEOUT, CappingError, "Timeout"),
    ],
)
@pytest.mark.parametrize("governor", [power, clocks])
def test_what_the_driver_refuses_is_an_error_of_its_kind(
    driver: nvml.Driver, governor: Callable[[], Governor], code: int, kind: type[CappingError], text: str
) -> None:
    found = governor()
    driver.card.state.faults = dict.fromkeys(nvml.SETTERS, code)
    before = driver.card.state.limit_w, driver.card.state.locked_mhz
    for change in (found.apply, found.restore):
        with pytest.raises(kind, match=f"^GPU 0: the driver refuses: {text}$") as raised:
            change(600.0)
        assert type(raised.value) is kind
    assert (driver.card.state.limit_w, driver.card.state.locked_mhz) == before


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("name", ["nvml_power_limit", "nvml_locked_clocks", "cpufreq", "rapl_limit"])
def test_where_there_is_nothing_to_govern_the_mechanism_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpufreq, "CPUFREQ", tmp_path)
    monkeypatch.setattr(rapl_limit, "RAPL", tmp_path)
    with pytest.raises(NotSupported, match=r"^no .* on this machine for this run"):
        find_governors(name, Target(gpu_uuids=("GPU-another",)))


def write(folder: Path, **numbers: Any) -> Path:
    folder.mkdir(parents=True)
    for name, value in numbers.items():
        (folder / name).write_text(f"{value}\n")
    return folder


@pytest.fixture
def policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cpufreq, "CPUFREQ", tmp_path)
    for number in (10, 2):
        write(
            tmp_path / f"policy{number}",
            affected_cpus=f"{number} {number + 1}",
            cpuinfo_min_freq=400_000,
            cpuinfo_max_freq=3_600_000,
            scaling_min_freq=800_000,
            scaling_max_freq=3_500_000,
        )
    return tmp_path


def test_each_group_of_cores_has_its_own_frequency_cap(policies: Path) -> None:
    first, second = find_governors("cpufreq", Target())
    assert [first.scope, second.scope] == ["CPU 2 3", "CPU 10 11"]
    assert (first.current(), first.allowed()) == (3500.0, Allowed(800.0, 3600.0))
    first.apply(2100.0)
    assert (policies / "policy2" / "scaling_max_freq").read_text() == "2100000\n"
    assert second.current() == 3500.0
    type(first).at("policy2").restore(3500.0)
    assert first.current() == 3500.0


def test_where_a_core_has_few_frequencies_the_nearest_is_taken(policies: Path) -> None:
    (policies / "policy2" / "scaling_available_frequencies").write_text("3600000 2400000 1200000 400000\n")
    governor = find_governors("cpufreq", Target())[0]
    assert governor.allowed().steps == (1200.0, 2400.0, 3600.0), "not those below what the system asks for"
    assert governor.permitted(2000.0) == 2400.0


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(rapl_limit, "RAPL", tmp_path)
    write(tmp_path / "intel-rapl:0:0", name="core", constraint_0_power_limit_uw=0)
    write(tmp_path / "intel-rapl:1", name="psys", constraint_0_power_limit_uw=0)
    write(tmp_path / "intel-rapl:2", name="package-1")  # counts, and has no limit
    limits = {"constraint_0_power_limit_uw": 253_000_000, "constraint_0_max_power_uw": 125_000_000}
    return write(tmp_path / "intel-rapl:0", name="package-0", enabled=1, **limits)


def test_a_package_has_a_limit_and_a_board_may_permit_more_than_its_rated_power(package: Path) -> None:
    (governor,) = find_governors("rapl_limit", Target())
    assert (governor.scope, governor.current(), governor.allowed()) == ("CPU package 0", 253.0, Allowed(1.0, 253.0))
    governor.apply(90.0)
    assert (package / "constraint_0_power_limit_uw").read_text() == "90000000\n"
    assert governor.allowed().high == 253.0, "the cap that is in force is not the range"
    (package / "constraint_0_max_power_uw").unlink()
    (package / "constraint_0_min_power_uw").write_text("45000000")
    assert governor.allowed() == Allowed(45.0, 253.0)


def test_limits_that_are_switched_off_are_refused(package: Path) -> None:
    (package / "enabled").write_text("0\n")
    with pytest.raises(NotSupported, match="RAPL limits are switched off"):
        find_governors("rapl_limit", Target())[0].allowed()


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (13, NotPermitted),
        (1, NotPermitted),
        (30, NotPermitted),
        (22, OutOfRange),
        (19, NotSupported),
        (5, CappingError),
    ],
)
@pytest.mark.usefixtures("package")
def test_what_the_kernel_refuses_is_an_error_of_its_kind(
    number: int, kind: type[CappingError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    governor = find_governors("rapl_limit", Target())[0]
    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(kind, match="^CPU package 0: the kernel refuses: .*uw: ") as raised:
        governor.apply(100.0)
    assert type(raised.value) is kind


def test_a_limit_that_is_not_there_is_not_made(package: Path) -> None:
    governor = find_governors("rapl_limit", Target())[0]
    (package / "constraint_0_power_limit_uw").unlink()
    with pytest.raises(NotSupported):
        governor.apply(100.0)
    assert not (package / "constraint_0_power_limit_uw").exists()


# --- the simulated card itself


def test_a_power_limit_lowers_the_clock_to_the_highest_one_within_it(driver: nvml.Driver) -> None:
    card, work = driver.card, Work(compute_s=1.0)
    card.work = work
    power().apply(300.0)
    driver.clock.sleep(5.0)
    clock = nvml.nvmlDeviceGetClockInfo(nvml.UUID, nvml.NVML_CLOCK_SM)
    assert card.model.power_w(clock, 1.0) <= 300.0 < card.model.power_w(clock + 15, 1.0)
    assert nvml.nvmlDeviceGetCurrentClocksThrottleReasons(nvml.UUID) == nvml.POWER_CAP


def test_a_card_that_is_too_hot_lowers_its_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = nvml.with_card(monkeypatch, Card(Model(c_per_w=0.12)))
    driver.card.work = Work(compute_s=1.0)
    driver.clock.sleep(200.0)
    assert nvml.nvmlDeviceGetTemperature(nvml.UUID, 0) in range(84, 90), "690 W would be 113 degrees"
    assert nvml.nvmlDeviceGetCurrentClocksThrottleReasons(nvml.UUID) & nvml.THERMAL


def test_the_energy_counter_is_renewed_ten_times_a_second(driver: nvml.Driver) -> None:
    driver.card.work = Work(compute_s=1.0)
    seen = []
    for _ in range(100):
        driver.clock.sleep(0.01)
        seen.append(nvml.nvmlDeviceGetTotalEnergyConsumption(nvml.UUID))
    assert len(set(seen)) == 11, "nothing at first, and ten renewals"
    assert seen[-1] == pytest.approx(690e3, rel=0.1)


def test_a_state_in_a_file_is_the_same_for_all_who_use_it(tmp_path: Path) -> None:
    path = tmp_path / "card"
    nvml.environment(path, State(limit_w=333.0))
    one, other = (nvml.Driver(Card(), time, path) for _ in range(2))
    with one.call("set") as card:
        card.set("limit_w", 444.0)
    with other.call("get") as card:
        assert card.state.limit_w == 444.0
    assert nvml.loaded(path).limit_w == 444.0
