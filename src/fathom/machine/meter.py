"""Meter: what shows the energy or the power of one part of the machine.

A meter is one file of meters/, an entry point of group `fathom.meters`, or `package.module:Class`. Meters read; they
change nothing. What is not metered is None, never zero.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from fathom.core import plugins
from fathom.core.energy import BOARD, COUNTER, ESTIMATE, Reading

if TYPE_CHECKING:
    import torch

LOOK_S = 30.0  # between two looks of a long run at its counters: RAPL's go round in some minutes


@dataclass(frozen=True)
class Target:
    """What a run uses, and what is metered for it. No torch: the sampling process starts without it."""

    gpu_uuids: tuple[str, ...] = ()
    pid: int | None = None  # of the process that runs, for meters that tell processes apart
    estimates: bool = False  # whether a guess is welcome where nothing is metered

    @classmethod
    def of(cls, device: torch.device, *, estimates: bool = False) -> Target:
        from fathom.machine.gpus import gpu_uuid

        uuid = gpu_uuid(device)
        return cls(gpu_uuids=(uuid,) if uuid else (), estimates=estimates)


class Meter(ABC):
    """One part of the machine."""

    label: ClassVar[str]  # what is read, in words: "NVML"
    kind: str = COUNTER  # or POWER; ESTIMATE for a class of guesses
    scope: str  # of what: "GPU 0", "CPU package 1", "DRAM 0", BOARD

    @classmethod
    @abstractmethod
    def find(cls, target: Target) -> Sequence[Self]:
        """The meters of this kind for a run; none where there are none, or where they may not be read."""

    @classmethod
    def hint(cls, target: Target) -> str | None:
        """What the user can do for it to be found; None where it is found, or where nothing would help."""
        return None

    @abstractmethod
    def read(self) -> Reading:
        """What it shows now; raises OSError where it cannot be read any more.

        It must not wait: a meter that is slow to answer shows nothing (Reading()) until its next answer is there.
        """

    def close(self) -> None:  # noqa: B027  most have nothing to end
        """Ends what reading needed, such as a command that runs beside it."""


def find_meters(target: Target) -> list[Meter]:
    """Every meter that counts for a run, one for each part of the machine.

    Estimates come only where they are asked for, and only where nothing measures the CPU, not even with the board.
    """
    found = _one_each(meter for kind in _kinds() if kind.kind != ESTIMATE for meter in _found(kind, target))
    if target.estimates and not any(meter.scope == BOARD or meter.scope.startswith("CPU") for meter in found):
        found += [meter for kind in _kinds() if kind.kind == ESTIMATE for meter in _found(kind, target)]
    return found


def find_hints(target: Target) -> list[str]:
    """What the user can do for more to be metered."""
    return [hint for kind in _kinds() if (hint := kind.hint(target)) is not None]


def _kinds() -> list[type[Meter]]:
    return [plugins.load_class("meters", name, Meter) for name in plugins.names("meters")]  # type: ignore[type-abstract]


def _found(kind: type[Meter], target: Target) -> Sequence[Meter]:
    """Where a driver breaks while it is asked, that meter is not there; the run goes on."""
    try:
        return kind.find(target)
    except (OSError, ValueError):
        return []


def _one_each(found: Iterable[Meter]) -> list[Meter]:
    """Two meters of one part, such as RAPL and the hwmon driver of the same package, would count it twice.

    A counter is better than power. Boards stay: they are not added up.
    """
    kept: dict[str, Meter] = {}
    boards = []
    for meter in sorted(found, key=lambda each: each.kind != COUNTER):
        if meter.scope == BOARD:
            boards.append(meter)
        else:
            kept.setdefault(meter.scope, meter)
    return [*kept.values(), *boards]


class Counters:
    """Joules of a run by its counters alone, read when asked: for runs of many minutes, which need no trace."""

    def __init__(self, target: Target) -> None:
        meters = [meter for meter in find_meters(target) if meter.kind == COUNTER and meter.scope != BOARD]
        begun = [(meter, _joules(meter)) for meter in meters]
        self._counted = [(meter, joules) for meter, joules in begun if joules is not None]
        self._read = time.monotonic()

    @property
    def name(self) -> str | None:
        """What counts, in words; None where nothing does."""
        return " and ".join(dict.fromkeys(f"{meter.label} of {meter.scope}" for meter, _ in self._counted)) or None

    def joules(self) -> float | None:
        """Since it was made, over all counters; None where there is none, or one was lost."""
        self._read = time.monotonic()
        spent = [None if (now := _joules(meter)) is None else now - begun for meter, begun in self._counted]
        known = [joules for joules in spent if joules is not None]
        return sum(known) if known and len(known) == len(spent) else None

    def look(self) -> None:
        """Reads at times, so that no counter goes round twice between two questions; cheap enough for every step."""
        if time.monotonic() - self._read >= LOOK_S:
            self.joules()


def _joules(meter: Meter) -> float | None:
    try:
        return meter.read().joules
    except (OSError, ValueError):
        return None  # a card that was lost, say: its run goes on without a meter
