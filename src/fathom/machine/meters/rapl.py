"""RAPL: the energy counters of Intel and AMD processors, as Linux shows them where this user may read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from fathom.machine.meter import Meter

if TYPE_CHECKING:
    import torch

RAPL = Path("/sys/class/powercap")


class Rapl(Meter):
    """Whole packages, summed. A counter that wrapped around is taken to have done so once."""

    label: ClassVar = "RAPL of the CPU"

    def __init__(self, packages: list[Path]) -> None:
        self._packages = packages
        self._begun_j = [_joules(package) for package in packages]

    @classmethod
    def find(cls, device: torch.device) -> Self | None:
        readable = [folder for folder in sorted(RAPL.glob("intel-rapl:[0-9]")) if _readable(folder)]
        return cls(readable) if readable else None

    def joules(self) -> float:
        total = 0.0
        for package, begun in zip(self._packages, self._begun_j, strict=True):
            spent = _joules(package) - begun
            total += spent if spent >= 0 else spent + _joules(package, "max_energy_range_uj")
        return total


def _joules(package: Path, name: str = "energy_uj") -> float:
    return float((package / name).read_text()) / 1e6


def _readable(package: Path) -> bool:
    """Most systems keep the counters for root."""
    try:
        _joules(package)
    except OSError:
        return False
    return True
