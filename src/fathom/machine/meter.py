"""Joules as the hardware counts them: an NVIDIA GPU's own counter, and Intel's RAPL for the CPU where readable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

RAPL = Path("/sys/class/powercap")


class Meter:
    """Counts from when it is made. What nobody counts is None, never zero."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = _gpu_counter(device) if device.type == "cuda" else None
        self._packages = _packages()
        self._begun = self._now()

    @property
    def name(self) -> str | None:
        """What is counted, in words; None where nothing is."""
        parts = [*(["the GPU's counter"] if self._gpu else []), *(["RAPL of the CPU"] if self._packages else [])]
        return " and ".join(parts) or None

    def joules(self) -> float | None:
        """Since it was made, over all that is counted; a counter that went round is taken to have done so once."""
        if not self._begun:
            return None
        total = 0.0
        for name, (value, most) in self._now().items():
            spent = value - self._begun[name][0]
            total += spent if spent >= 0 else spent + most
        return total

    @property
    def shared(self) -> bool | None:
        """Whether other programs are on the GPU right now: the counter counts what they take, too; None is unknown."""
        if self._gpu is None:
            return None
        import pynvml

        try:
            return len(pynvml.nvmlDeviceGetComputeRunningProcesses(self._gpu)) > 1
        except pynvml.NVMLError:  # not every driver tells
            return None

    def _now(self) -> dict[str, tuple[float, float]]:
        """Counter -> joules, and where it goes round."""
        found = {}
        if self._gpu is not None:
            import pynvml

            found["gpu"] = (pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu) / 1e3, float("inf"))
        for package in self._packages:
            most = float((package / "max_energy_range_uj").read_text()) / 1e6
            found[package.name] = (float((package / "energy_uj").read_text()) / 1e6, most)
        return found


def _gpu_counter(device: torch.device) -> object | None:
    """The card's handle if it counts energy (Volta and later do).

    By its own name: where CUDA_VISIBLE_DEVICES hides some cards, torch and the driver number them differently.
    """
    import pynvml
    import torch

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError:
        return None
    return handle  # type: ignore[no-any-return]


def _packages() -> list[Path]:
    """RAPL's whole-processor domains that this user may read: most systems keep them for root."""
    found = []
    for folder in sorted(RAPL.glob("intel-rapl:[0-9]")):
        try:
            (folder / "energy_uj").read_text()
        except OSError:
            continue
        found.append(folder)
    return found
