"""The energy counter of an NVIDIA GPU (Volta and later), as its driver reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from fathom.machine.host import gpu_handle
from fathom.machine.meter import Meter

if TYPE_CHECKING:
    import torch


class NvmlCounter(Meter):
    label: ClassVar = "the GPU's counter"

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._begun_mj = self._millijoules()

    @classmethod
    def find(cls, device: torch.device) -> Self | None:
        import pynvml

        handle = gpu_handle(device)
        try:
            return None if handle is None else cls(handle)
        except pynvml.NVMLError:  # a card that does not count
            return None

    def joules(self) -> float:
        return (self._millijoules() - self._begun_mj) / 1e3

    def _millijoules(self) -> float:
        import pynvml

        return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
