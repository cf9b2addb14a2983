"""What can be refused before a worker is started, from names alone: loading torch to find out would take seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fathom.core import plugins
from fathom.core.errors import BadOption, DeviceError, FathomError, UnknownName, shortened
from fathom.core.spec import SEPARATOR, RunSpec
from fathom.machine.host import usable_cores
from fathom.workloads import catalogue

THREADS_PER_CORE = 64
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia")  # kinds that torch knows by itself


def check(spec: RunSpec) -> None:
    """Raises what the worker would refuse, as far as names tell; the machine itself is not looked at."""
    plugins.check("workloads", spec.workload)
    if not is_external(spec.workload) and (facts := facts_of(spec.workload)):
        if spec.preset not in facts["presets"]:
            raise UnknownName.among("preset", spec.preset, facts["presets"])
        for name, value in spec.options.items():
            catalogue.check_option(facts, name, value)
    for engine in spec.engine.split(SEPARATOR):
        plugins.check("engines", engine)
    check_device(spec.device, spec.precision)
    check_threads(spec.threads)


def check_threads(threads: int | None) -> None:
    """More threads than cores are sometimes wanted, to measure what that costs; many times more never are."""
    cores = usable_cores()
    most = THREADS_PER_CORE * cores
    if threads is not None and not 1 <= threads <= most:
        raise BadOption(f"threads must be 1 to {most} on {cores} cores, not {threads}")


def check_device(name: str, precision: str | None = "fp32") -> None:
    """Raises where torch could not have such a device, or the device not such a precision, or cannot be imported."""
    kind, colon, index = name.partition(":")
    third_party = kind.isidentifier() and bool(entry_points(group="torch.backends"))  # it may add a kind of its own
    if (kind != "auto" or colon) and (bool(colon) != index.isdecimal() or not (kind in DEVICES or third_party)):
        raise DeviceError(f"no device {shortened(name)!r}; there may be: auto, cpu, cuda, cuda:1, mps, xpu")
    if precision == "tf32" and kind not in ("auto", "cuda"):
        raise DeviceError(f"precision tf32 needs an NVIDIA GPU, not {name}")
    check_directory()


def present(device: str) -> str:
    """A device by its full name; raises where this machine does not have it."""
    check_device(device)
    if device.partition(":")[0] == "cpu":
        return "cpu"
    from fathom.machine.devices import resolve  # torch

    return str(resolve(device))


def present_or(devices: Sequence[str], most: int | None = None) -> list[str]:
    """These devices by their full names, each once; without any those of this machine, the first so many."""
    for device in devices:
        check_device(device)  # a name that is wrong is told before torch is loaded for another
    if found := list(dict.fromkeys(map(present, devices))):
        return found
    from fathom.machine.devices import available  # torch

    return available()[:most]


def check_directory() -> None:
    """Raises where the working directory was deleted: torch cannot be imported there, or MKL ends the process."""
    Path.cwd()


def check_external(specs: Iterable[RunSpec]) -> None:
    """Loads each workload that is not built in, and raises what is wrong with its name or preset.

    For many runs: a mistake is one error now rather than a failure of every run. A module that fails in another way is
    left to the runs, which record how.
    """
    for workload, preset in dict.fromkeys((spec.workload, spec.preset) for spec in specs):
        if is_external(workload):
            from fathom.workloads.base import workload_class  # torch

            try:
                workload_class(workload).configured(preset)
            except FathomError:
                raise
            except Exception:
                continue


def check_data(spec: RunSpec) -> None:
    """Makes the workload, and opens real data, once: what would be the failure of every run is one error now."""
    from fathom.engine.session import Session  # torch

    session = Session(spec)
    if spec.data is None:
        return
    source = session.open_data()
    if hasattr(source, "close"):
        source.close()


def facts_of(workload: str) -> dict[str, Any] | None:
    """What the catalogue says of a workload; None where its file cannot be loaded: its runs record why."""
    try:
        return catalogue.facts(workload)
    except FathomError:
        raise
    except Exception:
        return None


def is_external(workload: str) -> bool:
    """Named by `package.module:Class` or an entry point: only loading it tells what it is."""
    path = plugins.file_of("workloads", workload)
    return path is None or path.parent != catalogue.FOLDER
