"""Sensors on the board, as Linux shows them: Grace and other ARM servers, POWER's occ, Jetson's INA3221, ACPI meters.

Only channels whose name says what they hold are metered. A board has many more, each a part of another one: to add
them up would count twice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar, Self

from fathom.core.energy import BOARD, COUNTER, POWER, Reading
from fathom.machine.meter import Meter, Target
from fathom.machine.meters import _hwmon
from fathom.machine.meters._hwmon import Sensor

OTHERS = {"amdgpu", "nvme", "i915", "xe"}  # chips that are no part of the board: cards have meters of their own
LABELS = (  # what a channel's name says, tried in this order -> the scope, with the number in the name
    (re.compile(r"grace power socket (\d+)", re.I), "CPU package"),  # NVIDIA Grace: cores, memory and regulators
    (re.compile(r"module power socket (\d+)", re.I), BOARD),  # ... with the GPU beside it
    (re.compile(r"(?:cpu|processor|proc|chip|package|esocket|p)\s*(\d*)(?:\s+power)?", re.I), "CPU package"),
    (re.compile(r"cpu power socket (\d+)", re.I), "CPU package"),  # of Grace: cores alone, where that is all
    (re.compile(r"vdd_cpu\w*()", re.I), "CPU package"),
    (re.compile(r"(?:dram|mem|memory)\s*(\d*)(?:\s+power)?", re.I), "DRAM"),
    (re.compile(r"(?:system|total|chassis|board|vdd_in|vin_sys_5v0|power ?meter|psys)(?: power)?()", re.I), BOARD),
)
BOARD_CHIP = "power_meter"  # of ACPI: unless its name says that it is of a socket, the meter of all of the machine


class Hwmon(Meter):
    """The channels of one scope, added up: a module for each socket, say."""

    label: ClassVar = "hwmon"

    def __init__(self, scope: str, sensors: Sequence[Sensor]) -> None:
        self.scope, self._sensors = scope, sensors
        self.kind = COUNTER if all(sensor.energy for sensor in sensors) else POWER
        self._before_j: float | None = None

    @classmethod
    def find(cls, target: Target) -> Sequence[Self]:
        """Of each scope, the channels that the first fitting row of LABELS names."""
        named: dict[str, dict[int, list[Sensor]]] = defaultdict(lambda: defaultdict(list))
        for folder in _hwmon.chips():
            if _hwmon.text(folder / "name") in OTHERS:
                continue
            for sensor in _hwmon.sensors(folder):
                row, scope = scope_of(sensor)
                if scope is not None and sensor.readable:
                    named[scope][row].append(sensor)
        return [cls(scope, rows[min(rows)]) for scope, rows in named.items()]

    def read(self) -> Reading:
        readings = [sensor.read() for sensor in self._sensors]
        joules = _sum([reading.joules for reading in readings])
        if joules is not None and self._before_j is not None and joules < self._before_j:
            raise OSError(f"the counter of {self.scope} was set back")
        self._before_j = joules
        return Reading(joules=joules, watts=_sum([reading.watts for reading in readings]))


def scope_of(sensor: Sensor) -> tuple[int, str | None]:
    """What a channel measures, with the rank of the name that says so; None where the name does not say."""
    for row, (pattern, scope) in enumerate(LABELS):
        if found := pattern.fullmatch(sensor.label):
            return row, scope if scope == BOARD else f"{scope} {int(found[1] or 0)}"
    whole = sensor.chip == BOARD_CHIP and "socket" not in sensor.label.lower()
    return len(LABELS), BOARD if whole else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
