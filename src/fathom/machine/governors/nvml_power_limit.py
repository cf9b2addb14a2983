"""NVML power limit: the watts that an NVIDIA GPU may draw, as a mean over about a second."""

from __future__ import annotations

from typing import ClassVar

from fathom.machine.governor import Allowed
from fathom.machine.governors._nvml import NvmlGovernor, card, refusals


class NvmlPowerLimit(NvmlGovernor):
    name: ClassVar = "NVML power limit"
    unit: ClassVar = "W"
    tolerance: ClassVar = 1.0  # some drivers keep whole watts

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
