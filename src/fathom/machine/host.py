"""This machine: its parts, versions and present state, as far as it can be seen without special rights."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    import torch

LIBRARIES = ("torch", "numpy", "pillow", "ale-py", "gymnasium")


def fingerprint(device: torch.device | None = None) -> dict[str, Any]:
    """What a record must carry so that its numbers can be understood later, elsewhere."""
    return {
        "cpu": cpu(),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus() if device is None or device.type == "cuda" else [],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "libraries": libraries(),
        "commit": commit(),
    }


def affinity() -> list[int] | None:
    """The cores this process may use; None where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


@dataclass(frozen=True)
class Cpu:
    """One hardware thread, as the system numbers it."""

    number: int
    core: int  # hardware threads with the same one share a core
    node: int  # of memory


def topology() -> list[Cpu]:
    """The hardware threads this process may use, with their cores and memory nodes; each its own where unknown."""
    numbers = affinity() or list(range(os.cpu_count() or 1))
    nodes = {number: node for node, members in _memory_nodes().items() for number in members}
    found = []
    for number in numbers:
        told = _first_line(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        found.append(Cpu(number, min(cpu_numbers(told)) if told else number, nodes.get(number, 0)))
    return found


def cpu_numbers(text: str) -> list[int]:
    """The system's way of writing a set of numbers: "0-3,8,10-11"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def usable_cores() -> int:
    return len(affinity() or []) or os.cpu_count() or 1


def cpu() -> dict[str, Any]:
    return {
        "name": _cpu_name(),
        "logical_cores": psutil.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False),
        "affinity": affinity(),
        "cores": sorted({cpu.core for cpu in topology()}),
        "nodes": sorted({cpu.node for cpu in topology()}),
        "threads": _torch_threads(),
        "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "smt": _first_line("/sys/devices/system/cpu/smt/control"),
        "clock_mhz": frequency.current if (frequency := _frequency()) else None,
    }


def gpus() -> list[dict[str, Any]]:
    """Every NVIDIA GPU as its driver describes it; none where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def libraries() -> dict[str, str | None]:
    """The versions installed; None for what is not."""
    return {name: _version(name) for name in LIBRARIES}


def commit() -> str | None:
    """The commit of the checkout this package is run from, where it is one."""
    here = Path(__file__).parent
    try:
        command = ["git", "-C", str(here), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: str, *arguments: Any) -> Any:
        """A card that does not answer a question says so with an error; that is an absent value, not a fault."""
        try:
            return getattr(nvml, question)(handle, *arguments)
        except nvml.NVMLError:
            return None

    memory = ask("nvmlDeviceGetMemoryInfo")
    power_limit = ask("nvmlDeviceGetPowerManagementLimit")
    return {
        "name": ask("nvmlDeviceGetName"),
        "memory_bytes": memory.total if memory else None,
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        "sm_clock_max_mhz": ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        "power_limit_w": None if power_limit is None else power_limit / 1000,
        "temperature_c": ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": ask("nvmlDeviceGetCurrentClocksThrottleReasons"),
    }


def _memory_nodes() -> dict[int, list[int]]:
    """Memory node -> the hardware threads near it."""
    folders = Path("/sys/devices/system/node").glob("node[0-9]*")
    lists = {int(folder.name.removeprefix("node")): _first_line(str(folder / "cpulist")) for folder in folders}
    return {node: cpu_numbers(told) for node, told in lists.items() if told}


def _cpu_name() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    try:  # ARM kernels give numbers there; lscpu knows their names
        told = subprocess.run(["lscpu"], capture_output=True, text=True, timeout=10, check=True).stdout
        for line in told.splitlines():
            if line.startswith("Model name"):
                return line.split(":", 1)[1].strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return platform.processor() or platform.machine()


def _torch_threads() -> int | None:
    """Only if torch is loaded already: a look at the machine must not cost an import of seconds."""
    import sys

    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch else None


def _frequency() -> Any:
    try:
        return psutil.cpu_freq()
    except (OSError, NotImplementedError):
        return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _first_line(path: str) -> str | None:
    return next(iter(_lines(path)), None)
