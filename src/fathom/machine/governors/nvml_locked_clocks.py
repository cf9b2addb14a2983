"""NVML locked clocks: the highest SM clock that an NVIDIA GPU (Volta and later) may run at."""

from __future__ import annotations

from typing import ClassVar

from fathom.machine.governor import Allowed
from fathom.machine.governors._nvml import NvmlGovernor, card, refusals


class NvmlLockedClocks(NvmlGovernor):
    """NVML sets and removes a lock, and does not show it: what is read back is the clock itself."""

    name: ClassVar = "NVML locked clocks"
    unit: ClassVar = "MHz"
    tolerance: ClassVar = 15.0  # a step: the clock that is shown may be the next one
    readable: ClassVar = False
    caveat: ClassVar = "NVML does not show locked clocks. Restoring removes any lock, also one that was set before."

    def current(self) -> float | None:
        """No lock, as far as anybody can tell; raises where the card does not answer."""
        self.reading()
        return None

    def allowed(self) -> Allowed:
        """The clocks that the driver lists at the highest memory clock, which is left alone."""
        import pynvml

        with refusals(self.scope):
            handle = card(self.part)
            memory = max(pynvml.nvmlDeviceGetSupportedMemoryClocks(handle))
            clocks = sorted(map(float, pynvml.nvmlDeviceGetSupportedGraphicsClocks(handle, memory)))
        return Allowed(clocks[0], clocks[-1], tuple(clocks))

    def apply(self, value: float) -> None:
        """The lowest clock stays what it is, so that an idle card may still slow down."""
        import pynvml

        low = self.allowed().low
        with refusals(self.scope):
            pynvml.nvmlDeviceSetGpuLockedClocks(card(self.part), round(low), round(value))

    def restore(self, setting: float | None) -> None:
        import pynvml

        with refusals(self.scope):
            pynvml.nvmlDeviceResetGpuLockedClocks(card(self.part))

    def holds(self, setting: float | None, tolerance: float = 0.0) -> bool:
        """A cap holds where the clock is not above it. That no lock is left shows only in the driver's answer."""
        return setting is None or self.reading() <= setting + tolerance

    def reading(self) -> float:
        """The SM clock now."""
        import pynvml

        with refusals(self.scope):
            return float(pynvml.nvmlDeviceGetClockInfo(card(self.part), pynvml.NVML_CLOCK_SM))
