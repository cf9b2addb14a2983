"""What ranks of one machine take from each other: the same work alone and by all at once, and beside a message.

Ranks share memory bandwidth, caches and clock frequency, so that n of them compute more slowly than one; and the
library that sends a message needs cores, too. Prediction of scaling takes both from here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.distributed as dist

from fathom.core.ranks import COPY, PRODUCT, Overlap, SharedWork
from fathom.engine.ranks.group import Group
from fathom.machine.clock import fastest, wait

SAMPLES = 8
SIDE = 1024  # of the square matrices of a product
SMALL_SIDE = 192  # of those that are repeated beside a message until they take about as long
COPIED = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)  # numbers, of which two vectors are read and one is written:
# from what fits in a core's own caches, over what fits in shared ones while others do not use them, to neither
LEAST_S = 20e-3  # of a sample: short work is repeated
MESSAGES = (1 << 10, 1 << 16, 1 << 20, 1 << 24)  # bytes of the all-reduce beside which products are computed

Work = Callable[[], object]


def shared_work(group: Group) -> list[SharedWork]:
    """Products are bound by arithmetic, sums of two vectors by caches and memory; means over the ranks that work."""
    works = list(_works(group))
    times = [max(1, round(LEAST_S / group.largest(fastest(once, group.device, 3)))) for _, once, _, _ in works]
    alone: list[list[float]] = [[] for _ in works]
    together: list[list[float]] = [[] for _ in works]
    for _ in range(SAMPLES):  # in turns: what a virtual machine has of its host's cores changes from second to second
        for index, (_, once, _, _) in enumerate(works):
            work = partial(_repeated, once, times[index])
            alone[index].append(_seconds(work, group, works=group.rank == 0) / times[index])
            together[index].append(_seconds(work, group) / times[index])
    found = []
    for index, (name, _, flop, moved) in enumerate(works):
        same = list(zip(*group.gathered(together[index]), strict=True))
        found.append(
            SharedWork(
                work=name,
                flop=flop,
                bytes_moved=moved,
                alone_s=group.gathered(alone[index])[0],
                together_s=[sum(each) / group.ranks for each in same],
                slowest_s=[max(each) for each in same],
            )
        )
    return found


def overlaps(group: Group) -> list[Overlap]:
    """Products that take about as long as an all-reduce: both alone, at once, and one after the other."""
    if group.ranks == 1:
        return []
    one, other, result = (torch.ones(SMALL_SIDE, SMALL_SIDE, device=group.device) for _ in range(3))
    product = partial(torch.mm, one, other, out=result)
    return [_overlap(group, product, size) for size in MESSAGES]


def _overlap(group: Group, product: Work, size: int) -> Overlap:
    message = torch.zeros(size // 4, device=group.device)
    reduce = partial(dist.all_reduce, message)
    reduce()
    took, once = (group.largest(fastest(each, group.device, 3)) for each in (reduce, product))
    work = partial(_repeated, product, max(1, round(took / once)))
    sides: dict[str, Work] = {
        "compute": work,
        "message": reduce,
        "both": partial(_beside, work, message),
        "after": partial(_before, work, reduce),
    }
    samples: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(SAMPLES):  # in turns
        for side, call in sides.items():
            samples[side].append(group.largest(_seconds(call, group)))
    return Overlap(
        message_bytes=size,
        compute_s=samples["compute"],
        message_s=samples["message"],
        both_s=samples["both"],
        after_s=samples["after"],
    )


def _works(group: Group) -> Iterator[tuple[str, Work, int, int]]:
    """Name, what is called, its FLOP and the bytes that it reads and writes."""
    one, other, result = (torch.ones(SIDE, SIDE, device=group.device) for _ in range(3))
    yield PRODUCT, partial(torch.mm, one, other, out=result), 2 * SIDE**3, 3 * 4 * SIDE**2
    for numbers in COPIED:
        first, second, total = (torch.ones(numbers, device=group.device) for _ in range(3))
        yield COPY, partial(torch.add, first, second, out=total), numbers, 3 * 4 * numbers


def _repeated(work: Work, times: int) -> None:
    for _ in range(times):
        work()


def _beside(work: Work, message: torch.Tensor) -> None:
    """The message is under way while the rank computes, as a bucket of gradients is."""
    sent = dist.all_reduce(message, async_op=True)
    work()
    if sent is not None:
        sent.wait()


def _before(work: Work, reduce: Work) -> None:
    """The message is sent when computing has ended, as the last bucket is."""
    work()
    reduce()


def _seconds(work: Work, group: Group, works: bool = True) -> float:
    """All ranks begin together; one that does not work waits for the others at the end."""
    group.barrier()
    wait(group.device)
    begun = time.perf_counter()
    if works:
        work()
    wait(group.device)
    seconds = time.perf_counter() - begun
    group.barrier()
    return seconds
