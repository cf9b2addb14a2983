"""RAPL: the energy counters of Intel and AMD processors, as Linux shows them where this user may read them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from fathom.core.energy import BOARD, Reading
from fathom.machine.meter import Meter, Target

RAPL = Path("/sys/class/powercap")
SCOPES = {"package": "CPU package", "dram": "DRAM"}  # the domains that add up: cores and uncore are in a package
PLATFORM = "psys"  # all of a laptop's or a small server's board, package and memory included


class Rapl(Meter):
    """One package, or the memory beside it. A counter that is smaller than before has gone round."""

    label: ClassVar = "RAPL"

    def __init__(self, folder: Path, scope: str) -> None:
        self._folder, self.scope = folder, scope
        self._range_j = _joules(folder, "max_energy_range_uj")
        self._before_j, self._rounds = _joules(folder), 0

    @classmethod
    def find(cls, target: Target) -> Sequence[Self]:
        found = []
        for package in sorted(RAPL.glob("intel-rapl:[0-9]*")):
            if package.name.count(":") > 1:
                continue  # a part of a package
            number = package.name.partition(":")[2]
            for folder in (package, *sorted(package.glob(f"{package.name}:[0-9]*"))):
                name = _name(folder)
                if (name in SCOPES or name == PLATFORM) and _readable(folder):
                    found.append(cls(folder, BOARD if name == PLATFORM else f"{SCOPES[name]} {number}"))
        return found

    @classmethod
    def hint(cls, target: Target) -> str | None:
        closed = [folder for folder in sorted(RAPL.glob("intel-rapl:[0-9]*")) if _closed(folder / "energy_uj")]
        return f"CPU energy: make {closed[0] / 'energy_uj'} readable for this user" if closed else None

    def read(self) -> Reading:
        joules = _joules(self._folder)
        self._rounds += joules < self._before_j
        self._before_j = joules
        return Reading(joules=joules + self._rounds * self._range_j)


def _name(folder: Path) -> str:
    """package-0 is a package, and so is package-0-die-1."""
    try:
        return (folder / "name").read_text().strip().partition("-")[0]
    except OSError:
        return ""


def _joules(folder: Path, name: str = "energy_uj") -> float:
    return float((folder / name).read_text()) / 1e6


def _readable(folder: Path) -> bool:
    """Most systems keep the counters for root."""
    try:
        _joules(folder), _joules(folder, "max_energy_range_uj")
    except (OSError, ValueError):
        return False
    return True


def _closed(path: Path) -> bool:
    return path.exists() and not os.access(path, os.R_OK)
