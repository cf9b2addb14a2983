"""Linux cpufreq: the highest frequency of each core, or of each group of cores that share a clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from fathom.machine.governor import Allowed, Governor
from fathom.machine.governors._sysfs import obstacle, read_number, write_number
from fathom.machine.meter import Target

CPUFREQ = Path("/sys/devices/system/cpu/cpufreq")


class Cpufreq(Governor):
    """One policy, which is the kernel's word for cores that share a clock."""

    name: ClassVar = "CPU frequency cap"
    unit: ClassVar = "MHz"
    tolerance: ClassVar = 50.0  # half a step of most processors

    def __init__(self, policy: str) -> None:
        self.part, self._folder = policy, CPUFREQ / policy
        self.scope = f"CPU {self._text('affected_cpus') or policy.removeprefix('policy')}"

    @classmethod
    def find(cls, target: Target) -> Sequence[Self]:
        folders = [path for path in CPUFREQ.glob("policy[0-9]*") if (path / "scaling_max_freq").exists()]
        return [cls(path.name) for path in sorted(folders, key=lambda path: int(path.name.removeprefix("policy")))]

    @classmethod
    def at(cls, part: str) -> Self:
        return cls(part)

    def current(self) -> float | None:
        return read_number(self._folder / "scaling_max_freq", self.scope) / 1e3

    def allowed(self) -> Allowed:
        """From the lowest frequency that the system lets the core have now to the highest of the hardware."""
        low = read_number(self._folder / "scaling_min_freq", self.scope) / 1e3
        high = read_number(self._folder / "cpuinfo_max_freq", self.scope) / 1e3
        listed = (int(word) / 1e3 for word in self._text("scaling_available_frequencies").split() if word.isdigit())
        return Allowed(low, high, tuple(sorted(step for step in listed if low <= step <= high)))

    def apply(self, value: float) -> None:
        write_number(self._folder / "scaling_max_freq", round(value * 1e3), self.scope)

    def restore(self, setting: float | None) -> None:
        if setting is not None:
            self.apply(setting)

    def obstacle(self) -> str | None:
        return obstacle(self._folder / "scaling_max_freq")

    def _text(self, name: str) -> str:
        try:
            return (self._folder / name).read_text().strip()
        except OSError:
            return ""
