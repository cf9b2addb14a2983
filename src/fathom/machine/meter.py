"""Meter: what counts the energy of one part of the machine; and all of those that count for a run.

A meter is one file of meters/, an entry point of group `fathom.meters`, or `package.module:Class`. Meters read; they
change nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from fathom.core import plugins

if TYPE_CHECKING:
    import torch


class Meter(ABC):
    """Counts from when it is made."""

    label: ClassVar[str]  # what is counted, in words: "the GPU's counter"

    @classmethod
    @abstractmethod
    def find(cls, device: torch.device) -> Self | None:
        """A meter for a run on this device; None where there is none, or where it may not be read."""

    @abstractmethod
    def joules(self) -> float:
        """Energy since it was made."""


class Meters:
    """Every meter that counts for a run on a device. What is not metered is None, never zero."""

    def __init__(self, device: torch.device) -> None:
        kinds = [plugins.load_class("meters", name, Meter) for name in plugins.names("meters")]  # type: ignore[type-abstract]
        self._found = [meter for kind in kinds if (meter := kind.find(device)) is not None]

    @property
    def name(self) -> str | None:
        """What is counted, in words; None where nothing is."""
        return " and ".join(meter.label for meter in self._found) or None

    def joules(self) -> float | None:
        """Since it was made, over all meters."""
        return sum(meter.joules() for meter in self._found) if self._found else None
