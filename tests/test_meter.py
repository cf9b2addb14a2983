"""Joules: what the system counts, over a counter that goes round, and nothing where nobody counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch

from fathom.core.energy import POWER
from fathom.machine.gpus import gpu_shared
from fathom.machine.meter import Counters, Target, find_meters
from fathom.machine.meters import rapl

CPU = torch.device("cpu")


def package(folder: Path, number: int, microjoules: int) -> Path:
    place = folder / f"intel-rapl:{number}"
    place.mkdir(exist_ok=True)
    (place / "name").write_text(f"package-{number}\n")
    (place / "max_energy_range_uj").write_text("5000000\n")
    (place / "energy_uj").write_text(f"{microjoules}\n")
    return place


def test_packages_are_added_up_and_one_that_went_round_is_not_negative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rapl, "RAPL", tmp_path)
    package(tmp_path, 0, 1_000_000)
    package(tmp_path, 1, 4_500_000)
    found = Counters(Target())
    assert found.joules() == 0
    package(tmp_path, 0, 3_000_000)
    package(tmp_path, 1, 500_000)  # past its end at 5 J
    assert found.joules() == pytest.approx(2 + 1)
    assert found.name == "RAPL of CPU package 0 and RAPL of CPU package 1"


def test_where_nobody_counts_energy_is_not_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rapl, "RAPL", tmp_path / "nothing")
    assert Counters(Target()).joules() is None
    assert Counters(Target()).name is None


def _refused(*_: object) -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


class Card:
    """A driver with one card: what it has counted, and how many programs are on it."""

    millijoules, programs, clients = 1000, 1, 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": self.by_name,
            "nvmlDeviceGetIndex": lambda handle: 1,
            "nvmlDeviceGetFieldValues": _refused,
            "nvmlDeviceGetPowerUsage": _refused,
            "nvmlDeviceGetClockInfo": _refused,
            "nvmlDeviceGetTemperature": _refused,
            "nvmlDeviceGetCurrentClocksThrottleReasons": _refused,
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: self.millijoules,
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: [object()] * self.programs,
            "nvmlDeviceGetMPSComputeRunningProcesses": lambda handle: [object()] * self.clients,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, answer)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="the-second"))

    def by_name(self, name: str) -> str:
        if name != "GPU-the-second":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return name


def test_the_card_that_torch_uses_is_metered_whatever_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rapl, "RAPL", tmp_path)
    card = Card(monkeypatch)
    found = Counters(Target.of(torch.device("cuda:0")))
    card.millijoules = 3500
    assert found.joules() == pytest.approx(2.5)
    assert found.name == "NVML of GPU 1"


def test_a_card_without_a_counter_shows_power_and_counts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cards before Volta: 0 J would be wrong."""
    monkeypatch.setattr(rapl, "RAPL", tmp_path)
    Card(monkeypatch)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", _refused)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda handle: 151_000)
    target = Target.of(torch.device("cuda:0"))
    (meter,) = find_meters(target)
    assert (meter.kind, meter.read().watts) == (POWER, 151.0)
    assert Counters(target).joules() is None


def test_a_card_that_is_lost_is_an_error_and_a_training_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rapl, "RAPL", tmp_path)
    Card(monkeypatch)
    target = Target.of(torch.device("cuda:0"))
    (meter,), counters = find_meters(target), Counters(target)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", _refused)
    with pytest.raises(OSError, match="GPU 1 no longer answers"):
        meter.read()
    assert counters.joules() is None


def test_a_card_with_other_programs_on_it_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(monkeypatch)
    device = torch.device("cuda")
    assert gpu_shared(device) is False
    card.programs = 2
    assert gpu_shared(device) is True
    assert gpu_shared(CPU) is None, "a CPU has no card to share"


@pytest.mark.parametrize(("programs", "clients", "shared"), [(1, 1, False), (1, 2, True), (2, 1, True), (2, 0, True)])
def test_clients_of_the_multi_process_service_are_programs_and_their_server_is_none(
    programs: int, clients: int, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = Card(monkeypatch)
    card.programs, card.clients = programs, clients
    assert gpu_shared(torch.device("cuda")) is shared
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMPSComputeRunningProcesses", _refused)
    assert gpu_shared(torch.device("cuda")) is (programs > 1)
