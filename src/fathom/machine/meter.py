"""Meter: what shows the energy or the power of one part of the machine.

A meter is one file of meters/, an entry point of group `fathom.meters`, or `package.module:Class`. Meters read; they
change nothing. What is not metered is None, never zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from fathom.core import plugins
from fathom.core.energy import BOARD, COUNTER, ESTIMATE, Reading

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Target:
    """What a run uses, and what is metered for it. No torch: the sampling process starts without it."""

    gpu_uuids: tuple[str, ...] = ()
    pid: int | None = None  # of the process that runs, for meters that tell processes apart
    estimates: bool = False  # whether a guess is welcome where nothing is metered

    @classmethod
    def of(cls, device: torch.device, *, estimates: bool = False) -> Target:
        from fathom.machine.host import gpu_uuid

        uuid = gpu_uuid(device)
        return cls(gpu_uuids=(uuid,) if uuid else (), estimates=estimates)


class Meter(ABC):
    """One part of the machine."""

    label: ClassVar[str]  # what is read, in words: "NVML"
    kind: ClassVar[str] = COUNTER
    scope: str  # of what: "GPU 0", "CPU package 1"

    @classmethod
    @abstractmethod
    def find(cls, target: Target) -> Sequence[Self]:
        """The meters of this kind for a run; none where there are none, or where they may not be read."""

    @abstractmethod
    def read(self) -> Reading:
        """What it shows now; raises OSError where it cannot be read any more."""


def find_meters(target: Target) -> list[Meter]:
    """Every meter that counts for a run; estimates only where asked for, and only for what has no meter."""
    kinds = [plugins.load_class("meters", name, Meter) for name in plugins.names("meters")]  # type: ignore[type-abstract]
    found = [meter for kind in kinds if kind.kind != ESTIMATE for meter in kind.find(target)]
    if target.estimates and not any(meter.scope.startswith("CPU") for meter in found):
        found += [meter for kind in kinds if kind.kind == ESTIMATE for meter in kind.find(target)]
    return found


class Counters:
    """Joules of a run by its counters alone, read when asked: for runs of many minutes, which need no trace."""

    def __init__(self, target: Target) -> None:
        self._meters = [meter for meter in find_meters(target) if meter.kind == COUNTER and meter.scope != BOARD]
        self._begun = [meter.read().joules or 0.0 for meter in self._meters]

    @property
    def name(self) -> str | None:
        """What counts, in words; None where nothing does."""
        return " and ".join(dict.fromkeys(f"{meter.label} of {meter.scope}" for meter in self._meters)) or None

    def joules(self) -> float | None:
        """Since it was made, over all counters."""
        if not self._meters:
            return None
        spent = zip(self._meters, self._begun, strict=True)
        return sum((meter.read().joules or 0.0) - begun for meter, begun in spent)
