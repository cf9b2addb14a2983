"""What tests of energy share: meters by formula, a sampler's samples by hand, and a package that brings a meter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fathom.core import plugins
from fathom.core.energy import COUNTER
from fathom.machine.sampler import COLUMNS, Samples, _Head, _Sample

Curve = Callable[[float], float | None]  # of time


def nothing(at: float) -> None:
    return None


def samples(
    moments: Sequence[float],
    *,
    joules: Curve = nothing,
    watts: Curve = nothing,
    kind: str = COUNTER,
    scope: str = "GPU 0",
    period_s: float = 0.05,
) -> Samples:
    """What one meter showed at these moments; where a curve gives nothing at all, the meter failed."""
    lines = []
    for at in moments:
        shown = {"joules": joules(at), "watts": watts(at)}
        row = [shown.get(name) for name in COLUMNS]
        lines.append(_Sample(at, [row if any(value is not None for value in row) else []], cpu_s=0.001 * at))
    return Samples(_Head([("a meter", scope, kind)]), lines, period_s)


def every(period_s: float, until: float, begin: float = 0.0) -> list[float]:
    return [begin + period_s * number for number in range(round((until - begin) / period_s) + 1)]


def renewed(counter: Callable[[float], float], updates: Sequence[float]) -> Callable[[float], float]:
    """A counter that shows only what it had at its last update."""

    def shown(at: float) -> float:
        return counter(max((update for update in updates if update <= at), default=0.0))

    return shown


def install_meter(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """A package with a meter, as pip leaves it: found here and by every process that is started from here.

    Entry points are cached: who calls this clears plugins._installed when the package is gone again.
    """
    (folder / "wall_plug.py").write_text(source)
    information = folder / "wall_plug-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: wall-plug\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[fathom.meters]\nplug = wall_plug:Plug\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    plugins._installed.cache_clear()


PLUG = '''
import os, time
from pathlib import Path
from fathom.core.energy import Reading
from fathom.machine.meter import Meter

class Plug(Meter):
    """100 W since the machine was started; lost as soon as the file LOST is there."""

    label = "wall plug"

    def __init__(self):
        self.scope = "GPU 9"

    @classmethod
    def find(cls, target):
        return [cls()]

    def read(self):
        if os.path.exists(os.environ.get("LOST", "")):
            raise OSError("lost")
        return Reading(joules=100.0 * time.monotonic(), watts=100.0)
'''
