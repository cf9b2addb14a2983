"""IPMI: what the board's management controller says of the power of all of the machine (DCMI)."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Self

from fathom.core.energy import BOARD, POWER, Reading
from fathom.machine.meter import Meter, Target
from fathom.machine.meters._command import Repeated

DEVICES = (Path("/dev/ipmi0"), Path("/dev/ipmi/0"), Path("/dev/ipmidev/0"))
PERIOD_S = 1.0  # controllers renew the reading about once a second, and are slow to answer
TIMEOUT_S = 10.0
INSTANT = re.compile(r"Instantaneous power reading:\s*(\d+)\s*Watts")


class Ipmi(Meter):
    label: ClassVar = "IPMI DCMI"
    kind = POWER

    def __init__(self) -> None:
        self.scope = BOARD
        self._command = Repeated(["ipmitool", "dcmi", "power", "reading"], PERIOD_S, TIMEOUT_S)

    @classmethod
    def find(cls, target: Target) -> Sequence[Self]:
        return [cls()] if _device(os.R_OK | os.W_OK) and shutil.which("ipmitool") else []

    @classmethod
    def hint(cls, target: Target) -> str | None:
        device = _device(os.F_OK)
        if device is None or cls.find(target):
            return None
        missing = f"access to {device}" if shutil.which("ipmitool") else "the command ipmitool"
        return f"power of the board: {missing} is missing"

    def read(self) -> Reading:
        """Nothing between two answers. 0 W is what a controller says that has no sensor."""
        answer = self._command.answer()
        if answer is None:
            return Reading()
        found = INSTANT.search(answer)
        if not found or not int(found[1]):
            raise OSError("the management controller shows no power")
        return Reading(watts=float(found[1]))

    def close(self) -> None:
        self._command.close()


def _device(access: int) -> Path | None:
    return next((device for device in DEVICES if os.access(device, access)), None)
