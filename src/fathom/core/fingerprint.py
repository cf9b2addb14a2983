"""What a record says of the machine it was made on, as types; None is "not known", never zero."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

THROTTLES = {  # the bits of Gpu.throttle_reasons, which NVML calls clock event reasons
    0x1: "idle",
    0x2: "application clocks setting",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks setting",
}


@dataclass(frozen=True, kw_only=True)
class Cpu:
    name: str
    logical_cores: int | None = None
    physical_cores: int | None = None
    affinity: list[int] | None = None  # the hardware threads that the process may use
    cores: list[int] | None = None  # the physical cores these are on
    nodes: list[int] | None = None  # of memory
    threads: int | None = None  # torch's intra-op threads
    interop_threads: int | None = None
    quota_cores: float | None = None  # a cgroup's CPU quota in cores; None without one
    governor: str | None = None
    smt: str | None = None
    clock_mhz: float | None = None  # at the end of the run
    microcode: str | None = None
    load_average: list[float] | None = None  # of 1, 5 and 15 minutes, at the end of the run

    @property
    def quota_notes(self) -> list[str]:
        """That the CPU quota is below the threads in use, where it is."""
        if self.quota_cores is None or self.threads is None or self.quota_cores >= self.threads:
            return []
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        cores = f"{self.quota_cores:g} core{'' if self.quota_cores == 1 else 's'}"
        return [f"CPU quota of {cores}, {threads} used: steps are stopped at times, and items/s count that time"]

    @property
    def usable(self) -> int:
        """Hardware threads that the process may use."""
        return len(self.affinity or []) or self.logical_cores or 1

    @property
    def label(self) -> str:
        """Neoverse-N1, 2 cores"""
        return f"{self.name}, {self.usable} core{'' if self.usable == 1 else 's'}"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    name: str | None = None
    uuid: str | None = None  # tells cards apart, whatever order a library lists them in
    memory_bytes: int | None = None
    driver: str | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    memory_clock_mhz: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: int | None = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    cpu: Cpu
    memory_bytes: int | None = None
    gpus: list[Gpu] = field(default_factory=list)
    system: str | None = None
    container: str | None = None  # docker, podman, lxc, kubernetes, ...; None where none is seen
    boot_time: str | None = None
    host_id: str | None = None  # of this installation of the system, hashed; in a container of the host's last boot
    python: str | None = None
    libraries: dict[str, str | None] = field(default_factory=dict)
    blas: str | None = None  # what torch was built with
    cudnn: str | None = None
    environment: dict[str, str] = field(default_factory=dict)  # variables that change how fast a program runs
    commit: str | None = None

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for runs on one machine and different for two, even where their processors have the same name.

        Only what stays: load, clocks, temperatures, versions, the kernel and the cores of a binding vary from run to
        run, and a run on the CPU does not list the GPUs. Memory is in whole GiB, as kernels reserve more or less of it.
        """
        memory_gib = None if self.memory_bytes is None else round(self.memory_bytes / 2**30)
        architecture = self.system.rpartition(" ")[2] if self.system else None
        cpu = self.cpu
        return cpu.name, cpu.logical_cores, cpu.physical_cores, memory_gib, architecture, self.host_id

    @property
    def digest(self) -> str:
        """The identity in twelve hex digits, for the names of files."""
        return hashlib.sha256(repr(self.identity).encode()).hexdigest()[:12]

    def gpu(self, uuid: str | None, device: str) -> Gpu | None:
        """The card that a run used: by its UUID, or where a record has none, by the number in the device's name."""
        for gpu in self.gpus:
            if uuid is not None and gpu.uuid == uuid:
                return gpu
        index = int(number) if (number := device.partition(":")[2]).isdecimal() else 0
        return self.gpus[index] if index < len(self.gpus) else next(iter(self.gpus), None)
