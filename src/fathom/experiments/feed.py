"""Feeding the device: one workload in several ways of feeding, each run in a process of its own.

Axes are swept one at a time, not multiplied: workers at the usual prefetch depth and copies, then prefetch depth, then
copies, both with the most workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fathom.core.errors import BadOption
from fathom.core.feeding import Feeding
from fathom.core.spec import RunSpec
from fathom.experiments.checks import facts_of
from fathom.experiments.study import powers_of_two
from fathom.machine.host import usable_cores

PREFETCH = 4  # batches a worker reads ahead while the number of workers is swept; what a run does by default
DEPTHS = (1, 2, 4)
COPIES = {  # name -> pinned, overlapped
    "pageable": (False, False),
    "pinned": (True, False),
    "pageable-overlapped": (False, True),
    "pinned-overlapped": (True, True),
}
WORKERS_PER_CORE = 8  # at most: more of them only wait for each other


def default_workers(most: int | None = None) -> list[int]:
    """0, 1, 2, 4, ... and as many as there are cores."""
    return [0, *powers_of_two(most or usable_cores())]


def plan(
    base: RunSpec, workers: Sequence[int], prefetch: Sequence[int], copies: Sequence[str], *, cuda: bool
) -> list[RunSpec]:
    """The base as its data is usually fed, and each way of feeding once; on a CPU nothing is copied."""
    most = max(workers)
    if most > (limit := WORKERS_PER_CORE * usable_cores()) or min(workers) < 0:
        raise BadOption(f"--workers takes 0 to {limit} on {usable_cores()} cores, not {','.join(map(str, workers))}")
    if min(prefetch) < 1:
        raise BadOption(f"--prefetch takes numbers from 1 on, not {','.join(map(str, prefetch))}")
    kinds = [COPIES[name] for name in copies] if cuda else [COPIES["pageable"]]
    usual = kinds[-1]
    depth = PREFETCH if PREFETCH in prefetch else max(prefetch)
    ways = [_way(count, depth, usual) for count in workers]
    ways += [_way(most, each, usual) for each in prefetch]
    ways += [_way(most, depth, kind) for kind in kinds]
    return [base, *(replace(base, feeding=way) for way in dict.fromkeys(ways))]


def _way(workers: int, depth: int, copies: tuple[bool, bool]) -> Feeding:
    pinned, overlapped = copies
    return Feeding(workers=workers, prefetch=depth if workers else 0, pinned=pinned, overlapped=overlapped)


def check_fed(workload: str) -> None:
    """Raises where nothing feeds a workload: it makes its own batches."""
    if (facts := facts_of(workload)) and facts["interactive"]:
        raise BadOption(f"{workload} makes its batches by acting in an environment: no reader feeds it")
