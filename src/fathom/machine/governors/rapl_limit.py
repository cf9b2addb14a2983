"""RAPL limit: the watts that a processor package may draw over its longer time window, as Linux's powercap shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from fathom.core.errors import NotSupported
from fathom.machine.governor import Allowed, Governor
from fathom.machine.governors._sysfs import obstacle, optional_number, read_number, write_number
from fathom.machine.meter import Target

RAPL = Path("/sys/class/powercap")
LOWEST_W = 1.0  # where the kernel names no lowest limit


class RaplLimit(Governor):
    """The first constraint of a package, the long-term one; the short-term one stays as it is."""

    name: ClassVar = "RAPL power limit"
    unit: ClassVar = "W"
    tolerance: ClassVar = 0.25  # the hardware counts in eighths of a watt, or coarser

    def __init__(self, part: str) -> None:
        self.part, self.scope = part, f"CPU package {part.partition(':')[2]}"
        self._folder = RAPL / part
        self._limit = self._folder / "constraint_0_power_limit_uw"
        self._first_uw = optional_number(self._limit) or 0

    @classmethod
    def find(cls, target: Target) -> Sequence[Self]:
        """AMD's packages count energy and have no limit."""
        packages = [path.name for path in RAPL.glob("intel-rapl:[0-9]*") if path.name.count(":") == 1]
        found = [cls(name) for name in sorted(packages, key=lambda name: int(name.partition(":")[2]))]
        return [governor for governor in found if governor._limit.exists() and governor._is_package()]

    @classmethod
    def at(cls, part: str) -> Self:
        return cls(part)

    def current(self) -> float | None:
        return read_number(self._limit, self.scope) / 1e6

    def allowed(self) -> Allowed:
        """Up to the package's rated power, or to the limit found at first where a board permits more."""
        if optional_number(self._folder / "enabled") == 0:
            raise NotSupported(f"{self.scope}: RAPL limits are switched off ({self._folder / 'enabled'} is 0)")
        high = max(optional_number(self._folder / "constraint_0_max_power_uw") or 0, self._first_uw)
        low = optional_number(self._folder / "constraint_0_min_power_uw") or LOWEST_W * 1e6
        return Allowed(low / 1e6, high / 1e6)

    def apply(self, value: float) -> None:
        write_number(self._limit, round(value * 1e6), self.scope)

    def restore(self, setting: float | None) -> None:
        if setting is not None:
            self.apply(setting)

    def obstacle(self) -> str | None:
        return obstacle(self._limit)

    def _is_package(self) -> bool:
        try:
            return (self._folder / "name").read_text().startswith("package")
        except OSError:
            return False
