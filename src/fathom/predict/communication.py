"""Alpha-beta cost of collective operations: how many messages follow each other, and how many bytes pass the link.

An algorithm over n ranks and a message of m bytes has a `Cost`; a `Link` turns it into seconds:

    base + messages x alpha + wire bytes / bandwidth

Sizes are those of nccl-tests: the whole message, of which a rank has 1/n before an all-gather or after a
reduce-scatter. Links are full duplex, ranks send one message at a time, and arithmetic of a reduction costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fathom.core.errors import BadOption, UnknownName
from fathom.core.ranks import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, SEND_RECEIVE
from fathom.predict.catalogue import Interconnect

RING, TREE, DOUBLE_TREE = "ring", "tree", "double-tree"
RECURSIVE_DOUBLING, HALVING_DOUBLING = "recursive-doubling", "halving-doubling"
RECURSIVE_HALVING, SCATTER_GATHER, DIRECT = "recursive-halving", "scatter-gather", "direct"


@dataclass(frozen=True)
class Cost:
    """Of the rank that has most to do: messages one after the other, and bytes in the busier direction of its link."""

    messages: int
    wire_bytes: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.messages + other.messages, self.wire_bytes + other.wire_bytes)

    def __mul__(self, times: int) -> Cost:
        return Cost(self.messages * times, self.wire_bytes * times)


@dataclass(frozen=True)
class Link:
    """What joins two ranks: latency of a message, bandwidth in one direction, and the fixed cost of a call."""

    alpha_s: float
    bytes_per_s: float
    base_s: float = 0.0

    def __post_init__(self) -> None:
        if not (self.alpha_s >= 0 and self.base_s >= 0 and self.bytes_per_s > 0):  # NaN is none of these
            raise BadOption("a link has a latency of at least 0 s and a bandwidth above 0 bytes/s")

    @classmethod
    def of(cls, interconnect: Interconnect) -> Link:
        if interconnect.latency_s is None:
            raise BadOption(f"the latency of {interconnect.name} is not known")
        return cls(interconnect.latency_s, interconnect.bytes_per_s)

    def seconds(self, cost: Cost) -> float:
        """0 where nothing is sent: a job of one rank makes no call."""
        if not cost.messages:
            return 0.0
        return self.base_s + cost.messages * self.alpha_s + cost.wire_bytes / self.bytes_per_s

    def shared_by(self, ranks: int, links: int = 1) -> Link:
        """What is left to each of so many ranks that send at the same time over so many such links."""
        return Link(self.alpha_s, self.bytes_per_s * min(1.0, links / ranks), self.base_s)


Algorithm = Callable[[int, float], Cost]  # ranks, message bytes


def _once_around(ranks: int, size: float) -> Cost:
    """Reduce-scatter or all-gather on a ring: n-1 messages of m/n."""
    return Cost(ranks - 1, (ranks - 1) / ranks * size)


def _ring(ranks: int, size: float) -> Cost:
    return _once_around(ranks, size) * 2


def _binomial(ranks: int, size: float) -> Cost:
    """One way, root to leaves or back: the whole message in each of ceil(log2 n) rounds."""
    rounds = _rounds(ranks)
    return Cost(rounds, rounds * size)


def _tree(ranks: int, size: float) -> Cost:
    return _binomial(ranks, size) * 2


def _double_tree(ranks: int, size: float) -> Cost:
    """Two binary trees with half of the message each, pipelined; a rank is inner node of one and leaf of the other."""
    return Cost(2 * _rounds(ranks), 2 * size if ranks > 1 else 0.0)


def _recursive_doubling(ranks: int, size: float) -> Cost:
    power, folded = _power_of_two(ranks)
    rounds = _rounds(power)
    return Cost(rounds, rounds * size) + (Cost(2, 2 * size) if folded else Cost(0, 0.0))


def _halving_doubling(ranks: int, size: float) -> Cost:
    """Rabenseifner: reduce-scatter by recursive halving, all-gather by recursive doubling."""
    power, folded = _power_of_two(ranks)
    both = Cost(_rounds(power), (power - 1) / power * size) * 2
    return both + (Cost(2, 2 * size) if folded else Cost(0, 0.0))


def _recursive_halving(ranks: int, size: float) -> Cost:
    """Ranks beyond a power of two give their message to a neighbour first, and get their part of the result last."""
    power, folded = _power_of_two(ranks)
    halved = Cost(_rounds(power), (power - 1) / power * size)
    return halved + (Cost(2, size + size / ranks) if folded else Cost(0, 0.0))


def _doubling_gather(ranks: int, size: float) -> Cost:
    """Recursive doubling, or Bruck's algorithm where n is no power of two: the same cost."""
    return Cost(_rounds(ranks), (ranks - 1) / ranks * size)


def _scatter_gather(ranks: int, size: float) -> Cost:
    """Van de Geijn: a binomial scatter, then an all-gather on a ring."""
    return Cost(_rounds(ranks), (ranks - 1) / ranks * size) + _once_around(ranks, size)


