"""NVML: the energy counter of an NVIDIA GPU (Volta and later), its power now, clocks, temperature and throttling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from fathom.core.energy import POWER, Reading
from fathom.machine.meter import Meter, Target


class Nvml(Meter):
    label: ClassVar = "NVML"

    def __init__(self, handle: Any, scope: str) -> None:
        self._handle, self.scope = handle, scope
        if self._joules() is None:
            self.kind = POWER  # cards before Volta
            if self._watts() is None:
                raise OSError("a card that shows neither energy nor power")

    @classmethod
    def find(cls, target: Target) -> Sequence[Self]:
        if not target.gpu_uuids:
            return []
        import pynvml

        found = []
        for uuid in target.gpu_uuids:
            try:
                pynvml.nvmlInit()
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                found.append(cls(handle, f"GPU {pynvml.nvmlDeviceGetIndex(handle)}"))
            except (pynvml.NVMLError, OSError):
                continue
        return found

    def read(self) -> Reading:
        import pynvml

        reading = Reading(
            joules=self._joules(),
            watts=self._watts(),
            clock_mhz=_asked(pynvml.nvmlDeviceGetClockInfo, self._handle, pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=_asked(pynvml.nvmlDeviceGetClockInfo, self._handle, pynvml.NVML_CLOCK_MEM),
            temperature_c=_asked(pynvml.nvmlDeviceGetTemperature, self._handle, pynvml.NVML_TEMPERATURE_GPU),
            throttles=_asked(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, self._handle),
        )
        if reading.joules is None and reading.watts is None:
            raise OSError(f"{self.scope} no longer answers")
        return reading

    def _joules(self) -> float | None:
        import pynvml

        millijoules = _asked(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._handle)
        return None if millijoules is None else millijoules / 1e3

    def _watts(self) -> float | None:
        """Instant power where the driver has it: what nvmlDeviceGetPowerUsage shows is a mean over a second."""
        import pynvml

        field = getattr(pynvml, "NVML_FI_DEV_POWER_INSTANT", None)
        answers = _asked(pynvml.nvmlDeviceGetFieldValues, self._handle, [field]) if field is not None else None
        if answers and answers[0].nvmlReturn == pynvml.NVML_SUCCESS:
            return float(answers[0].value.uiVal) / 1e3
        milliwatts = _asked(pynvml.nvmlDeviceGetPowerUsage, self._handle)
        return None if milliwatts is None else milliwatts / 1e3


def _asked(question: Callable[..., Any], *args: Any) -> Any:
    """The driver's answer; None where it has none."""
    import pynvml

    try:
        return question(*args)
    except pynvml.NVMLError:
        return None
