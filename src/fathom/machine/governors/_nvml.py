"""What the governors of NVIDIA GPUs share: a card by its UUID, and the driver's refusals as errors of ours."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

from fathom.core.errors import CappingError, NotPermitted, NotSupported, OutOfRange
from fathom.machine.governor import Governor
from fathom.machine.meter import Target

NEEDS_ROOT = "NVML takes changes from root alone"


@contextlib.contextmanager
def refusals(scope: str) -> Iterator[None]:
    """Within it, an error of the driver becomes one line about this part, typed by its cause."""
    import pynvml

    kinds: dict[int, type[CappingError]] = {
        pynvml.NVML_ERROR_NO_PERMISSION: NotPermitted,
        pynvml.NVML_ERROR_NOT_SUPPORTED: NotSupported,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NotSupported,  # an older driver
        pynvml.NVML_ERROR_INVALID_ARGUMENT: OutOfRange,
    }
    try:
        yield
    except pynvml.NVMLError as error:
        kind = kinds.get(error.value, CappingError)
        hint = f" ({NEEDS_ROOT})" if kind is NotPermitted else ""
        raise kind(f"{scope}: the driver refuses: {error}{hint}") from None


def card(uuid: str) -> Any:
    """The driver's handle, asked for anew each time: one from before a card was lost and came back is dead."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(uuid)


def scope_of(uuid: str) -> str | None:
    """ "GPU 0"; None where the driver has no such card, or is not there."""
    import pynvml

    try:
        return f"GPU {pynvml.nvmlDeviceGetIndex(card(uuid))}"
    except pynvml.NVMLError:
        return None


class NvmlGovernor(Governor):
    """A setting of one card, which is found by its UUID."""

    def __init__(self, uuid: str, scope: str) -> None:
        self.part, self.scope = uuid, scope

    @classmethod
    def find(cls, target: Target) -> Sequence[Self]:
        return [cls(uuid, scope) for uuid in target.gpu_uuids if (scope := scope_of(uuid)) is not None]

    @classmethod
    def at(cls, part: str) -> Self:
        return cls(part, scope_of(part) or part)

    def obstacle(self) -> str | None:
        return None if os.geteuid() == 0 else NEEDS_ROOT
