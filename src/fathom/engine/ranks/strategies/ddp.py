"""ddp: synchronous data parallelism by torch's DistributedDataParallel.

Every rank has the whole network and a part of the global batch. Gradients are averaged by all-reduce, bucket by bucket,
while the backward pass is still computing earlier layers. Statistics of batch normalisation stay each rank's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from fathom.core.errors import BadOption, UnknownName
from fathom.core.ranks import ALL_REDUCE
from fathom.data.base import Batch
from fathom.engine.base import Engine, Loss
from fathom.engine.ranks.base import LossModule, Parallel, Rank, Strategy, is_summed
from fathom.engine.ranks.timeline import Moment
from fathom.workloads.base import State, Workload

BUCKET_MB = 25.0  # as in torch, whose first bucket has 1 MB where this is not changed
SENT = {"fp32": 1.0, "bf16": 0.5}  # wire -> part of the bytes that is sent


@dataclass(frozen=True, kw_only=True)
class Ddp(Strategy):
    name: ClassVar = "ddp"

    bucket_mb: float = BUCKET_MB  # gradients that travel together
    accumulate: int = 1  # micro-batches that a rank's batch is computed in; the gradients travel once
    wire: str = "fp32"  # what gradients are sent in: fp32 or bf16
    find_unused: bool = False  # for a network of which a step leaves weights without gradient

    def check(self) -> None:
        if self.wire not in SENT:
            raise UnknownName.among("wire", self.wire, SENT)
        if self.accumulate < 1 or not 0 < self.bucket_mb <= 1e6:
            raise BadOption("accumulate must be at least 1, and bucket_mb above 0")

    def refusal(self, workload: Workload, ranks: int) -> str | None:
        if workload.batch % self.accumulate:
            return f"cannot accumulate over {self.accumulate} equal parts of a rank's batch of {workload.batch}"
        return None

    def prepare(self, rank: Rank, workload: Workload, state: State, loss: Loss) -> Parallel:
        return _Averaged(self, rank, state, loss)


class _Averaged(Parallel):
    """Its loss is that of a rank's batch; the backward pass leaves the gradients of the global batch."""

    def __init__(self, settings: Ddp, rank: Rank, state: State, loss: Loss) -> None:
        super().__init__(rank, state, self._loss)
        self._plain, self._parts = loss, settings.accumulate
        self._module = DistributedDataParallel(
            LossModule(state.model, loss),
            bucket_cap_mb=None if settings.bucket_mb == BUCKET_MB else settings.bucket_mb,
            broadcast_buffers=False,
            find_unused_parameters=settings.find_unused,
            gradient_as_bucket_view=True,
        )
        self._wire, self._sent = settings.wire, SENT[settings.wire]
        if rank.group.ranks > 1:
            # not the method itself: torch compares its annotations, and those of this file are strings
            self._module.register_comm_hook(None, lambda _, bucket: self._timed_hook(bucket))
        elif settings.wire == "bf16":  # one rank sends nothing, and gradients are rounded as those of several are
            self._module.register_comm_hook(None, bf16_compress_hook)
        self._summed: bool | None = None
        self._scale = 1.0  # DDP averages over the ranks; a summed loss is to be added up
        self._last_launch: Moment | None = None

    @property
    def summed(self) -> bool:
        return bool(self._summed)

    def update(self, engine: Engine, batch: Batch) -> Tensor:
        """Exposed communication is from the launch of the last bucket to the end of the backward pass."""
        if self._summed is None:
            self._summed = is_summed(self.rank, self.state, self._plain, batch)
            self._scale = float(self.rank.group.ranks) if self._summed else 1.0
        self._last_launch = None
        self.rank.drag.begin()
        loss = engine.gradients(batch)
        if self._last_launch is None:
            self.rank.drag.pull()
        else:
            self.rank.timeline.exposed_since(self._last_launch)
            self.rank.drag.begin()
        engine.clip()
        engine.apply()
        self.rank.drag.pull()
        return loss if self._scale == 1.0 else loss / self._scale

    def _loss(self, batch: Batch) -> Tensor:
        if self._parts == 1:
            return self._loss_of(batch, 1.0)
        chunks = zip(*(column.chunk(self._parts) for column in batch.values()), strict=True)
        *first, last = [dict(zip(batch, columns, strict=True)) for columns in chunks]
        weight = 1.0 if self.summed else 1 / self._parts
        done = torch.zeros((), device=self.state.device)
        for part in first:
            with self._module.no_sync():
                loss = self._loss_of(part, weight)
                loss.backward()  # type: ignore[no-untyped-call]
            done += loss.detach()
        return self._loss_of(last, weight) + done

    def _loss_of(self, batch: Batch, weight: float) -> Tensor:
        loss: Tensor = self._module(batch)
        self.rank.drag.pull()
        factor = weight * self._scale
        return loss if factor == 1.0 else loss * factor

    def _timed_hook(self, bucket: Any) -> torch.futures.Future[Any]:
        """With one continuation, where torch's own hook and a timed one behind it would be two.

        On a GPU each takes a stream of its own, an event that it waits for and one that it leaves.
        """
        timeline = self.rank.timeline
        self.rank.drag.pull()
        begun = self._last_launch = timeline.begin(ALL_REDUCE, self._sent * bucket.buffer().nbytes)

        def ended(done: torch.futures.Future[Any]) -> Any:
            timeline.done(begun)
            found = done.value()
            return found[0] if isinstance(found, list) else found

        return self._launched(bucket).then(ended)

    def _launched(self, bucket: Any) -> torch.futures.Future[Any]:
        """The mean over the ranks, in the bucket's own memory; NCCL divides by itself, gloo cannot."""
        if self._wire == "bf16":
            return bf16_compress_hook(None, bucket)  # type: ignore[arg-type]
        buffer: Tensor = bucket.buffer()
        divides = self.rank.group.backend == "nccl"
        if not divides:
            buffer.div_(self.rank.group.ranks)
        work = dist.all_reduce(buffer, dist.ReduceOp.AVG if divides else dist.ReduceOp.SUM, async_op=True)
        assert work is not None
        future: torch.futures.Future[Any] = work.get_future()
        return future
