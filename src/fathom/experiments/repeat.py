"""Repetition as in the Minsky study: every configuration many times, each in a new process, in random order.

The order is a pure function of the configurations, the number of runs and the seed. To resume after an interruption
is to leave out the runs that have succeeded already.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from fathom.core.spec import RunSpec

WARM_UP = "warm-up"  # the subfolder of the records of warm-up runs, which enter no result


def plan(base: RunSpec, names: Sequence[str], devices: Sequence[str]) -> list[RunSpec]:
    """One spec for each workload and device; repeated runs of a configuration have the same spec."""
    return [replace(base, workload=name, device=device) for name in names for device in devices]


def program_traces(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """One more run of each that uses a GPU: a whole-program trace, from the CUDA context to the last step."""
    return [replace(spec, kind="program") for spec in specs if spec.device != "cpu"]


def run_order(specs: Sequence[RunSpec], runs: int, seed: int = 0) -> list[RunSpec]:
    """Every spec so many times, in blocks that hold each of them once, shuffled.

    A drift of the machine then affects all configurations alike, and an interrupted job has run all equally often.
    """
    chance = random.Random(seed)
    return [spec for _ in range(runs) for spec in chance.sample(specs, len(specs))]
