"""What Linux shows of a sensor chip: the files of one folder below /sys/class/hwmon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fathom.core.energy import Reading

HWMON = Path("/sys/class/hwmon")
LABELS = ("power{}_label", "energy{}_label", "power{}_oem_info", "in{}_label")  # the first that is there


@dataclass(frozen=True)
class Sensor:
    """One channel of a chip: its files for energy, power, or voltage and current; None where it has none."""

    chip: str  # the driver's name
    label: str  # what the board calls it; "" where it says nothing
    energy: Path | None = None  # microjoules
    power: Path | None = None  # microwatts
    voltage: Path | None = None  # millivolts
    current: Path | None = None  # milliamperes

    def read(self) -> Reading:
        watts = _scaled(self.power, 1e-6)
        if watts is None and self.voltage and self.current:
            watts = value(self.voltage) * value(self.current) * 1e-6
        return Reading(joules=_scaled(self.energy, 1e-6), watts=watts)

    @property
    def readable(self) -> bool:
        """Whether it shows a number to this user now."""
        try:
            reading = self.read()
        except (OSError, ValueError):
            return False
        return reading.joules is not None or reading.watts is not None


def chips() -> list[Path]:
    """The folder of every sensor chip, in the order of their numbers."""
    return sorted(HWMON.glob("hwmon[0-9]*"), key=lambda folder: int(folder.name.removeprefix("hwmon")))


def sensors(folder: Path) -> Iterator[Sensor]:
    """The channels of a chip that show energy or power, or from which power follows."""
    channels = {int(digits) for path in folder.glob("*_*") if (digits := _digits(path.name)) is not None}
    for channel in sorted(channels):
        power = _first(folder, f"power{channel}_input", f"power{channel}_average")
        voltage, current = _first(folder, f"in{channel}_input"), _first(folder, f"curr{channel}_input")
        sensor = Sensor(
            chip=text(folder / "name"),
            label=next((found for each in LABELS if (found := text(folder / each.format(channel)))), ""),
            energy=_first(folder, f"energy{channel}_input"),
            power=power,
            voltage=voltage if current else None,
            current=current if voltage else None,
        )
        if sensor.energy or sensor.power or sensor.voltage:
            yield sensor


def text(path: Path) -> str:
    """What a file says; nothing where it is not there."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def value(path: Path) -> float:
    return float(path.read_text())


def _scaled(path: Path | None, unit: float) -> float | None:
    return None if path is None else value(path) * unit


def _first(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).exists()), None)


def _digits(name: str) -> int | None:
    """The channel of a file such as power12_input; None of a file of another kind."""
    for kind in ("power", "energy", "curr"):
        channel = name.partition("_")[0].removeprefix(kind)
        if name.startswith(kind) and channel.isdecimal():
            return int(channel)
    return None
