"""Core scaling: one workload on 1, 2, 4, ... cores, each run in a process bound to them, for parallel efficiency.

The Minsky study bound the program to cores and left its thread pool as large as the machine. Here each number of cores
is run both in this way and with as many threads as cores, since oversubscription is a cost of another kind. (torch
sizes its pool by the cores it is bound to, so that the large pool must be requested.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fathom.core.errors import BadOption
from fathom.core.spec import RunSpec
from fathom.experiments import repeat
from fathom.experiments.study import powers_of_two
from fathom.machine.host import HardwareThread, topology


def plan(base: RunSpec, names: Sequence[str], counts: Sequence[int] | None) -> list[RunSpec]:
    """Each workload on each number of cores, with that many threads and with as many as the whole machine has.

    With SMT, each even number is also run on both hardware threads of half as many cores.
    """
    here = topology()
    counts = list(counts or powers_of_two(len(here)))
    if not counts or min(counts) < 1 or max(counts) > len(here):
        raise BadOption(f"this process may use {len(here)} cores; cannot run on {','.join(map(str, counts))}")
    specs = []
    for name in names:
        for count in counts:
            bound = replace(base, workload=name, device="cpu", cores=spread(here, count))
            specs.append(replace(bound, threads=count))
            if count < len(here):
                specs.append(replace(bound, threads=len(here)))
            if count % 2 == 0 and (both := packed(here, count)):
                specs.append(replace(bound, cores=both, threads=count))
    return list({spec.id: spec for spec in specs}.values())


def run_order(specs: Sequence[RunSpec], runs: int) -> list[RunSpec]:
    """All launches with a thread for each core, then those with larger pools, from most cores to fewest.

    The first give the speed-ups, and the last take longest: a series that is interrupted has what matters most.
    """
    groups: dict[tuple[bool, int], list[RunSpec]] = {}
    for spec in specs:
        count = len(spec.cores or ())
        groups.setdefault((True, 0) if spec.threads == count else (False, count), []).append(spec)
    return [spec for _, group in sorted(groups.items(), reverse=True) for spec in repeat.run_order(group, runs)]


def spread(here: Sequence[HardwareThread], count: int) -> tuple[int, ...]:
    """This many hardware threads: one per core until every core has one, filling one memory node after the other."""
    nth: dict[int, int] = {}
    ranked = []
    for cpu in here:
        nth[cpu.core] = nth.get(cpu.core, -1) + 1  # 0 for the first hardware thread of its core
        ranked.append((nth[cpu.core], cpu.node, cpu.number))
    return tuple(sorted(number for *_, number in sorted(ranked)[:count]))


def packed(here: Sequence[HardwareThread], count: int) -> tuple[int, ...]:
    """This many hardware threads, two per core, filling one memory node after the other; none without SMT."""
    shared: dict[tuple[int, int], list[int]] = {}
    for cpu in here:
        shared.setdefault((cpu.node, cpu.core), []).append(cpu.number)
    pairs = [numbers[:2] for _, numbers in sorted(shared.items()) if len(numbers) >= 2]
    return tuple(sorted(number for pair in pairs[: count // 2] for number in pair)) if len(pairs) >= count // 2 else ()
