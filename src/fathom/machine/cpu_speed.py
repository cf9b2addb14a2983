"""How fast a core is right now, by a fixed loop, and the fastest that this machine has shown.

A program on the other thread of the same physical core, another virtual machine there, or a lowered clock slows a run
down, and no counter of the system shows it.
"""

from __future__ import annotations

import contextlib
import json
import platform
import time
from pathlib import Path

from fathom.core.files import cache_path, replace_whole
from fathom.machine.host import cpu_name

ADDITIONS = 5000  # 0.1 to 0.3 ms: shorter than a time slice
LOOPS = 16
PLAUSIBLE = 10  # times: nothing but a damaged file makes a machine so much slower than it was


def loop_s(loops: int = LOOPS) -> float:
    """Seconds of a fixed loop on the core that this thread is on: the lower quartile, as an interruption only adds."""
    return sorted(_timed() for _ in range(loops))[loops // 4]


def _timed() -> float:
    begun, total = time.perf_counter(), 0
    for number in range(ADDITIONS):
        total += number
    return time.perf_counter() - begun


def fastest_s(seen_s: float) -> float:
    """The least that the loop took on this machine, now or in any earlier run that could write it down."""
    path = _kept_at()
    if path is None:
        return seen_s
    try:
        earlier_s = float(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        earlier_s = 0.0
    if seen_s / PLAUSIBLE < earlier_s <= seen_s:
        return earlier_s
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, json.dumps(seen_s))
    return seen_s


def _kept_at() -> Path | None:
    """One file for each CPU and Python: another one's loop takes another time."""
    named = "-".join((platform.node(), cpu_name(), platform.python_version()))
    return cache_path(f"cpu-speed-{''.join(letter if letter.isalnum() else '-' for letter in named)}.json")
