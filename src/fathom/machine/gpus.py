"""The NVIDIA GPUs of this machine, as their driver describes them; nothing here needs special rights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fathom.core.fingerprint import Gpu

if TYPE_CHECKING:
    import torch


def gpus() -> list[Gpu]:
    """Every NVIDIA GPU as its driver describes it; none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu:
    try:
        handle, driver = nvml.nvmlDeviceGetHandleByIndex(index), nvml.nvmlSystemGetDriverVersion()
    except nvml.NVMLError:  # lost, or not ours: the cards behind it keep their numbers
        return Gpu()

    def ask(question: str, *arguments: Any) -> Any:
        """A card that does not answer a question says so with an error; that is an absent value, not a fault."""
        try:
            return getattr(nvml, question)(handle, *arguments)
        except nvml.NVMLError:
            return None

    memory = ask("nvmlDeviceGetMemoryInfo")
    power_limit = ask("nvmlDeviceGetPowerManagementLimit")
    return Gpu(
        name=ask("nvmlDeviceGetName"),
        uuid=ask("nvmlDeviceGetUUID"),
        memory_bytes=memory.total if memory else None,
        driver=driver,
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        power_limit_w=None if power_limit is None else power_limit / 1000,
        temperature_c=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        throttle_reasons=ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
    )


def gpu_uuid(device: torch.device) -> str | None:
    """The card behind a torch device, by the name that the driver has for it too.

    Where CUDA_VISIBLE_DEVICES hides some cards, torch and the driver number them differently.
    """
    if device.type != "cuda":
        return None
    import torch

    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def gpu_handle(device: torch.device) -> Any | None:
    """The driver's handle of the card behind a torch device; None without one."""
    import pynvml

    uuid = gpu_uuid(device)
    if uuid is None:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError:
        return None


def gpu_shared(device: torch.device) -> bool | None:
    """Whether other programs are on the GPU right now; None where that is not known."""
    import pynvml

    handle = gpu_handle(device)
    if handle is None:
        return None
    try:
        programs = len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError:  # not every driver knows
        return None
    try:  # NVIDIA's Multi-Process Service: its clients are listed apart, and of the programs one is its server
        clients = len(pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle))
    except pynvml.NVMLError:
        clients = 0
    return programs + clients - bool(clients) > 1


def gpu_throttles(device: torch.device) -> int | None:
    """Why the GPU's clocks are lowered right now, as bits of THROTTLES; None where that is not known."""
    import pynvml

    handle = gpu_handle(device)
    try:
        return None if handle is None else int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    except pynvml.NVMLError:
        return None
