"""Repetition as the Minsky study did it: every configuration launched again and again, in random order.

One launch is one process. The order is a pure function of what is repeated, how often and the seed; going on after an
interruption is leaving out what has succeeded already.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from fathom.core.spec import RunSpec

WARM_UP = "warm-up"  # the folder, below that of the records, in which warm-up launches are kept apart


def plan(base: RunSpec, names: Sequence[str], devices: Sequence[str]) -> list[RunSpec]:
    """One spec for each workload and device: all launches of a configuration are one spec, told apart by their runs."""
    return [replace(base, workload=name, device=device) for name in names for device in devices]


def lives(specs: Sequence[RunSpec]) -> list[RunSpec]:
    """One more launch of each that uses a GPU, to be traced from its context to its last step."""
    return [replace(spec, kind="program") for spec in specs if spec.device != "cpu"]


def order(specs: Sequence[RunSpec], rounds: int, seed: int) -> list[RunSpec]:
    """Rounds in which each spec comes once, shuffled: what drifts in the machine meets all alike, and a job that is
    cut short has launched all equally often."""
    chance = random.Random(seed)
    return [spec for _ in range(rounds) for spec in chance.sample(specs, len(specs))]