def _direct(ranks: int, size: float) -> Cost:
    """Each rank sends to the next, all at once."""
    return Cost(1, size) if ranks > 1 else Cost(0, 0.0)


ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    ALL_REDUCE: {
        RING: _ring,
        TREE: _tree,
        DOUBLE_TREE: _double_tree,
        RECURSIVE_DOUBLING: _recursive_doubling,
        HALVING_DOUBLING: _halving_doubling,
    },
    ALL_GATHER: {RING: _once_around, RECURSIVE_DOUBLING: _doubling_gather},
    REDUCE_SCATTER: {RING: _once_around, RECURSIVE_HALVING: _recursive_halving},
    BROADCAST: {TREE: _binomial, SCATTER_GATHER: _scatter_gather},
    SEND_RECEIVE: {DIRECT: _direct},
}


def cost(operation: str, algorithm: str, ranks: int, message_bytes: float) -> Cost:
    if operation not in ALGORITHMS:
        raise UnknownName.among("operation", operation, ALGORITHMS)
    if algorithm not in ALGORITHMS[operation]:
        raise UnknownName.among(f"algorithm of {operation}", algorithm, ALGORITHMS[operation])
    _check(ranks, message_bytes)
    return ALGORITHMS[operation][algorithm](ranks, message_bytes)


def seconds(operation: str, algorithm: str, ranks: int, message_bytes: float, link: Link) -> float:
    return link.seconds(cost(operation, algorithm, ranks, message_bytes))


def fastest(operation: str, ranks: int, message_bytes: float, link: Link) -> tuple[str, float]:
    """The algorithm that a library which knows the link would choose, and its seconds."""
    if operation not in ALGORITHMS:
        raise UnknownName.among("operation", operation, ALGORITHMS)
    times = {name: seconds(operation, name, ranks, message_bytes, link) for name in ALGORITHMS[operation]}
    best = min(times, key=lambda name: times[name])
    return best, times[best]


def crossing_bytes(operation: str, few_messages: str, few_bytes: str, ranks: int, link: Link) -> float | None:
    """The size at which both take as long: below it the one of few messages is faster, above it the one of few bytes.

    None where one of them is at least as good at every size.
    """
    first, second = (cost(operation, name, ranks, 1.0) for name in (few_messages, few_bytes))
    messages = second.messages - first.messages
    per_byte = first.wire_bytes - second.wire_bytes
    if messages <= 0 or per_byte <= 0:
        return None
    return messages * link.alpha_s * link.bytes_per_s / per_byte


def parameter_server(workers: int, message_bytes: float, servers: int = 1, *, dedicated: bool = False) -> Cost:
    """Every worker pushes its gradients and pulls the weights, which are spread evenly over the servers.

    The busiest link is a server's: all workers send to it at once (incast). Servers are ranks among the workers, or
    dedicated machines, which a single worker has to talk to as well.
    """
    _check(workers, message_bytes)
    if servers < 1 or (servers > workers and not dedicated):
        raise BadOption(f"{servers} servers: there must be at least 1, and no more than the workers they run on")
    if dedicated:
        return Cost(max(workers, servers), max(workers / servers, 1.0) * message_bytes) * 2
    return Cost(workers - 1, (workers - 1) / servers * message_bytes) * 2


def hierarchical_seconds(
    nodes: int,
    ranks_per_node: int,
    message_bytes: float,
    inside: Link,
    between: Link,
    *,
    links_per_node: int = 1,
    algorithm: str = RING,
) -> float:
    """All-reduce: reduce-scatter inside each node, all-reduce of each part between nodes, all-gather inside.

    The ranks of a node have a part each and send at the same time over the node's links.
    """
    _check(nodes, message_bytes)
    _check(ranks_per_node, message_bytes)
    if links_per_node < 1:
        raise BadOption(f"links per node: at least 1, not {links_per_node}")
    local = inside.seconds(_once_around(ranks_per_node, message_bytes))
    part = cost(ALL_REDUCE, algorithm, nodes, message_bytes / ranks_per_node)
    return 2 * local + between.shared_by(ranks_per_node, links_per_node).seconds(part)


def _check(ranks: int, message_bytes: float) -> None:
    if ranks < 1:
        raise BadOption(f"there must be at least 1 rank, not {ranks}")
    if not (message_bytes >= 0 and math.isfinite(message_bytes)):
        raise BadOption(f"a message has at least 0 bytes, not {message_bytes}")


def _rounds(ranks: int) -> int:
    """ceil(log2 n), exactly."""
    return (ranks - 1).bit_length()


def _power_of_two(ranks: int) -> tuple[int, bool]:
    """The largest power of two that is no larger, and whether ranks are left over."""
    power: int = 1 << (ranks.bit_length() - 1)
    return power, power != ranks
