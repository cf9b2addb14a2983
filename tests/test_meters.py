"""Meters of every kind on fake file trees, commands and libraries: what they show, and where there is none."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Self

import psutil
import pytest

from fathom.core.energy import BOARD, COUNTER, ESTIMATE, POWER, Reading
from fathom.core.errors import BadOption
from fathom.machine.meter import Counters, Meter, Target, find_hints, find_meters
from fathom.machine.meters import _hwmon, amd, cpu_estimate, ipmi, powermetrics, rapl
from fathom.machine.meters._command import Repeated

SERIAL = "1a2b3c4d5e6f7081"
HIP_UUID = "GPU-" + SERIAL.encode().hex()  # HIP writes the digits as characters
NVIDIA = Target(gpu_uuids=("GPU-ffc79498-8ff3-c2dc-3b0d-fafd804516ae",))
WAIT_S = 20.0  # for a fake command, at most


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no meter at all, whatever this one has."""
    for module, name in ((rapl, "RAPL"), (_hwmon, "HWMON")):
        monkeypatch.setattr(module, name, tmp_path / name)
        (tmp_path / name).mkdir()
    monkeypatch.setattr(ipmi, "DEVICES", (tmp_path / "ipmi0",))
    monkeypatch.setattr(powermetrics, "PLATFORM", "linux")
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.delenv("FATHOM_CPU_TDP_W", raising=False)
    return tmp_path


def chip(folder: Path, number: int, name: str, **files: object) -> Path:
    place = folder / "HWMON" / f"hwmon{number}"
    (place / "device").mkdir(parents=True, exist_ok=True)
    for file, text in {"name": name, **files}.items():
        (place / file.replace("__", "/")).write_text(f"{text}\n")
    return place


