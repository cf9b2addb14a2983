"""AMD GPUs: the AMD SMI library where it is installed, else the files of the amdgpu driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

from fathom.core.energy import COUNTER, POWER, Reading
from fathom.machine.meter import Meter, Target
from fathom.machine.meters import _hwmon


class Amd(Meter):
    """One card. What shows it is a function that gives a reading."""

    label: ClassVar = "AMD SMI"

    def __init__(self, scope: str, show: Callable[[], Reading]) -> None:
        self.scope, self._show = scope, show
        first = show()
        if first.joules is None and first.watts is None:
            raise OSError("a card that shows neither energy nor power")
        self.kind = POWER if first.joules is None else COUNTER

    @classmethod
    def find(cls, target: Target) -> Sequence[Self]:
        """The cards of the run, by the serial number that both torch and the driver know."""
        wanted = [serial for uuid in target.gpu_uuids if (serial := serial_of(uuid))]
        if not wanted:
            return []
        cards = _library_cards() or _driver_cards()
        found = []
        for number, (serials, show) in enumerate(cards):
            alone = len(cards) == len(wanted) == 1  # a virtual machine may hide the number of its only card
            if alone or any(serial in serials for serial in wanted):
                try:
                    found.append(cls(f"GPU {number}", show))
                except (OSError, ValueError):
                    continue
        return found

    def read(self) -> Reading:
        reading = self._show()
        if reading.joules is None and reading.watts is None:
            raise OSError(f"{self.scope} no longer answers")
        return reading


Card = tuple[set[str], Callable[[], Reading]]  # the numbers it goes by, and what shows it


def serial_of(uuid: str) -> str | None:
    """The 16 hexadecimal digits that HIP writes into a UUID as characters; None for a card of another make."""
    digits = uuid.removeprefix("GPU-").replace("-", "")
    try:
        written = bytes.fromhex(digits).decode("ascii")
    except (ValueError, UnicodeDecodeError):
        return None
    return written.lower() if re.fullmatch(r"[0-9a-fA-F]{16}", written) else None


def _library_cards() -> list[Card]:
    try:
        smi = import_module("amdsmi")
        smi.amdsmi_init()
        handles = smi.amdsmi_get_processor_handles()
    except Exception:  # not installed, of another version than the driver, or no card: the library raises all kinds
        return []
    return [(_serials(smi, handle), partial(_library_reading, smi, handle)) for handle in handles]


def _serials(smi: Any, handle: Any) -> set[str]:
    asic = _asked(smi.amdsmi_get_gpu_asic_info, handle)
    return {str(asic.get("asic_serial", "")).lower().removeprefix("0x").rjust(16, "0")}


def _library_reading(smi: Any, handle: Any) -> Reading:
    power, energy = _asked(smi.amdsmi_get_power_info, handle), _asked(smi.amdsmi_get_energy_count, handle)
    clocks = [
        _asked(smi.amdsmi_get_clock_info, handle, getattr(smi.AmdSmiClkType, name, None)) for name in ("GFX", "MEM")
    ]
    ticks, unit_uj = _number(energy, "energy_accumulator", "power"), _number(energy, "counter_resolution")
    try:
        kind = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        temperature = _number({"now": smi.amdsmi_get_temp_metric(handle, *kind)}, "now")
    except Exception:  # as above
        temperature = None
    return Reading(
        joules=None if ticks is None or unit_uj is None else ticks * unit_uj / 1e6,
        watts=_number(power, "current_socket_power", "average_socket_power", "socket_power"),
        clock_mhz=_number(clocks[0], "clk", "cur_clk"),
        memory_clock_mhz=_number(clocks[1], "clk", "cur_clk"),
        temperature_c=temperature,
    )


def _asked(question: Callable[..., Any], *args: Any) -> Mapping[str, Any]:
    """The library's answer; nothing where it has none."""
    try:
        answer = question(*args)
    except Exception:  # AmdSmiLibraryException and its kin, which share no base that every version has
        return {}
    return answer if isinstance(answer, Mapping) else {}


def _number(answer: Mapping[str, Any], *names: str) -> float | None:
    """The first of these that is a number above zero: what a card does not know is "N/A", 0 or all bits set."""
    found = [answer.get(name) for name in names]
    numbers = [value for value in found if isinstance(value, int | float) and 0 < value < 0xFFFF_FFFF_FFFF_FFFF]
    return float(numbers[0]) if numbers else None


def _driver_cards() -> list[Card]:
    folders = [folder for folder in _hwmon.chips() if _hwmon.text(folder / "name") == "amdgpu"]
    return [
        ({_hwmon.text(folder / "device" / "unique_id").lower()}, partial(_driver_reading, folder)) for folder in folders
    ]


def _driver_reading(folder: Path) -> Reading:
    sensor = next(_hwmon.sensors(folder), None)
    shown = sensor.read() if sensor else Reading()
    clock, temperature = _hwmon.text(folder / "freq1_input"), _hwmon.text(folder / "temp1_input")
    return Reading(
        joules=shown.joules,
        watts=shown.watts,
        clock_mhz=float(clock) / 1e6 if clock else None,
        temperature_c=float(temperature) / 1e3 if temperature else None,
    )
