"""This machine: its parts, versions and present state, as far as it can be seen without special rights."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from fathom.core.fingerprint import Cpu, Machine
from fathom.core.record import COMPILED_ANEW
from fathom.machine.gpus import gpus

if TYPE_CHECKING:
    import torch

LIBRARIES = ("torch", "numpy", "pillow", "simplejpeg", "ale-py", "gymnasium")
_CPU_FOLDERS = ("cpu", "cpu,cpuacct", "cpuacct,cpu")  # where version 1 of control groups is mounted
VARIABLES = (
    "OMP_",
    "KMP_",
    "MKL_",
    "GOMP_",
    "OPENBLAS_",
    "CUDA_",
    "CUBLAS_",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_",
    "TORCH_",
)
"""Environment variables that begin like this change how fast a program runs."""


def _told(value: str) -> str:
    """Of a path its last part: where a folder is on this machine means nothing elsewhere."""
    return Path(value).name if value.startswith("/") and os.pathsep not in value else value


def fingerprint(device: torch.device | None = None) -> Machine:
    """What a record must carry so that its numbers can be understood later, elsewhere."""
    return Machine(
        cpu=cpu(),
        memory_bytes=psutil.virtual_memory().total,
        gpus=gpus() if device is None or device.type == "cuda" else [],
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        container=_container(),
        boot_time=datetime.fromtimestamp(psutil.boot_time(), UTC).isoformat(timespec="seconds"),
        host_id=host_id(),
        python=platform.python_version(),
        libraries=libraries(),
        blas=_blas(),
        cudnn=_cudnn(),
        environment={name: _told(value) for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)},
        commit=commit(),
    )


def import_notes() -> list[str]:
    """Under PYTHONDONTWRITEBYTECODE, or in a folder that cannot be written, each start compiles what it imports."""
    spec = importlib.util.find_spec("torch")
    return [COMPILED_ANEW] if spec and spec.cached and not Path(spec.cached).exists() else []


def host_id(root: Path = Path("/"), container: str | None = None) -> str | None:
    """What tells this machine from another of the same make, hashed, so that records disclose nothing; None if unknown.

    systemd's machine id is kept over restarts. A container has none, or the one of its image: there it is the kernel's
    boot id, which all containers of a host share.
    """
    contained = _container() if container is None else container
    source = "proc/sys/kernel/random/boot_id" if contained else "etc/machine-id"
    text = (_first_line(str(root / source)) or "").strip()
    known = bool(text) and text != "uninitialized"  # as images say before their first boot
    return hashlib.sha256(f"fathom {text}".encode()).hexdigest()[:12] if known else None


def boot_id(root: Path = Path("/")) -> str | None:
    """Of the running kernel, hashed: equal on one machine until it restarts, in its containers, too; None if unknown.

    Machines that were installed from one image may share a machine id, and never this one.
    """
    text = (_first_line(str(root / "proc/sys/kernel/random/boot_id")) or "").strip()
    return hashlib.sha256(f"fathom {text}".encode()).hexdigest()[:12] if text else None


def affinity() -> list[int] | None:
    """The cores this process may use; None where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


@dataclass(frozen=True)
class HardwareThread:
    """One hardware thread, as the system numbers it."""

    number: int
    core: int  # hardware threads with the same one share a core
    node: int  # of memory


def topology() -> list[HardwareThread]:
    """The hardware threads this process may use, with their cores and memory nodes; each its own where unknown."""
    numbers = affinity() or list(range(os.cpu_count() or 1))
    nodes = {number: node for node, members in _memory_nodes().items() for number in members}
    found = []
    for number in numbers:
        text = _first_line(f"/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list")
        found.append(HardwareThread(number, min(cpu_numbers(text)) if text else number, nodes.get(number, 0)))
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


def cpu() -> Cpu:
    here, threads = topology(), _torch_threads()
    return Cpu(
        name=cpu_name(),
        logical_cores=psutil.cpu_count(),
        physical_cores=psutil.cpu_count(logical=False),
        affinity=affinity(),
        cores=sorted({each.core for each in here}),
        nodes=sorted({each.node for each in here}),
        threads=threads and threads[0],
        interop_threads=threads and threads[1],
        quota_cores=quota_cores(),
        governor=_first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        smt=_first_line("/sys/devices/system/cpu/smt/control"),
        clock_mhz=frequency.current if (frequency := _frequency()) else None,
        microcode=_microcode(),
        load_average=list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    )


