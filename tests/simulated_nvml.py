"""The part of pynvml that Fathom uses, on simulated cards: in place of pynvml in this process, or in another one.

In this process: `with_card(monkeypatch)`. In another: the environment of `environment(path)`, whose PYTHONPATH has a
pynvml.py of ours in front; the card's state is then a file, and survives who uses it, as a driver's does.
"""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simulated_card import Card, SimulatedClock, State

if TYPE_CHECKING:
    import pytest

UUID = "GPU-simulated"
VARIABLE = "SIMULATED_CARD"  # the environment variable that names the file of the card's state
NVML_SUCCESS = 0
NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION = 2, 3, 4
NVML_ERROR_NOT_FOUND, NVML_ERROR_TIMEOUT, NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_GPU_IS_LOST = 6, 10, 13, 15
NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
NVML_FI_DEV_POWER_INSTANT = 186
WORDS = {
    NVML_ERROR_INVALID_ARGUMENT: "Invalid Argument",
    NVML_ERROR_NOT_SUPPORTED: "Not Supported",
    NVML_ERROR_NO_PERMISSION: "Insufficient Permissions",
    NVML_ERROR_NOT_FOUND: "Not Found",
    NVML_ERROR_TIMEOUT: "Timeout",
    NVML_ERROR_FUNCTION_NOT_FOUND: "Function Not Found",
    NVML_ERROR_GPU_IS_LOST: "GPU is lost",
}
SETTERS = ("nvmlDeviceSetPowerManagementLimit", "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks")
IDLE, CLOCK_SETTING, POWER_CAP, THERMAL = 0x1, 0x2, 0x4, 0x20


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(WORDS[value])
        self.value = value


class Driver:
    """One card and its clock; with a file, the card's state is there between two calls."""

    def __init__(self, card: Card, clock: Any, path: Path | None = None) -> None:
        self.card, self.clock, self._path = card, clock, path

    @contextlib.contextmanager
    def call(self, function: str) -> Iterator[Card]:
        with self._state():
            state = self.card.state
            state.calls += 1
            self.card.advance(self.clock.monotonic())
            if state.lost_after is not None and state.calls > state.lost_after:
                raise NVMLError(NVML_ERROR_GPU_IS_LOST)
            if function in state.faults:
                raise NVMLError(state.faults[function])
            yield self.card

    @contextlib.contextmanager
    def _state(self) -> Iterator[None]:
        if self._path is None:
            yield
            return
        with self._path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.card.state = loaded(self._path)
            try:
                yield
            finally:
                os.pwrite(file.fileno(), _encoded(self.card.state), 0)


def _encoded(state: State) -> bytes:
    """Always as long, for one write: a process that is killed leaves the state before it or the one after."""
    return json.dumps(asdict(state)).encode().ljust(1 << 14)


def loaded(path: Path) -> State:
    document = json.loads(path.read_text())
    document["late"] = [tuple(entry) for entry in document["late"]]
    return State(**document)


