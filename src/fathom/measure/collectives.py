"""Collective operations over message sizes, timed as nccl-tests times them: back to back, mean over the ranks.

Of each operation and size the result is checked once, element by element. A sample is a number of calls back to back
that takes at least a millisecond; the first sample of a size, in which connections are made, is thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from fathom.core.ranks import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    OPERATIONS,
    REDUCE_SCATTER,
    SEND_RECEIVE,
    Collective,
    Ranks,
)
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.engine.ranks.group import Group
from fathom.machine.clock import fastest, wait
from fathom.machine.gpus import gpu_uuid
from fathom.machine.host import fingerprint
from fathom.measure.contention import overlaps, shared_work

SAMPLES = 12
SAMPLE_S = 1e-3  # of calls back to back, at least
MOST_CALLS = 200
TRIES = 3  # calls by which the length of a sample is chosen
ITEM = 4  # bytes of an element, fp32
LEAST_BYTES, MOST_BYTES = 1 << 10, 1 << 26


@dataclass(frozen=True)
class _Buffers:
    """What one operation reads and writes; every rank's input is filled with its number plus one."""

    message: Tensor
    result: Tensor


def measured(spec: RunSpec, group: Group) -> Record | None:
    """Every operation over every size; the record on rank 0, None elsewhere."""
    least, most = spec.options.get("least_bytes", LEAST_BYTES), spec.options.get("most_bytes", MOST_BYTES)
    chosen = spec.options.get("operations", list(OPERATIONS))
    found = [
        _timed(operation, size, group)
        for operation in OPERATIONS
        if operation in chosen
        for size in sizes(least, most, group.ranks)
    ]
    shared, overlapped = shared_work(group), overlaps(group)
    if group.rank:
        return None
    wrong = sum(each.wrong for each in found)
    return Record(
        spec=spec,
        machine=fingerprint(group.device),
        device=group.device.type if group.device.type == "cpu" else f"{group.device.type}:0",
        gpu_uuid=gpu_uuid(group.device),
        outcome="failed" if wrong else "ok",
        reason=f"{wrong} elements of the results are wrong" if wrong else None,
        ranks=Ranks(
            backend=group.backend,
            ranks=group.ranks,
            nodes=group.nodes,
            collectives=found,
            shared_work=shared,
            overlaps=overlapped,
        ),
    )


def sizes(least: int, most: int, ranks: int) -> list[int]:
    """Powers of four in bytes, each rounded up so that every rank has the same number of elements."""
    unit = ITEM * ranks
    found, size = [], least
    while size <= most:
        found.append(-(-size // unit) * unit)
        size *= 4
    return list(dict.fromkeys(found))


def _timed(operation: str, size: int, group: Group) -> Collective:
    buffers = _buffers(operation, size, group)
    call = _call(operation, buffers, group)
    wrong = _wrong(operation, call, buffers, group)
    calls = _calls(call, group)
    samples = [_sample(operation, call, calls, group) for _ in range(SAMPLES + 1)][1:]
    means = [sum(same) / group.ranks for same in zip(*group.gathered(samples), strict=True)]
    total = sum(group.gathered(wrong))
    return Collective(operation=operation, message_bytes=size, sample_s=means, calls=calls, wrong=total)


def _buffers(operation: str, size: int, group: Group) -> _Buffers:
    """Sizes as nccl-tests counts them: all that is gathered, or all that is scattered."""
    elements, share = size // ITEM, size // ITEM // group.ranks
    sent = share if operation == ALL_GATHER else elements
    received = share if operation == REDUCE_SCATTER else elements
    message = torch.full((sent,), float(group.rank + 1), device=group.device)
    return _Buffers(message, torch.zeros(received, device=group.device))


def _call(operation: str, buffers: _Buffers, group: Group) -> Callable[[], object]:
    message, result = buffers.message, buffers.result
    to, source = (group.rank + 1) % group.ranks, (group.rank - 1) % group.ranks

    def exchange() -> None:
        pairs = [dist.P2POp(dist.isend, message, to), dist.P2POp(dist.irecv, result, source)]
        for work in dist.batch_isend_irecv(pairs):
            work.wait()

    calls: dict[str, Callable[[], object]] = {
        ALL_REDUCE: lambda: dist.all_reduce(result),
        ALL_GATHER: lambda: _all_gather(result, message),
        REDUCE_SCATTER: lambda: _reduce_scatter(result, message),
        BROADCAST: lambda: dist.broadcast(result, src=0),
        SEND_RECEIVE: exchange,
    }
    return calls[operation]


# torch renamed these in 2.13 and warns at every call of the old name
_all_gather: Callable[..., object] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Callable[..., object] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def _wrong(operation: str, call: Callable[[], object], buffers: _Buffers, group: Group) -> int:
    """Elements of the result that are not as they must be, after one call."""
    ranks = group.ranks
    if operation in (ALL_REDUCE, BROADCAST):
        buffers.result.fill_(float(group.rank + 1))
    call()
    wait(group.device)
    expected = torch.empty_like(buffers.result)
    if operation in (ALL_REDUCE, REDUCE_SCATTER):
        expected.fill_(ranks * (ranks + 1) / 2)
    elif operation == ALL_GATHER:
        expected.view(ranks, -1).copy_(torch.arange(1.0, ranks + 1, device=group.device)[:, None])
    else:
        expected.fill_(1.0 if operation == BROADCAST else (group.rank - 1) % ranks + 1)
    wrong = int((buffers.result != expected).sum())
    buffers.result.zero_()  # sums of sums would overflow
    return wrong


def _calls(call: Callable[[], object], group: Group) -> int:
    """So many that a sample takes long enough, on the slowest rank; all ranks agree."""
    group.barrier()
    slowest = group.largest(fastest(call, group.device, TRIES))
    return max(1, min(MOST_CALLS, int(SAMPLE_S / slowest) + 1))


def _sample(operation: str, call: Callable[[], object], calls: int, group: Group) -> float:
    group.barrier()
    group.heartbeat.begin(operation)
    wait(group.device)
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    wait(group.device)
    seconds = (time.perf_counter() - begun) / calls
    group.heartbeat.done()
    return seconds
