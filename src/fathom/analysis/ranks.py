"""Several ranks of one run compared: who arrives last at collectives, and how evenly computation is distributed.

Clocks of ranks differ, so that only durations are compared. A collective's kernel runs until the last rank has arrived:
the rank whose kernel is shortest arrived last, and the others waited for as long as theirs took longer.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fathom.core.depth import Collective, TraceDepth
from fathom.core.record import Record

# calls of these on different ranks are not the same call, or not known to be
NOT_MATCHED = {"send", "recv", "send_recv", "coalesced", "communication"}
EQUAL_SIZE = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"}  # messages are as large on all ranks
Key = tuple[str, str, str, int | None]  # collective, process group, its members and how many they are


@dataclass(frozen=True, kw_only=True)
class Spread:
    """One value of each rank: the least, the median and the largest, and whose these are."""

    low: float
    low_rank: int
    median: float
    high: float
    high_rank: int

    @classmethod
    def of(cls, values: Mapping[int, float]) -> Spread:
        low, high = min(values, key=lambda rank: values[rank]), max(values, key=lambda rank: values[rank])
        middle = statistics.median(values.values())
        return cls(low=values[low], low_rank=low, median=middle, high=values[high], high_rank=high)

    @property
    def imbalance(self) -> float | None:
        """By how much the largest exceeds the median, as a fraction of it."""
        return self.high / self.median - 1 if self.median > 0 else None


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """How one rank spent the time from its first GPU activity to the end of its last."""

    rank: int
    steps: int
    span_s: float
    computation_s: float
    communication_s: float
    exposed_communication_s: float
    exposed_memory_s: float
    idle_s: float
    overlap: float | None  # the share of communication that computation overlaps
    waited_s: float  # in collectives, for the last rank to arrive


@dataclass(frozen=True, kw_only=True)
class CollectiveRanks:
    """One collective in one process group on all ranks that the traces have."""

    name: str
    group: str
    ranks: list[int]
    calls: int  # that could be matched across ranks
    unmatched: int  # that could not: the number or the size of calls differs
    seconds: Spread  # in its kernels
    waited_s: dict[int, float]  # rank -> how long it waited for the last to arrive
    last: dict[int, int]  # rank -> how often it arrived last; of calls that several left at once, none did

    @property
    def straggler(self) -> int | None:
        """The rank that arrived last most often; None where none did."""
        return max(self.last, key=lambda rank: self.last[rank]) if any(self.last.values()) else None


@dataclass(frozen=True, kw_only=True)
class RankGroup:
    """All ranks of one run."""

    ranks: list[int]
    world_size: int | None
    times: list[RankTime]
    computation: Spread | None  # over the whole traces; None without GPU activities
    computation_per_step: list[Spread]  # where all ranks have as many steps
    exposed: Spread | None
    collectives: list[CollectiveRanks]  # that with most time first
    notes: list[str]


def rank_group(records: Sequence[Record]) -> RankGroup:
    """Of records that have a rank each."""
    depths = {
        depth.rank: depth
        for record in records
        if record.profile and (depth := record.profile.depth) is not None and depth.rank is not None
    }
    depths = dict(sorted(depths.items()))
    found = sorted(_collectives(depths), key=lambda each: -each.seconds.median * len(each.ranks))
    waited: Counter[int] = Counter()
    for each in found:
        waited.update(each.waited_s)
    on_gpu = {rank: depth.whole for rank, depth in depths.items() if depth.whole is not None}
    sizes = {depth.world_size for depth in depths.values()} - {None}
    return RankGroup(
        ranks=list(depths),
        world_size=sizes.pop() if len(sizes) == 1 else None,
        times=[_time(rank, depth, waited[rank]) for rank, depth in depths.items() if depth.whole is not None],
        computation=Spread.of({rank: each.computation_s for rank, each in on_gpu.items()}) if on_gpu else None,
        computation_per_step=_per_step(depths),
        exposed=Spread.of({rank: each.exposed_communication_s for rank, each in on_gpu.items()}) if on_gpu else None,
        collectives=found,
        notes=_notes(depths, found),
    )


def _time(rank: int, depth: TraceDepth, waited_s: float) -> RankTime:
    whole = depth.whole
    assert whole is not None
    return RankTime(
        rank=rank,
        steps=len(depth.steps),
        span_s=whole.span_s,
        computation_s=whole.computation_s,
        communication_s=whole.communication_s,
        exposed_communication_s=whole.exposed_communication_s,
        exposed_memory_s=whole.exposed_memory_s,
        idle_s=whole.idle_s,
        overlap=whole.overlap,
        waited_s=waited_s,
    )


def _per_step(depths: Mapping[int, TraceDepth]) -> list[Spread]:
    if len({len(depth.steps) for depth in depths.values()}) != 1:
        return []
    count = len(next(iter(depths.values())).steps)
    return [
        Spread.of({rank: depth.steps[step].computation_s for rank, depth in depths.items()}) for step in range(count)
    ]


def _collectives(depths: Mapping[int, TraceDepth]) -> list[CollectiveRanks]:
    by_key: dict[Key, dict[int, Collective]] = defaultdict(dict)
    for rank, depth in depths.items():
        for each in depth.collectives:
            by_key[each.name, each.group, each.ranks, each.size][rank] = each
    return [_ranks_of(key, of_rank) for key, of_rank in by_key.items()]


def _ranks_of(key: Key, of_rank: Mapping[int, Collective]) -> CollectiveRanks:
    name, group, _, _ = key
    pairs = _matched(name, of_rank) if len(of_rank) > 1 and name not in NOT_MATCHED else []
    waited, last = dict.fromkeys(of_rank, 0.0), dict.fromkeys(of_rank, 0)
    for positions in pairs:
        durations = {rank: of_rank[rank].seconds[at] for rank, at in positions.items()}
        shortest = min(durations.values())
        for rank, seconds in durations.items():
            waited[rank] += seconds - shortest
        arrived_last = [rank for rank, seconds in durations.items() if seconds == shortest]
        if len(arrived_last) == 1:
            last[arrived_last[0]] += 1
    return CollectiveRanks(
        name=name,
        group=group,
        ranks=list(of_rank),
        calls=len(pairs),
        unmatched=max(len(each.seconds) for each in of_rank.values()) - len(pairs),
        seconds=Spread.of({rank: sum(each.seconds) for rank, each in of_rank.items()}),
        waited_s=waited,
        last=last,
    )


def _matched(name: str, of_rank: Mapping[int, Collective]) -> list[dict[int, int]]:
    """The same call on every rank, as the position that it has there.

    The k-th call of each; where ranks have different numbers of calls, the k-th call of each step in which they agree.
    """
    if len({len(each.seconds) for each in of_rank.values()}) == 1:
        count = len(next(iter(of_rank.values())).seconds)
        pairs = [dict.fromkeys(of_rank, at) for at in range(count)]
    else:
        pairs = _matched_by_step(of_rank)
    if name not in EQUAL_SIZE:
        return pairs
    return [
        positions
        for positions in pairs
        if len({of_rank[rank].bytes[at] for rank, at in positions.items()} - {None}) <= 1
    ]


def _matched_by_step(of_rank: Mapping[int, Collective]) -> list[dict[int, int]]:
    in_step: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, each in of_rank.items():
        for at, step in enumerate(each.steps):
            if step is not None:
                in_step[step][rank].append(at)
    found = []
    for positions in in_step.values():
        if len(positions) == len(of_rank) and len({len(each) for each in positions.values()}) == 1:
            found += [dict(zip(positions, row, strict=True)) for row in zip(*positions.values(), strict=True)]
    return found


def _notes(depths: Mapping[int, TraceDepth], collectives: Sequence[CollectiveRanks]) -> list[str]:
    found = ["Clocks of ranks differ: durations are compared, not times"]
    world = max((depth.world_size or 0 for depth in depths.values()), default=0)
    missing = [rank for rank in range(world) if rank not in depths]
    if missing:
        those = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        found.append(f"{len(missing)} of {world} ranks have no trace here: {those}. Waiting times are lower bounds")
    steps = {rank: len(depth.steps) for rank, depth in depths.items()}
    if len(set(steps.values())) > 1:
        low, high = min(steps.values()), max(steps.values())
        found.append(f"{low} to {high} steps in a trace: computation is compared over all steps only")
    if any(not each.group for each in collectives):
        found.append("Process groups are not in the traces: calls are matched by their order")
    if unmatched := sum(each.unmatched for each in collectives if each.name not in NOT_MATCHED):
        found.append(f"{unmatched} collective calls could not be matched across ranks")
    return found