def quota_cores(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """The CPU time that control groups allow this process, in cores: the least of all that it is below."""
    quotas = []
    for folder in cgroup_folders(root, own):
        words = (_first_line(str(folder / "cpu.max")) or "").split() or [  # of version 2, or two files of version 1
            _first_line(str(folder / f"cpu.cfs_{name}_us")) or "-1" for name in ("quota", "period")
        ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def cgroup_folders(root: Path, own: Path) -> list[Path]:
    """The control groups that rule this process's CPU time, of version 1 and 2, each with those above it."""
    found = []
    for line in _lines(str(own)):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            found += _upwards(root, path) + _upwards(root / "unified", path)
        elif "cpu" in controllers.split(","):
            names = (controllers, *_CPU_FOLDERS)  # the kernel and the system may name the same in another order
            found += [folder for name in dict.fromkeys(names) for folder in _upwards(root / name, path)]
    return found


def _upwards(base: Path, path: str) -> list[Path]:
    """The group's folder and those above it; in a container, whose own root is mounted there, only the base exists."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def devices_expected() -> list[str]:
    """The devices that torch should see, from its build and the driver alone: importing torch takes seconds."""
    found = ["cpu"]
    spec = importlib.util.find_spec("torch")
    version = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    built = version.read_text(errors="replace") if version and version.is_file() else ""
    if re.search(r"^cuda\b.*= '", built, re.MULTILINE):
        found += [f"cuda:{index}" for index in range(len(gpus()))]
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        found.append("mps:0")
    return found


def libraries() -> dict[str, str | None]:
    """The versions installed; None for what is not."""
    return {name: _version(name) for name in LIBRARIES}


def commit() -> str | None:
    """The commit of the checkout this package is run from, where it is one; "+changes" where files differ from it."""
    here = Path(__file__).parent
    try:
        command = ["git", "-C", str(here), "describe", "--always", "--exclude=*", "--dirty=+changes"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _memory_nodes() -> dict[int, list[int]]:
    """Memory node -> the hardware threads near it."""
    folders = Path("/sys/devices/system/node").glob("node[0-9]*")
    lists = {int(folder.name.removeprefix("node")): _first_line(str(folder / "cpulist")) for folder in folders}
    return {node: cpu_numbers(text) for node, text in lists.items() if text}


def cpu_name() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    try:  # ARM kernels give numbers there; lscpu knows their names
        text = subprocess.run(["lscpu"], capture_output=True, text=True, timeout=10, check=True).stdout
        for line in text.splitlines():
            if line.startswith("Model name"):
                return line.split(":", 1)[1].strip()
    except (OSError, subprocess.SubprocessError):
        pass
    return platform.processor() or platform.machine()


def has_bf16() -> bool | None:
    """Whether the CPU has instructions for bf16, without which torch computes it in other steps; None: not known."""
    named = [line for line in _lines("/proc/cpuinfo") if line.lower().startswith(("flags", "features"))]
    return any("bf16" in line for line in named) if named else None


def _loaded_torch() -> Any:
    """torch if it is loaded already: a look at the machine must not cost an import of seconds."""
    return sys.modules.get("torch")


def _torch_threads() -> tuple[int, int] | None:
    torch = _loaded_torch()
    return (torch.get_num_threads(), torch.get_num_interop_threads()) if torch else None


def _blas() -> str | None:
    """What torch multiplies matrices with on a CPU."""
    torch = _loaded_torch()
    found = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show()) if torch else None
    return found[1] if found else None


def _cudnn() -> str | None:
    torch = _loaded_torch()
    version = torch.backends.cudnn.version() if torch and torch.version.cuda else None
    return None if version is None else str(version)


def _microcode() -> str | None:
    return next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("microcode")), None
    )


def _container() -> str | None:
    """The kind of container that this process runs in, as far as it shows."""
    if named := os.environ.get("container"):  # noqa: SIM112  systemd-nspawn, podman and lxc set it
        return named
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    marks = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
    return next((kind for path, kind in marks.items() if Path(path).exists()), None)


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
