"""Governor: what limits the power or the clock of one part of the machine. Meters read; governors change.

A governor is one file of governors/, an entry point of group `fathom.governors`, or `package.module:Class`. It knows
how to set and to put back, and not when: experiments/capping.py changes settings and restores them on every way out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from fathom.core import plugins
from fathom.core.errors import NotSupported, OutOfRange
from fathom.machine.meter import Target

EXACT = 1e-6  # of the unit: what is lost between a driver's whole numbers and ours


@dataclass(frozen=True)
class Allowed:
    """What a driver permits: a range and, where it knows only some values in it, those, ascending."""

    low: float
    high: float
    steps: tuple[float, ...] = ()

    def nearest(self, value: float) -> float | None:
        """The permitted value that is nearest, the lower of two; None outside the range."""
        if not self.low - EXACT <= value <= self.high + EXACT:
            return None
        return min(self.steps, key=lambda step: abs(step - value)) if self.steps else value


class Governor(ABC):
    """A limit of one part of the machine. All that the driver refuses is a CappingError."""

    name: ClassVar[str]  # what is set, in words: "NVML power limit"
    unit: ClassVar[str]  # of all values: "W", "MHz"
    tolerance: ClassVar[float] = 0.0  # by how much the driver may round a value
    readable: ClassVar[bool] = True  # whether current() shows what was set
    caveat: ClassVar[str] = ""  # what cannot be promised, said beforehand
    part: str  # names the part for good, over restarts of the program: a card's UUID
    scope: str  # the same for people: "GPU 0"

    @classmethod
    @abstractmethod
    def find(cls, target: Target) -> Sequence[Self]:
        """The parts of a run that have such a limit; none where there are none."""

    @classmethod
    @abstractmethod
    def at(cls, part: str) -> Self:
        """The governor of a part that was changed earlier, for restoring it."""

    @abstractmethod
    def current(self) -> float | None:
        """The limit now; None where none is set."""

    @abstractmethod
    def allowed(self) -> Allowed:
        """What the driver permits now."""

    @abstractmethod
    def apply(self, value: float) -> None:
        """Sets the limit to a permitted value."""

    @abstractmethod
    def restore(self, setting: float | None) -> None:
        """Sets the limit to what current() gave before."""

    def reading(self) -> float | None:
        """What the driver shows, by which a setting is verified."""
        return self.current()

    def holds(self, setting: float | None, tolerance: float = 0.0) -> bool:
        """Whether the driver shows this setting as in force."""
        shown = self.reading()
        if shown is None or setting is None:
            return shown is setting
        return abs(shown - setting) <= tolerance + EXACT

    def obstacle(self) -> str | None:
        """Why a change would be refused, as far as that is known without trying."""
        return None

    def permitted(self, value: float) -> float:
        """The value that would be set; raises where it is out of range."""
        allowed = self.allowed()
        nearest = allowed.nearest(value)
        if nearest is None:
            bounds = f"{allowed.low:g} to {self.shown(allowed.high)}"
            raise OutOfRange(f"{self.scope}: {self.shown(value)} is outside what the driver permits, {bounds}")
        return nearest

    def shown(self, setting: float | None) -> str:
        """A setting, for people."""
        return "no limit" if setting is None else f"{setting:.10g} {self.unit}"


def find_governors(name: str, target: Target) -> list[Governor]:
    """The limits of one mechanism for all parts of a run: find_governors("nvml_power_limit", Target.of(device))."""
    kind = plugins.load_class("governors", name, Governor)  # type: ignore[type-abstract]
    found = list(kind.find(target))
    if not found:
        raise NotSupported(f"no {kind.name} on this machine for this run")
    return found
