"""The power of the CPU where nothing meters it: a guess from its utilisation, made only where a guess is asked for.

P = idle + (TDP - idle) x utilisation of the cores, the linear model of Fan, Weber and Barroso (ISCA 2007). TDP, the
heat a processor is built to shed, stands for its power when busy; idle is taken as IDLE of it. Memory, fans and power
supplies are not in it. Such a guess may be off by half of its value: its kind, "estimate", stands beside every number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import ClassVar, Self

import psutil

from fathom.core.energy import ESTIMATE, Reading
from fathom.core.errors import BadOption
from fathom.machine.host import cpu_name
from fathom.machine.meter import Meter, Target

IDLE = 0.3  # of the TDP
VARIABLE = "FATHOM_CPU_TDP_W"  # watts of all processors of the machine together
TDP_W = {  # in the name -> watts and cores of one processor; Intel ARK and AMD's product pages
    r"Xeon.* E5-2680 v4": (120, 14),
    r"Xeon.* E5-2686 v4": (145, 18),
    r"Xeon.* E5-2690 v4": (135, 14),
    r"Xeon.* Gold 6130": (125, 16),
    r"Xeon.* Gold 6230": (125, 20),
    r"Xeon.* Gold 6248": (150, 20),
    r"Xeon.* Gold 6330": (205, 28),
    r"Xeon.* Platinum 8168": (205, 24),
    r"Xeon.* Platinum 8280": (205, 28),
    r"Xeon.* Platinum 8358": (250, 32),
    r"Xeon.* Platinum 8375C": (300, 32),
    r"Xeon.* Platinum 8380": (270, 40),
    r"Xeon.* Platinum 8468": (350, 48),
    r"Xeon.* Platinum 8480": (350, 56),
    r"Xeon.* Platinum 8558": (330, 48),
    r"Xeon.* Platinum 8592": (350, 64),
    r"i7-12700K": (125, 12),
    r"i9-13900K": (125, 24),
    r"i9-14900K": (125, 24),
    r"EPYC 7302": (155, 16),
    r"EPYC 7402": (180, 24),
    r"EPYC 7452": (155, 32),
    r"EPYC 7543": (225, 32),
    r"EPYC 7702": (200, 64),
    r"EPYC 7713": (225, 64),
    r"EPYC 7742": (225, 64),
    r"EPYC 7763": (280, 64),
    r"EPYC 9354": (280, 32),
    r"EPYC 9454": (290, 48),
    r"EPYC 9554": (360, 64),
    r"EPYC 9654": (360, 96),
    r"Ryzen 9 5950X": (105, 16),
    r"Ryzen 9 7950X": (170, 16),
    r"Ryzen Threadripper 3970X": (280, 32),
    r"Ryzen Threadripper PRO 5995WX": (280, 64),
}


class CpuEstimate(Meter):
    label: ClassVar = "estimate from CPU utilisation"
    kind = ESTIMATE

    def __init__(self, tdp_w: float) -> None:
        self.scope, self._tdp_w = "CPU", tdp_w
        self._before = _times()

    @classmethod
    def find(cls, target: Target) -> Sequence[Self]:
        watts = tdp_w()
        return [] if watts is None else [cls(watts)]

    @classmethod
    def hint(cls, target: Target) -> str | None:
        if not target.estimates or tdp_w() is not None:
            return None
        return f"an estimate of CPU power: the TDP of {cpu_name()} is not known; give it in {VARIABLE}"

    def read(self) -> Reading:
        """Over the time since the last reading; nothing where no clock tick has passed."""
        now = _times()
        busy, total = now[0] - self._before[0], now[1] - self._before[1]
        if total <= 0:
            return Reading()
        self._before = now
        utilisation = min(1.0, max(0.0, busy / total))
        return Reading(watts=self._tdp_w * (IDLE + (1 - IDLE) * utilisation))


def tdp_w() -> float | None:
    """Of all processors together: what the user says, else by name and cores; None where it is not known.

    Of a virtual machine with some of a processor's cores it is their part.
    """
    given = os.environ.get(VARIABLE)
    if given is not None:
        try:
            watts = float(given)
        except ValueError:
            watts = 0.0
        if not 0 < watts < float("inf"):
            raise BadOption(f"{VARIABLE} takes watts, such as 270, not {given!r}")
        return watts
    known = next((values for name, values in TDP_W.items() if re.search(name, cpu_name())), None)
    cores = psutil.cpu_count(logical=False)
    return None if known is None or not cores else known[0] * cores / known[1]


def _times() -> tuple[float, float]:
    """Busy and all CPU seconds of all cores so far."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # both are in user and nice
    return total - idle, total
