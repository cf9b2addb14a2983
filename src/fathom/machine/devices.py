"""Which device and which arithmetic a run uses, checked before anything is built."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from fathom.core.errors import DeviceError


def resolve(name: str, precision: str | None = "fp32") -> torch.device:
    """The torch device for a name; "auto" is the first accelerator, or the CPU."""
    device = _named(_first() if name == "auto" else name)
    if precision == "tf32" and not _has_tf32(device):
        raise DeviceError(f"precision tf32 needs an NVIDIA GPU of compute capability 8.0 or later, not {device}")
    return device


def _first() -> str:
    """By its full name, so that what was run on "auto" and on "cuda" is one thing in every record."""
    cpu, *accelerators = available()
    return accelerators[0] if accelerators else cpu


def _named(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"no device {name!r}; there are: {', '.join(available())}") from None
    if device.type == "cpu":
        return torch.device("cpu")
    present = available()
    exact = f"{device.type}:{device.index or 0}"
    if exact not in present:
        raise DeviceError(f"device {name!r} is not on this machine; there are: {', '.join(present)}")
    return torch.device(exact)  # so that "cuda" and "cuda:0" are one device in every record


def wake(device: torch.device) -> None:
    """The first touch of an accelerator, which makes its context and is paid once by every program."""
    if device.type != "cpu":
        torch.zeros(1, device=device)
        torch.accelerator.synchronize(device)


def available() -> list[str]:
    """The devices of this machine, as names that resolve() takes."""
    found = ["cpu"]
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        assert kind is not None
        found += [f"{kind.type}:{index}" for index in range(torch.accelerator.device_count())]
    return found


def _has_tf32(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


class ProcessSettings(AbstractContextManager[None]):
    """torch's switches for a run, its threads and its random state; all are put back at the end.

    fp32 means every product in full single precision: torch would quietly use tf32 in convolutions. This is no
    generator, as one that is forgotten puts things back when it is collected: in the middle of another session's run.
    """

    def __init__(self, device: torch.device, precision: str | None, algorithms: int) -> None:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        self._device = device
        self._switches: list[tuple[Any, str, Any]] = [
            (matmul, "allow_tf32", precision == "tf32"),
            (cudnn, "allow_tf32", precision == "tf32"),
            (cudnn, "benchmark", True),  # shapes never change here: let cuDNN try its algorithms once
            (cudnn, "benchmark_limit", algorithms),
        ]

    def __enter__(self) -> None:
        self._before = [(owner, name, getattr(owner, name)) for owner, name, _ in self._switches]
        self._threads, self._random = torch.get_num_threads(), torch.get_rng_state()
        self._random_gpu = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        self._current = torch.cuda.current_device() if self._device.type == "cuda" else None
        if self._current is not None:
            torch.cuda.set_device(self._device)  # events are recorded on the current device, whatever theirs is
        self._set(self._switches)

    def __exit__(self, *_: object) -> None:
        self._set(self._before)
        torch.set_num_threads(self._threads)
        torch.set_rng_state(self._random)
        if self._random_gpu is not None:
            torch.cuda.set_rng_state(self._random_gpu, self._device)
        if self._current is not None:
            torch.cuda.set_device(self._current)

    @staticmethod
    def _set(switches: list[tuple[Any, str, Any]]) -> None:
        for owner, name, value in switches:
            setattr(owner, name, value)