def environment(path: Path, state: State | None = None) -> dict[str, str]:
    """For processes whose pynvml shall be this module, with a card whose state is in a file."""
    path.write_bytes(_encoded(state or State()))
    library = path.parent / "library"
    library.mkdir(exist_ok=True)
    (library / "pynvml.py").write_text("from simulated_nvml import *\n")
    folders = [str(library), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, VARIABLE: str(path), "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def with_card(monkeypatch: pytest.MonkeyPatch, card: Card | None = None) -> Driver:
    """This module in the place of pynvml until the test is over."""
    found = Driver(card or Card(), SimulatedClock())
    found.card.advance(found.clock.monotonic())
    monkeypatch.setitem(sys.modules, "pynvml", sys.modules[__name__])
    monkeypatch.setattr(sys.modules[__name__], "driver", found)
    return found


def _from_environment() -> Driver:
    path = os.environ.get(VARIABLE)
    return Driver(Card(), time, Path(path) if path else None)


driver = _from_environment()


def _asked(answer: Callable[[Card], Any]) -> Any:
    """The driver's answer, under the name of the function that asks."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    with driver.call(frame.f_back.f_code.co_name) as card:
        return answer(card)


def nvmlInit() -> None:
    pass


def nvmlShutdown() -> None:
    pass


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:
    if uuid != UUID:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return uuid


def nvmlDeviceGetIndex(handle: str) -> int:
    return 0


def nvmlDeviceGetCount() -> int:
    return 1


def nvmlDeviceGetHandleByIndex(index: int) -> str:
    return UUID


def nvmlDeviceGetName(handle: str) -> str:
    return "Simulated card"


def nvmlDeviceGetUUID(handle: str) -> str:
    return handle


def nvmlDeviceGetMemoryInfo(handle: str) -> Any:
    return SimpleNamespace(total=1 << 37)


def nvmlSystemGetDriverVersion() -> str:
    return "0"


def nvmlDeviceGetMaxClockInfo(handle: str, which: int) -> int:
    return int(_asked(lambda card: round(card.model.high_mhz) if which == NVML_CLOCK_SM else 2619))


def nvmlDeviceGetComputeRunningProcesses(handle: str) -> list[Any]:
    return list(_asked(lambda card: [SimpleNamespace(pid=1)] if card.work else []))


def nvmlDeviceGetMPSComputeRunningProcesses(handle: str) -> list[Any]:
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlDeviceGetTotalEnergyConsumption(handle: str) -> int:
    return int(_asked(lambda card: round(card.state.shown_j * 1e3)))


def nvmlDeviceGetFieldValues(handle: str, fields: list[int]) -> list[Any]:
    assert fields == [NVML_FI_DEV_POWER_INSTANT]
    milliwatts = _asked(lambda card: round(card.instant_w * 1e3))
    return [SimpleNamespace(nvmlReturn=NVML_SUCCESS, value=SimpleNamespace(uiVal=milliwatts))]


def nvmlDeviceGetPowerUsage(handle: str) -> int:
    return int(_asked(lambda card: round(card.instant_w * 1e3)))


def nvmlDeviceGetClockInfo(handle: str, which: int) -> int:
    return int(_asked(lambda card: round(card.state.clock_mhz) if which == NVML_CLOCK_SM else 2619))


def nvmlDeviceGetTemperature(handle: str, sensor: int) -> int:
    return int(_asked(lambda card: round(card.state.temperature_c)))


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: str) -> int:
    return int(_asked(_reasons))


def _reasons(card: Card) -> int:
    if card.work is None:
        return IDLE
    state, model = card.state, card.model
    found = THERMAL * (state.thermal_mhz < model.high_mhz) | CLOCK_SETTING * (state.locked_mhz is not None)
    above = state.clock_mhz + model.step_mhz
    capped = above <= model.high_mhz and model.power_w(above, card.work.activity(above)) > state.limit_w
    return found | POWER_CAP * capped


def nvmlDeviceGetPowerManagementLimit(handle: str) -> int:
    return int(_asked(lambda card: round(card.state.limit_w * 1e3)))


def nvmlDeviceGetPowerManagementLimitConstraints(handle: str) -> list[int]:
    return [int(_asked_limit(number) * 1e3) for number in (0, 1)]


def _asked_limit(number: int) -> float:
    with driver.call("nvmlDeviceGetPowerManagementLimitConstraints") as card:
        return card.limits_w[number]


def nvmlDeviceSetPowerManagementLimit(handle: str, milliwatts: int) -> None:
    def change(card: Card) -> None:
        low, high = card.limits_w
        if not low <= milliwatts / 1e3 <= high:
            raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
        card.set("limit_w", milliwatts / 1e3)

    _asked(change)


def nvmlDeviceGetSupportedMemoryClocks(handle: str) -> list[int]:
    return list(_asked(lambda card: [2619, 1593]))


def nvmlDeviceGetSupportedGraphicsClocks(handle: str, memory_mhz: int) -> list[int]:
    return list(_asked(lambda card: [round(clock) for clock in reversed(card.model.clocks)]))


def nvmlDeviceSetGpuLockedClocks(handle: str, low_mhz: int, high_mhz: int) -> None:
    def change(card: Card) -> None:
        if not card.model.low_mhz <= low_mhz <= high_mhz <= card.model.high_mhz:
            raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
        card.set("locked_mhz", float(high_mhz))

    _asked(change)


def nvmlDeviceResetGpuLockedClocks(handle: str) -> None:
    _asked(lambda card: card.set("locked_mhz", None))
