"""Ranks: the part of a record that a job of several processes adds, with the step series of each of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all-reduce", "all-gather", "reduce-scatter"
BROADCAST, SEND_RECEIVE = "broadcast", "send-receive"
OPERATIONS = (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, SEND_RECEIVE)
PRODUCT, COPY = "product", "copy"  # work that arithmetic bounds, and work that memory does


def strategy_named(name: str) -> str:
    """The plug-in of a name as people write it: async is a word of Python, and local-sgd no name of a module."""
    return "asynchronous" if name == "async" else name if ":" in name else name.replace("-", "_")


def strategy_shown(plugin: str) -> str:
    """The other way round: the name that a person would type."""
    return "async" if plugin == "asynchronous" else plugin if ":" in plugin else plugin.replace("_", "-")


def bus_factor(operation: str, ranks: int) -> float:
    """Bus over algorithm bandwidth, as nccl-tests defines it: the share of the message that each link must carry."""
    if operation == ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if operation in (ALL_GATHER, REDUCE_SCATTER) else 1.0


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective operation at one message size, as nccl-tests counts it.

    The size is that of the whole message: what all ranks together receive in an all-gather, what each contributes in a
    reduce-scatter.
    """

    operation: str  # of OPERATIONS
    message_bytes: int
    sample_s: list[float]  # time of one call: each sample is the mean over its calls and over the ranks
    calls: int  # of a sample, back to back
    wrong: int = 0  # elements of the result that were not as expected, over all ranks

    @property
    def latency_s(self) -> float:
        return statistics.median(self.sample_s)

    @property
    def algorithm_bytes_per_s(self) -> float:
        return self.message_bytes / self.latency_s

    def bus_bytes_per_s(self, ranks: int) -> float:
        return self.algorithm_bytes_per_s * bus_factor(self.operation, ranks)


@dataclass(frozen=True, kw_only=True)
class SharedWork:
    """The same work by one rank while the others wait, and by all of them at once."""

    work: str  # PRODUCT or COPY
    flop: int
    bytes_moved: int
    alone_s: list[float]
    together_s: list[float]  # means over the ranks
    slowest_s: list[float] = field(default_factory=list)  # of the same samples, the slowest rank, for which all wait

    @property
    def slowdown(self) -> float:
        return statistics.median(self.together_s) / statistics.median(self.alone_s)

    @property
    def slowest(self) -> float:
        """Times as long on the slowest rank; where that was not noted, on all."""
        return statistics.median(self.slowest_s or self.together_s) / statistics.median(self.alone_s)


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Computing beside an all-reduce: each alone, both at once, one after the other; times of the slowest rank."""

    message_bytes: int
    compute_s: list[float]
    message_s: list[float]
    both_s: list[float]
    after_s: list[float] = field(default_factory=list)  # the message is sent when computing has ended

    @property
    def hidden(self) -> float:
        """The share of the shorter of the two that costs no time: 1 where both run at once as fast as alone."""
        compute, message, both = map(statistics.median, (self.compute_s, self.message_s, self.both_s))
        return min(1.0, max(0.0, (compute + message - both) / min(compute, message)))

    @property
    def added_s(self) -> float | None:
        """What a message adds to the computing before it; None where that was not timed, or less than its noise.

        Messages back to back can take longer: the ranks do nothing but wait for each other.
        """
        added = statistics.median(self.after_s or [0.0]) - statistics.median(self.compute_s)
        return added if added > 0 else None


@dataclass(frozen=True, kw_only=True)
class RankSeries:
    """One rank: where it ran, and its timed steps. Of each step, compute_s + exposed_s + wait_s = step_s."""

    rank: int
    host: str
    device: str
    cores: list[int] | None  # that it was bound to; None: not bound
    threads: int  # intra-op
    step_s: list[float] = field(default_factory=list)
    compute_s: list[float] = field(default_factory=list)  # neither waiting for another rank nor for a transfer
    exposed_s: list[float] = field(default_factory=list)  # communication that the step had to wait for
    wait_s: list[float] = field(default_factory=list)  # for the slowest rank to begin the same communication
    hidden_s: list[float] = field(default_factory=list)  # communication while the rank computed; a part of compute_s
    wire_bytes: list[int] = field(default_factory=list)  # sent by this rank, by the algorithm's least traffic
    losses: list[float] = field(default_factory=list)
    peak_host_bytes: int | None = None
    peak_device_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """What a job of several ranks did beside its steps, rank by rank."""

    backend: str  # gloo or nccl
    ranks: int
    nodes: int = 1
    timeout_s: float | None = None  # without progress, after which the job would have been ended
    restarts: int = 0
    clock_error_s: float | None = None  # how far apart the clocks of two ranks may be; None: one machine, one clock
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the strategy
    series: list[RankSeries] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    shared_work: list[SharedWork] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
