"""NVML power limit: the watts that an NVIDIA GPU may draw, as a mean over about a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from fathom.machine.governor import Allowed, Governor
from fathom.machine.governors._nvml import card, obstacle, refusals, scope_of
from fathom.machine.meter import Target


class NvmlPowerLimit(Governor):
    name: ClassVar = "NVML power limit"
    unit: ClassVar = "W"
    tolerance: ClassVar = 1.0  # some drivers keep whole watts

    def __init__(self, uuid: str, scope: str) -> None:
        self.part, self.scope = uuid, scope

    @classmethod
    def find(cls, target: Target) -> Sequence[Self]:
        return [cls(uuid, scope) for uuid in target.gpu_uuids if (scope := scope_of(uuid)) is not None]

    @classmethod
    def at(cls, part: str) -> Self:
        return cls(part, scope_of(part) or part)

    def current(self) -> float | None:
        import pynvml

        with refusals(self.scope):
            return float(pynvml.nvmlDeviceGetPowerManagementLimit(card(self.part))) / 1e3

    def allowed(self) -> Allowed:
        import pynvml

        with refusals(self.scope):
            low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(card(self.part))
        return Allowed(low / 1e3, high / 1e3)

    def apply(self, value: float) -> None:
        import pynvml

        with refusals(self.scope):
            pynvml.nvmlDeviceSetPowerManagementLimit(card(self.part), round(value * 1e3))

    def restore(self, setting: float | None) -> None:
        if setting is not None:  # every card that has a limit shows one
            self.apply(setting)

    def obstacle(self) -> str | None:
        return obstacle()
