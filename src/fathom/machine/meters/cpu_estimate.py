"""The power of the CPU where nothing meters it: a guess from its utilisation, made only where a guess is asked for.

P = TDP x a share that rises with the utilisation of the cores. The shares (CURVE) are those of Davy, Building an AWS
EC2 Carbon Emissions Dataset (Teads Engineering, 2021): package power by RAPL over TDP, of servers with Intel Xeons. TDP
is by the processor's model, from Intel ARK ("TDP" or "processor base power") and AMD's product pages ("default TDP").
Memory, fans and power supplies are not in it. Such a guess may be off by half of its value: its kind, "estimate",
stands beside every number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar, Self

import psutil

from fathom.core.energy import ESTIMATE, Reading
from fathom.core.errors import BadOption
from fathom.machine.host import cpu_name
from fathom.machine.meter import Meter, Target

CURVE = ((0.0, 0.12), (0.1, 0.32), (0.5, 0.75), (1.0, 1.02))  # utilisation -> power over TDP; linear in between
VARIABLE = "FATHOM_CPU_TDP_W"  # watts of all processors of the machine together
TDP_W = {  # a model's whole name -> watts and cores of one processor
    r"E5-2680 v4": (120, 14),
    r"E5-2686 v4": (145, 18),  # made for a cloud provider and not in ARK, as are 8375C and 8480C
    r"E5-2690 v4": (135, 14),
    r"Gold 6130": (125, 16),
    r"Gold 6230": (125, 20),
    r"Gold 6230R": (150, 26),
    r"Gold 6248": (150, 20),
    r"Gold 6248R": (205, 24),
    r"Gold 6330": (205, 28),
    r"Platinum 8168": (205, 24),
    r"Platinum 8280L?": (205, 28),
    r"Platinum 8358": (250, 32),
    r"Platinum 8358P": (240, 32),
    r"Platinum 8375C": (300, 32),
    r"Platinum 8380": (270, 40),
    r"Platinum 8468": (350, 48),
    r"Platinum 8468V": (330, 48),
    r"Platinum 8480(\+|CL?)": (350, 56),
    r"Platinum 8558": (330, 48),
    r"Platinum 8558P": (350, 48),
    r"Platinum 8558U": (300, 48),
    r"Platinum 8592\+": (350, 64),
    r"i7-12700KF?": (125, 12),
    r"i9-13900KF?": (125, 24),
    r"i9-13900KS": (150, 24),
    r"i9-14900KF?": (125, 24),
    r"i9-14900KS": (150, 24),
    r"EPYC 7302P?": (155, 16),
    r"EPYC 7402P?": (180, 24),
    r"EPYC 7452": (155, 32),
    r"EPYC 7543P?": (225, 32),
    r"EPYC 7702P?": (200, 64),
    r"EPYC 7713P?": (225, 64),
    r"EPYC 7742": (225, 64),
    r"EPYC 7763": (280, 64),
    r"EPYC 9354P?": (280, 32),
    r"EPYC 9454P?": (290, 48),
    r"EPYC 9554P?": (360, 64),
    r"EPYC 9654P?": (360, 96),
    r"Ryzen 9 5950X": (105, 16),
    r"Ryzen 9 7950X": (170, 16),
    r"Ryzen 9 7950X3D": (120, 16),
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
        return Reading(watts=self._tdp_w * over_tdp(min(1.0, max(0.0, busy / total))))


def over_tdp(utilisation: float) -> float:
    """Power over TDP, from none to all hardware threads in use."""
    (begin, low), (end, high) = next((one, two) for one, two in pairwise(CURVE) if utilisation <= two[0])
    return low + (high - low) * (utilisation - begin) / (end - begin)


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
    known, cores = _known(cpu_name()), psutil.cpu_count(logical=False)
    return None if known is None or not cores else known[0] * cores / known[1]


def _known(processor: str) -> tuple[int, int] | None:
    """By the whole model number, as a 6248R is no 6248; systems write names in capitals or not."""
    for name, values in TDP_W.items():
        if re.search(rf"(?<!\w){name}(?![\w+])", processor, re.IGNORECASE):
            return values
    return None


def _times() -> tuple[float, float]:
    """Busy and all CPU seconds of all cores so far."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # both are in user and nice
    return total - idle, total
