"""The rules of thumb of HPE's Deep Learning Cookbook, as checks of a choice of hardware.

A rule says what a machine should have. Of the machine at hand it is checked; of others it is a requirement. The rule
about interconnects is checked against the predicted step.
"""

from __future__ import annotations

from dataclasses import dataclass

from fathom.predict.estimate import Estimate
from fathom.predict.target import Target, gigabytes
from fathom.trace.step_work import StepWork

SOURCE = "Vassilieva, Characterization and Benchmarking of Deep Learning (HPE Deep Learning Cookbook), tips"
THREADS_PER_GPU = 2
RAM_PER_GPU_MEMORY = 2
HOLDS, FAILS, NEEDED, NOT_CONCERNED = "holds", "does not hold", "needed", "does not apply"
DENSE = 0.5  # of the FLOP in matrix products, from which a model is a fully connected one
SMALL_FLOP = 1e9  # of an item: the Cookbook's fully connected networks train with at most 0.2e9, its AlexNet with 4e9
EXPOSED = 0.1  # of a step in communication, from which the interconnect is too slow: ours, the Cookbook has no number


@dataclass(frozen=True)
class Host:
    """The machine around the devices, where it is known."""

    threads: int | None = None
    memory_bytes: float | None = None


@dataclass(frozen=True)
class Check:
    rule: str
    verdict: str  # HOLDS, FAILS, NEEDED or NOT_CONCERNED
    detail: str
    source: str = SOURCE


def checks(
    step: StepWork, target: Target, estimate: Estimate, link: str | None, host: Host | None = None
) -> list[Check]:
    known = host or Host()
    return [
        cpu_threads(target, estimate.count, known),
        host_memory(target, estimate.count, known),
        interconnect(step, estimate, link),
    ]


def cpu_threads(target: Target, count: int, host: Host) -> Check:
    rule = f"{THREADS_PER_GPU} CPU threads per GPU"
    if not target.gpu:
        return Check(rule, NOT_CONCERNED, "no GPU is used")
    needed = THREADS_PER_GPU * count
    if host.threads is None:
        return Check(rule, NEEDED, f"{needed} CPU threads for {count} x {target.name}")
    return Check(rule, HOLDS if host.threads >= needed else FAILS, f"{host.threads} CPU threads, {needed} needed")


def host_memory(target: Target, count: int, host: Host) -> Check:
    rule = f"RAM = {RAM_PER_GPU_MEMORY} x GPU memory x number of GPUs"
    if not target.gpu:
        return Check(rule, NOT_CONCERNED, "no GPU is used")
    if target.memory_bytes is None:
        return Check(rule, NOT_CONCERNED, f"the memory of {target.name} is not known")
    needed = RAM_PER_GPU_MEMORY * target.memory_bytes * count
    if host.memory_bytes is None:
        return Check(rule, NEEDED, f"{gigabytes(needed)} of RAM for {count} x {target.name}")
    verdict = HOLDS if host.memory_bytes >= needed else FAILS
    return Check(rule, verdict, f"{gigabytes(host.memory_bytes)} of RAM, {gigabytes(needed)} needed")


def interconnect(step: StepWork, estimate: Estimate, link: str | None) -> Check:
    """Of any model the predicted share of a step in communication; of a small dense one it is expected to be large."""
    rule = "a fast interconnect is more important for less compute-intensive models (fully connected)"
    if estimate.count == 1 or link is None:
        return Check(rule, NOT_CONCERNED, "one device sends nothing")
    share = estimate.exposed_s / estimate.step_s if estimate.step_s else 0.0
    kind = "a small fully connected model" if is_small_dense(step) else "not a small fully connected model"
    limit = f"(Fathom's limit: {100 * EXPOSED:g} %)"
    detail = f"{kind}; {100 * share:.0f} % of the step is communication that {link} does not hide {limit}"
    return Check(rule, FAILS if share > EXPOSED else HOLDS, detail)


def is_small_dense(step: StepWork) -> bool:
    """Mostly matrix products and no convolutions, with few FLOP for an item."""
    return dense_share(step) > DENSE and step.flop / step.batch < SMALL_FLOP


def dense_share(step: StepWork) -> float:
    """Of the FLOP, those in matrix products."""
    flop = {op: (op.flop or 0.0) * calls for op, calls in zip(step.ops, step.calls, strict=True)}
    total = sum(flop.values())
    return sum(each for op, each in flop.items() if op.type in ("MatMul", "BatchMatMul")) / total if total else 0.0