def command(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> Path:
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    path = tools / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    return path


def shown(meter: Meter) -> Reading:
    """The next reading that shows anything; a command beside it takes its time."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        reading = meter.read()
        if reading != Reading():
            return reading
    raise AssertionError("no reading")


def scopes(found: list[Meter]) -> dict[str, tuple[str, str]]:
    return {meter.scope: (meter.label, meter.kind) for meter in found}


def test_a_machine_without_meters_has_none_and_no_hints() -> None:
    assert find_meters(Target()) == []
    assert find_meters(NVIDIA) == []
    assert find_hints(Target()) == []


# RAPL


def domain(folder: Path, path: str, name: str, microjoules: int) -> Path:
    place = folder / "RAPL" / path
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "max_energy_range_uj").write_text("5000000\n")
    (place / "energy_uj").write_text(f"{microjoules}\n")
    return place


def test_rapl_meters_packages_and_memory_and_the_platform_as_a_board(bare: Path) -> None:
    domain(bare, "intel-rapl:0", "package-0", 1_000_000)
    domain(bare, "intel-rapl:0/intel-rapl:0:0", "core", 1)
    domain(bare, "intel-rapl:0/intel-rapl:0:1", "dram", 2_000_000)
    domain(bare, "intel-rapl:1", "psys", 3_000_000)
    found = {meter.scope: meter.read().joules for meter in find_meters(Target())}
    assert found == {"CPU package 0": 1.0, "DRAM 0": 2.0, BOARD: 3.0}


def test_rapl_goes_round_again_and_again(bare: Path) -> None:
    place = domain(bare, "intel-rapl:0", "package-0", 4_000_000)
    meter = find_meters(Target())[0]
    seen = []
    for microjoules in (4_900_000, 100_000, 4_000_000, 3_000_000):
        (place / "energy_uj").write_text(str(microjoules))
        seen.append(meter.read().joules)
    assert seen == pytest.approx([4.9, 5.1, 9.0, 13.0])


def test_a_long_run_looks_often_enough_to_see_a_counter_go_round(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = domain(bare, "intel-rapl:0", "package-0", 0)
    now = 0.0
    monkeypatch.setattr("fathom.machine.meter.time.monotonic", lambda: now)
    counters = Counters(Target())
    spent = 0
    for _ in range(20):  # 2 J in 15 s; looked at every 30 s, no more than one round of 5 J in between
        now, spent = now + 15.0, spent + 2_000_000
        (place / "energy_uj").write_text(str(spent % 5_000_000))
        counters.look()
    assert counters.joules() == pytest.approx(40)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_counters_that_only_root_may_read_are_not_there_and_hinted_at(bare: Path) -> None:
    (domain(bare, "intel-rapl:0", "package-0", 1) / "energy_uj").chmod(0)
    assert find_meters(Target()) == []
    assert "energy_uj readable" in find_hints(Target())[0]


# hwmon


def test_grace_is_metered_by_socket_and_its_module_is_a_board(bare: Path) -> None:
    for socket, watts in ((0, 150), (1, 130)):
        for number, (label, extra) in enumerate(
            [("Module", 700), ("Grace", 0), ("CPU", -60), ("SysIO", -140)], start=4 * socket
        ):
            oem = f"{label} Power Socket {socket}"
            chip(bare, number, "power_meter", power1_average=(watts + extra) * 1_000_000, power1_oem_info=oem)
    found = find_meters(Target())
    assert {meter.scope: meter.read().watts for meter in found} == {
        "CPU package 0": 150.0,
        "CPU package 1": 130.0,
        BOARD: 850.0 + 830.0,
    }
    assert {meter.kind for meter in found} == {POWER}


def test_power_occ_and_acpi_meters_and_channels_that_say_nothing(bare: Path) -> None:
    occ = {"power1_label": "system", "power1_input": 400_000_000, "power2_label": "p0", "power2_input": 90_000_000}
    chip(bare, 0, "occ", **occ, power3_label="Chip 0 Vdd", power3_input=50_000_000)
    chip(bare, 1, "ina226", power1_input=7_000_000)  # of some rail
    chip(bare, 2, "nvme", power1_input=7_000_000)
    found = find_meters(Target())
    assert {meter.scope: meter.read().watts for meter in found} == {"CPU package 0": 90.0, BOARD: 400.0}


def test_an_acpi_meter_without_a_name_is_the_board(bare: Path) -> None:
    chip(bare, 0, "power_meter", power1_average=212_000_000)
    assert [(meter.scope, meter.read().watts) for meter in find_meters(Target())] == [(BOARD, 212.0)]


def test_jetson_power_is_voltage_times_current(bare: Path) -> None:
    rails = {"in1_label": "VDD_IN", "in1_input": 5000, "curr1_input": 3000}
    chip(
        bare, 0, "ina3221", **rails, in2_label="VDD_CPU_CV", in2_input=4900, curr2_input=1000, in7_label="sum of shunt"
    )
    found = {meter.scope: meter.read().watts for meter in find_meters(Target())}
    assert found == {BOARD: pytest.approx(15.0), "CPU package 0": pytest.approx(4.9)}


def test_amd_energy_counts_sockets_and_not_their_cores_too(bare: Path) -> None:
    energy = {"energy1_label": "Ecore000", "energy1_input": 10, "energy2_label": "Esocket0", "energy2_input": 2_500_000}
    place = chip(bare, 0, "amd_energy", **energy)
    meter = find_meters(Target())[0]
    assert (meter.scope, meter.kind, meter.read().joules) == ("CPU package 0", COUNTER, 2.5)
    (place / "energy2_input").write_text("1000")
    with pytest.raises(OSError, match="set back"):
        meter.read()


def test_one_part_of_the_machine_is_metered_once_and_by_the_counter(bare: Path) -> None:
    domain(bare, "intel-rapl:0", "package-0", 1_000_000)
    chip(bare, 0, "power_meter", power1_average=1_000_000, power1_oem_info="Grace Power Socket 0")
    chip(bare, 1, "xgene", power1_input=1_000_000, power1_label="CPU power")
    assert scopes(find_meters(Target())) == {"CPU package 0": ("RAPL", COUNTER)}


# AMD


def amdgpu(bare: Path, number: int, serial: str, **files: object) -> Path:
    return chip(bare, number, "amdgpu", device__unique_id=serial, **files)


def test_amdgpu_files_are_those_of_the_card_that_the_run_uses(bare: Path) -> None:
    amdgpu(bare, 0, "ffffffffffffffff", power1_average=90_000_000)
    amdgpu(
        bare,
        1,
        SERIAL,
        power1_input=250_000_000,
        energy1_input=9_000_000,
        freq1_input=2_100_000_000,
        temp1_input=61_000,
    )
    found = find_meters(Target(gpu_uuids=(HIP_UUID,)))
    assert scopes(found) == {"GPU 1": ("AMD SMI", COUNTER)}
    assert found[0].read() == Reading(joules=9.0, watts=250.0, clock_mhz=2100.0, temperature_c=61.0)
    assert find_meters(Target()) == [], "a run on the CPU"
    assert find_meters(NVIDIA) == [], "a card beside it"


def test_a_card_without_a_counter_is_a_meter_of_power(bare: Path) -> None:
    amdgpu(bare, 0, "", power1_average=90_000_000)  # the only one, and its number is hidden
    found = find_meters(Target(gpu_uuids=(HIP_UUID,)))
    assert (found[0].kind, found[0].read().watts) == (POWER, 90.0)
    assert Counters(Target(gpu_uuids=(HIP_UUID,))).joules() is None, "not 0 J"


def amdsmi(**answers: object) -> ModuleType:
    """As much of the library as is used."""
    module = ModuleType("amdsmi")

    def energy(handle: int) -> object:
        found = answers["energy"]
        if isinstance(found, Exception):
            raise found
        return found

    parts = {
        "amdsmi_init": lambda: None,
        "amdsmi_get_processor_handles": lambda: [0],
        "amdsmi_get_gpu_asic_info": lambda handle: {"asic_serial": f"0x{SERIAL.upper()}"},
        "amdsmi_get_power_info": lambda handle: {"current_socket_power": 310, "average_socket_power": "N/A"},
        "amdsmi_get_energy_count": energy,
        "amdsmi_get_clock_info": lambda handle, kind: {"clk": {"gfx": 1900, "mem": 1300}[kind]},
        "amdsmi_get_temp_metric": lambda handle, kind, metric: 55,
        "AmdSmiClkType": SimpleNamespace(GFX="gfx", MEM="mem"),
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT=1),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT=0),
    }
    for name, value in parts.items():
        setattr(module, name, value)
    return module


def test_amd_smi_counts_in_units_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {"energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1}
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(energy=counted))
    meter = find_meters(Target(gpu_uuids=(HIP_UUID,)))[0]
    assert (meter.scope, meter.kind) == ("GPU 0", COUNTER)
    reading = meter.read()
    assert reading.joules == pytest.approx(15.3)
    assert (reading.watts, reading.clock_mhz, reading.memory_clock_mhz) == (310.0, 1900.0, 1300.0)
    assert reading.temperature_c == 55.0


def test_amd_smi_without_an_energy_counter_shows_power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi(energy=RuntimeError("not supported in a guest")))
    meter = find_meters(Target(gpu_uuids=(HIP_UUID,)))[0]
    assert (meter.kind, meter.read().watts) == (POWER, 310.0)


def test_a_uuid_of_another_make_is_no_serial_number() -> None:
    assert amd.serial_of(HIP_UUID) == SERIAL
    assert amd.serial_of(NVIDIA.gpu_uuids[0]) is None
    assert amd.serial_of("GPU-what") is None


# IPMI


ANSWER = """
    Instantaneous power reading:                   220 Watts
    Minimum during sampling period:                 17 Watts
    Power reading state is:                         activated
"""


def test_ipmi_shows_the_board_and_does_not_make_the_sampler_wait(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bare / "ipmi0").touch()
    with monkeypatch.context() as without:
        without.setattr("shutil.which", lambda name: None)
        assert find_meters(Target()) == []
        assert find_hints(Target()) == ["power of the board: the command ipmitool is missing"]
    command(bare, monkeypatch, "ipmitool", f"cat <<'END'\n{ANSWER}\nEND\necho $@ >> {bare}/asked")
    monkeypatch.setattr("fathom.machine.meters._command.time.monotonic", lambda: 0.0)
    meter = find_meters(Target())[0]
    assert (meter.scope, meter.kind) == (BOARD, POWER)
    assert meter.read() == Reading(), "it was only started"
    assert shown(meter).watts == 220.0
    assert [meter.read() for _ in range(3)] == [Reading()] * 3, "not asked again within a second"
    assert (bare / "asked").read_text() == "dcmi power reading\n"
    meter.close()


@pytest.mark.parametrize("script", ["exit 1", "echo Instantaneous power reading: 0 Watts", "echo DCMI not supported"])
def test_a_controller_without_a_sensor_is_an_error_and_not_0_watts(
    bare: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    (bare / "ipmi0").touch()
    command(bare, monkeypatch, "ipmitool", script)
    with pytest.raises(OSError, match=r"exit code 1|shows no power"):
        shown(find_meters(Target())[0])


def test_a_command_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("fathom.machine.meters._command.time.monotonic", lambda: now)
    hanging = Repeated(["sleep", "600"], period_s=1.0, timeout_s=10.0)
    assert hanging.answer() is None
    child = psutil.Process().children()[-1]
    now = 10.5
    with pytest.raises(TimeoutError):
        hanging.answer()
    assert not child.is_running()
    now = 11.6
    assert hanging.answer() is None, "and asked again"
    hanging.close()


# macOS


PRINTED = """*** Sampled system activity (Mon) (101.2ms elapsed) ***
CPU Power: {} mW
GPU Power: {} mW
ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 9999 mW
"""


def test_powermetrics_shows_cpu_and_gpu_of_one_command(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f"cat <<'END'\n{PRINTED.format(*pair)}END\n" for pair in ((5000, 700), (6000, 800), (1, 1)))
    tool = command(bare, monkeypatch, "powermetrics", f"echo $@ >> {bare}/asked\n{lines}exec sleep 600")
    monkeypatch.setattr(powermetrics, "PLATFORM", "darwin")
    monkeypatch.setattr(powermetrics, "COMMAND", str(tool))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    cpu, gpu = find_meters(Target())
    assert not (bare / "asked").exists(), "looking for it starts nothing"
    assert (cpu.scope, gpu.scope, cpu.kind) == ("CPU package 0", "GPU 0", POWER)
    until = time.monotonic() + WAIT_S
    last = shown(cpu)
    while last.watts != 6.0 and time.monotonic() < until:  # the last sample is not known to be whole
        last = shown(cpu)
    assert (last.watts, gpu.read().watts) == (6.0, 0.8)
    assert (cpu.read(), gpu.read()) == (Reading(), Reading()), "nothing new"
    assert (bare / "asked").read_text().split() == ["--samplers", "cpu_power,gpu_power", "-i", "100"]
    cpu.close()
    gpu.close()


def test_powermetrics_is_not_there_where_sudo_would_ask_for_a_password(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = command(bare, monkeypatch, "powermetrics", "exit 0")
    monkeypatch.setattr(powermetrics, "PLATFORM", "darwin")
    monkeypatch.setattr(powermetrics, "COMMAND", str(tool))
    monkeypatch.setattr(os, "geteuid", lambda: 501)
    command(bare, monkeypatch, "sudo", "exit 1")
    assert find_meters(Target()) == []
    assert "without a password" in find_hints(Target())[0]
    command(bare, monkeypatch, "sudo", '[ "$1 $2" = "-n -l" ]')
    assert [meter.scope for meter in find_meters(Target())] == ["CPU package 0", "GPU 0"]


# the estimate


def times(busy: float, idle: float) -> object:
    return psutil._pslinux.scputimes(busy, 0, 0, idle, 0, 0, 0, 0, 0, 0)


def test_an_estimate_is_made_only_where_asked_for_and_nothing_is_metered(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FATHOM_CPU_TDP_W", "200")
    assert find_meters(Target()) == []
    assert scopes(find_meters(Target(estimates=True))) == {"CPU": ("estimate from CPU utilisation", ESTIMATE)}
    chip(bare, 0, "power_meter", power1_average=212_000_000)
    assert scopes(find_meters(Target(estimates=True))) == {BOARD: ("hwmon", POWER)}, "the board holds the CPU"


@pytest.mark.parametrize(
    ("busy", "watts"),
    [(0.0, 24.0), (5.0, 44.0), (10.0, 64.0), (30.0, 107.0), (50.0, 150.0), (100.0, 204.0)],
)
def test_the_estimate_follows_the_curve(monkeypatch: pytest.MonkeyPatch, busy: float, watts: float) -> None:
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(1000.0, 1000.0))
    meter = cpu_estimate.CpuEstimate(200.0)
    assert meter.read() == Reading(), "no time has passed"
    monkeypatch.setattr(psutil, "cpu_times", lambda: times(1000.0 + busy, 1100.0 - busy))
    assert meter.read().watts == pytest.approx(watts)


@pytest.mark.parametrize(
    ("name", "cores", "watts"),
    [
        ("Intel(R) Xeon(R) Platinum 8480C", 112, 700.0),  # two of them
        ("AMD EPYC 7742 64-Core Processor", 8, 225 / 8),  # a virtual machine with an eighth of one
        ("INTEL(R) XEON(R) PLATINUM 8558", 96, 660.0),  # as its maker writes it since the fifth generation
        ("INTEL(R) XEON(R) PLATINUM 8592+", 128, 700.0),
        ("Intel(R) Xeon(R) Platinum 8480+", 56, 350.0),
        ("Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", 20, 150.0),
        ("Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz", 24, 205.0),  # another processor
        ("Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz", 28, None),  # not one that is in the table
        ("AMD Ryzen 9 7950X3D 16-Core Processor", 16, 120.0),
        ("AMD EPYC 9654P 96-Core Processor", 96, 360.0),
        ("13th Gen Intel(R) Core(TM) i9-13900KF", 24, 125.0),
        ("Neoverse-N1", 64, None),
    ],
)
def test_the_tdp_is_known_by_name_for_the_cores_that_are_here(
    monkeypatch: pytest.MonkeyPatch, name: str, cores: int, watts: float | None
) -> None:
    monkeypatch.setattr(cpu_estimate, "cpu_name", lambda: name)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: cores)
    assert cpu_estimate.tdp_w() == (None if watts is None else pytest.approx(watts))
    unknown = f"an estimate of CPU power: the TDP of {name} is not known; give it in FATHOM_CPU_TDP_W"
    assert find_hints(Target(estimates=True)) == ([] if watts else [unknown])
    monkeypatch.setenv("FATHOM_CPU_TDP_W", "99.5")
    assert cpu_estimate.tdp_w() == 99.5, "the user knows better"


def test_every_processor_of_the_table_has_a_plausible_tdp() -> None:
    for name, (watts, cores) in cpu_estimate.TDP_W.items():
        assert 100 <= watts <= 400, name
        assert 3 <= watts / cores <= 11, name


@pytest.mark.parametrize("given", ["much", "-3", "0", "inf", "nan"])
def test_a_tdp_that_is_no_number_of_watts_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("FATHOM_CPU_TDP_W", given)
    with pytest.raises(BadOption, match="FATHOM_CPU_TDP_W takes watts"):
        find_meters(Target(estimates=True))


# counters of long runs


class Failing(Meter):
    label = "failing"
    scope = "GPU 0"
    left = 2

    @classmethod
    def find(cls, target: Target) -> list[Self]:
        return [cls()]

    def read(self) -> Reading:
        self.left -= 1
        if self.left < 0:
            raise OSError("the card is lost")
        return Reading(joules=10.0 - self.left)


def test_a_counter_that_is_lost_is_not_known_and_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fathom.machine.meter._kinds", lambda: [Failing])
    counters = Counters(Target())
    assert counters.joules() == 1.0
    assert counters.joules() is None
    assert counters.name == "failing of GPU 0"


class Broken(Failing):
    @classmethod
    def find(cls, target: Target) -> list[Self]:
        raise OSError("the driver does not answer")


def test_a_driver_that_breaks_while_it_is_asked_is_no_meter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fathom.machine.meter._kinds", lambda: [Broken, Failing])
    assert [type(meter) for meter in find_meters(Target())] == [Failing]
