"""Step time of data-parallel training: gradient buckets overlapped with the backward pass, synchronous or asynchronous.

As PyTorch's DistributedDataParallel does it: gradients are put into buckets in the order in which the backward pass
makes them; a bucket is all-reduced once its last gradient is there and the bucket before it is through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from fathom.analysis.scaling_law import STRONG, WEAK
from fathom.core.errors import BadOption
from fathom.predict.communication import Link
from fathom.trace.step_work import BACKWARD, OPTIMIZER, StepWork

MIB = 1 << 20
BUCKET_BYTES, FIRST_BUCKET_BYTES = (
    25 * MIB,
    MIB,
)  # defaults of DistributedDataParallel; the first is small to start early


@dataclass(frozen=True)
class Gradient:
    """One parameter's, or one layer's: how long the backward pass takes until it is ready, after the one before."""

    backward_s: float
    size_bytes: int


@dataclass(frozen=True)
class LocalStep:
    """What one rank computes in a step; gradients in the order of the backward pass: the last layer first."""

    forward_s: float
    gradients: Sequence[Gradient]
    update_s: float = 0.0

    @property
    def backward_s(self) -> float:
        return sum(each.backward_s for each in self.gradients)

    @property
    def compute_s(self) -> float:
        return self.forward_s + self.backward_s + self.update_s

    @property
    def gradient_bytes(self) -> int:
        return sum(each.size_bytes for each in self.gradients)


def local_step(step: StepWork, calls_s: Sequence[float]) -> LocalStep:
    """Of a simulated step, by the seconds of each of its op calls in order."""
    done = [0.0, *accumulate(calls_s)]
    parts = [step.ops[index].part for index in step.sequence]
    begins = next((at for at, part in enumerate(parts) if part == BACKWARD), len(parts))
    ready = [done[min(each.after, len(parts))] for each in step.gradients]
    before = [done[begins], *ready[:-1]]
    gradients = [
        Gradient(max(0.0, at - last), each.size_bytes)
        for each, at, last in zip(step.gradients, ready, before, strict=True)
    ]
    update_s = math.fsum(took for took, part in zip(calls_s, parts, strict=True) if part == OPTIMIZER)
    return LocalStep(forward_s=done[begins], gradients=gradients, update_s=update_s)


@dataclass(frozen=True)
class Bucket:
    ready_s: float  # after the backward pass began
    size_bytes: int


@dataclass(frozen=True)
class Step:
    """compute + exposed = step; hidden communication is behind the backward pass."""

    compute_s: float
    communication_s: float
    exposed_s: float

    @property
    def step_s(self) -> float:
        return self.compute_s + self.exposed_s

    @property
    def hidden_s(self) -> float:
        return self.communication_s - self.exposed_s


@dataclass(frozen=True)
class Scaled:
    """One number of ranks of a scaling curve, compared with one rank as the Cookbook's reports do."""

    ranks: int
    batch: int  # of the rank that has most
    step: Step
    items_per_s: float
    speedup: float  # items per second over those of one rank
    efficiency: float  # speed-up over ranks: t1/tN in weak scaling, t1/(N tN) in strong


def buckets(
    gradients: Sequence[Gradient], bucket_bytes: int = BUCKET_BYTES, first_bytes: int = FIRST_BUCKET_BYTES
) -> list[Bucket]:
    """A bucket is closed by the gradient with which it reaches its size; the last takes what is left."""
    if bucket_bytes <= 0 or first_bytes <= 0:
        raise BadOption("buckets have more than 0 bytes")
    found: list[Bucket] = []
    now, held = 0.0, 0
    for each in gradients:
        now += each.backward_s
        held += each.size_bytes
        if held >= (bucket_bytes if found else first_bytes):
            found.append(Bucket(now, held))
            held = 0
    return [*found, Bucket(now, held)] if held else found


def synchronous(local: LocalStep, all_reduce_s: Callable[[int], float], ready: Sequence[Bucket] | None = None) -> Step:
    """One step of ranks that all-reduce their gradients; `all_reduce_s` has the seconds of a message of so many bytes.

    Without `ready` buckets, those of DistributedDataParallel's defaults.
    """
    free = total = 0.0
    for bucket in buckets(local.gradients) if ready is None else ready:
        took = all_reduce_s(bucket.size_bytes)
        free = max(free, bucket.ready_s) + took
        total += took
    return Step(local.compute_s, total, max(0.0, free - local.backward_s))


def without_overlap(local: LocalStep, all_reduce_s: Callable[[int], float]) -> Step:
    """All gradients in one message after the backward pass."""
    took = all_reduce_s(local.gradient_bytes)
    return Step(local.compute_s, took, took)


def curve(
    local_at: Callable[[int], LocalStep],
    batch: int,
    ranks: Sequence[int],
    all_reduce_s: Callable[[int, int], float],
    scaling: str,
) -> list[Scaled]:
    """Weak scaling keeps the batch of a rank, strong scaling that of all ranks: `batch`.

    `local_at` has the step of a rank by its batch. Where a batch cannot be divided evenly, the slowest rank has the
    larger part.
    """
    if scaling not in (WEAK, STRONG):
        raise BadOption(f"scaling is {WEAK} or {STRONG}, not {scaling}")
    if batch < 1 or any(count < 1 for count in ranks):
        raise BadOption("batch and ranks are numbers from 1")
    alone = batch / synchronous(local_at(batch), partial(all_reduce_s, 1)).step_s
    found: list[Scaled] = []
    for count in ranks:
        own = batch if scaling == WEAK else -(-batch // count)
        step = synchronous(local_at(own), partial(all_reduce_s, count))
        rate = (batch * count if scaling == WEAK else batch) / step.step_s
        found.append(Scaled(count, own, step, rate, rate / alone, rate / alone / count))
    return found


@dataclass(frozen=True)
class Asynchronous:
    updates_per_s: float
    limit: str  # workers, server links or server updates
    staleness: float  # updates by others between a worker's pull and its push, on average


def asynchronous(
    workers: int, compute_s: float, message_bytes: float, link: Link, *, servers: int = 1, apply_s: float = 0.0
) -> Asynchronous:
    """Workers that push and pull without waiting for each other, and dedicated servers.

    A worker's cycle is compute, push, pull. Servers take at most one push in the time that their link or their update
    (`apply_s` for the whole model) needs; both are divided by the number of servers.
    """
    if workers < 1 or servers < 1 or compute_s < 0 or apply_s < 0:
        raise BadOption("workers and servers are numbers from 1, times at least 0")
    transfer_s = message_bytes / link.bytes_per_s
    cycle_s = compute_s + 2 * (link.alpha_s + transfer_s) + apply_s / servers
    rates = {"workers": workers / cycle_s} if cycle_s else {}
    rates |= {"server links": servers / transfer_s} if transfer_s else {}
    rates |= {"server updates": servers / apply_s} if apply_s else {}
    if not rates:
        raise BadOption("a cycle without compute and communication has no rate")
    limit = min(rates, key=lambda name: rates[name])
    return Asynchronous(rates[limit], limit, workers - 1.0)
