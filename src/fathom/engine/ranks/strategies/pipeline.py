"""pipeline: each rank has consecutive layers of the network, and micro-batches pass through them.

torch.distributed.pipelining runs the stages. The network must be a sequence of modules, which engine/ranks/chain.py
finds out by running it. Stages are cut so that the largest has as few FLOP as possible. Activations travel to the next
rank, their gradients back.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from fathom.core.errors import BadOption, EngineError, UnknownName
from fathom.core.ranks import ALL_REDUCE, SEND_RECEIVE
from fathom.data.base import Batch
from fathom.engine.base import Engine, Loss
from fathom.engine.ranks.agreement import TOLERANCE
from fathom.engine.ranks.base import Parallel, Rank, Strategy, is_summed
from fathom.engine.ranks.chain import Link, NotAChain, chain_of, cut, input_of, standing_in
from fathom.engine.ranks.timeline import Moment
from fathom.workloads.base import State, Workload

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
EXAMPLE = 2  # items that a network is tried on


@dataclass(frozen=True, kw_only=True)
class Pipeline(Strategy):
    name: ClassVar = "pipeline"
    divides: ClassVar = "network"
    checkpointed: ClassVar = False
    whole_weights: ClassVar = False

    microbatches: int = 0  # that a batch is divided into; 0 is one for each rank
    schedule: str = "gpipe"  # of SCHEDULES: all forward passes first, or one forward, one backward in turns

    def check(self) -> None:
        if self.schedule not in SCHEDULES:
            raise UnknownName.among("schedule", self.schedule, SCHEDULES)
        if self.microbatches < 0:
            raise BadOption(f"microbatches must be at least 1, or 0 for one a rank, not {self.microbatches}")

    def refusal(self, workload: Workload, ranks: int) -> str | None:
        parts = self.microbatches or ranks
        if workload.interactive:
            return "cannot run a network that also acts between its updates: no rank has all of it"
        if workload.batch % parts:
            return f"cannot divide a batch of {workload.batch} into {parts} equal micro-batches"
        if self.schedule == "1f1b" and parts < ranks:
            return f"needs at least {ranks} micro-batches for {ranks} ranks by schedule 1f1b, not {parts}"
        return None

    def prepare(self, rank: Rank, workload: Workload, state: State, loss: Loss) -> Parallel:
        if rank.timeline.slow_link is not None:
            raise BadOption("strategy pipeline has no slow link: it does not see the end of each transfer")
        try:
            return _Piped(self, rank, workload, state, loss)
        except NotAChain as reason:
            raise EngineError(f"strategy pipeline cannot cut {workload.name}: it {reason}") from None


class _Piped(Parallel):
    """One stage. The first feeds the pipeline, and the last computes the loss."""

    def __init__(self, settings: Pipeline, rank: Rank, workload: Workload, state: State, loss: Loss) -> None:
        super().__init__(rank, state, loss)
        self._model, self._clip_norm = state.model, workload.clip_norm
        self._total = super().parameters
        few = {name: column.to(state.device) for name, column in replace(workload, batch=EXAMPLE).example().items()}
        with state.autocast():
            links = chain_of(state.model, loss, few)
        self._summed = is_summed(rank, state, loss, few)
        _check_loss(state, loss, few, self._summed)
        me, ranks = rank.group.rank, rank.group.ranks
        stages = cut(links, ranks)
        self._stages = [(stage[0].name, stage[-1].name) for stage in stages]
        self._normalised = any(isinstance(module, _BatchNorm) for module in state.model.modules())
        self._parts = settings.microbatches or ranks
        self._batch: Batch = {}
        own = _Section(stages[me], state.autocast)
        size = workload.batch // self._parts
        given = stages[me - 1][-1].output if me else input_of(state.model, loss, few)
        shapes = _resized(given, size, me > 0), _resized(stages[me][-1].output, size, True)
        stage = _TimedStage(rank, own, me, ranks, state.device, input_args=shapes[0], output_args=shapes[1])
        self._stage = stage
        self._schedule = SCHEDULES[settings.schedule](
            stage, self._parts, loss_fn=self._part_loss if stage.is_last else _no_loss, scale_grads=False
        )
        _keep(state, own)

    @property
    def summed(self) -> bool:
        return self._summed

    @property
    def parameters(self) -> int:
        return self._total

    @property
    def notes(self) -> list[str]:
        cuts = ", ".join(f"{number}: {first} to {last}" for number, (first, last) in enumerate(self._stages))
        notes = [
            f"pipeline of {self._parts} micro-batches; stages {cuts}",
            "pipeline: what travels while a stage computes was not timed, and is not in hidden_s",
        ]
        if self._normalised and self._parts > 1:
            notes.append("statistics of batch normalisation are those of a micro-batch, not of the batch")
        return notes

    def update(self, engine: Engine, batch: Batch) -> Tensor:
        for weight in self.state.weights:
            weight.grad = None
        self._batch, losses = batch, list[Tensor]()
        given = [input_of(self._model, self.loss, batch)] if self._stage.is_first else []
        if self._stage.is_last:
            places = torch.arange(len(next(iter(batch.values()))), device=self.state.device)
            self._schedule.step(*given, target=places, losses=losses, return_outputs=False)
        else:
            self._schedule.step(*given, return_outputs=False)
        self._stage.end_wait()
        self.rank.drag.begin()
        self._clip()
        engine.apply()
        self.rank.drag.pull()
        return torch.stack(losses).sum().detach() if losses else torch.full((), torch.nan, device=self.state.device)

    def _part_loss(self, output: Tensor, places: Tensor) -> Tensor:
        """The part of the batch's loss that a micro-batch has, so that the parts' gradients add up to the batch's."""
        part = {name: column[places] for name, column in self._batch.items()}
        self.rank.drag.begin()
        with standing_in(self._model, lambda *_: output), self.state.autocast():
            loss = self.loss(part).sum()
        self.rank.drag.pull()
        return loss if self._summed else loss / self._parts

    def _clip(self) -> None:
        """By the norm of all stages' gradients together."""
        if self._clip_norm is None:
            return
        gradients = [weight.grad for weight in self.state.weights if weight.grad is not None]
        squared = get_total_norm(gradients).square().to(self.state.device)
        begun = self.rank.timeline.begin(ALL_REDUCE, squared.nbytes)
        dist.all_reduce(squared)
        self.rank.timeline.done(begun)
        self.rank.timeline.exposed_since(begun)
        clip_grads_with_norm_(self.state.weights, self._clip_norm, squared.sqrt())


def _no_loss(*_: Any) -> Tensor:
    """torch asks for a loss function where there is a backward pass, and calls that of the last stage alone."""
    raise AssertionError("only the last stage has a loss")


class _Section(nn.Module):
    """The links of one stage, from one contiguous tensor to another: backends send no other layout."""

    def __init__(self, links: Sequence[Link], autocast: Any) -> None:
        super().__init__()
        self._links, self._autocast = list(links), autocast
        self.parts = nn.ModuleList(link.module for link in links)

    def forward(self, x: Tensor) -> Tensor:
        within: AbstractContextManager[Any] = self._autocast()
        with within:
            x = _Relaid.apply(x, self._links[0].channels_last)  # type: ignore[no-untyped-call]
            for link in self._links:
                x = link(x)
            return x.contiguous()


class _Relaid(torch.autograd.Function):
    """A received tensor in the layout that the whole network has there; its gradient is sent back contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, channels_last: bool) -> Tensor:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        return x.contiguous(memory_format=layout).view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.contiguous(), None


class _TimedStage(PipelineStage):
    """Notes when the stage waits for a message, and what it sends.

    A schedule asks for the operations of a message right before it starts them, and computes when they are done: what
    lies between is the wait.
    """

    def __init__(self, rank: Rank, section: _Section, number: int, stages: int, device: torch.device, **own: Any):
        super().__init__(section, number, stages, device, **own)
        self._timeline, self._drag = rank.timeline, rank.drag
        self._receiving: tuple[Moment, str] | None = None
        self._sending: tuple[Moment, str] | None = None  # from here on a schedule may wait for its sends

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._received(super().get_fwd_recv_ops(fwd_chunk_id), f"{self.stage_index - 1}+{fwd_chunk_id}")

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._received(super().get_bwd_recv_ops(bwd_chunk_id), f"{self.stage_index + 1}-{bwd_chunk_id}")

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._sent(super().get_fwd_send_ops(fwd_chunk_id), f"{self.stage_index}+{fwd_chunk_id}")

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._sent(super().get_bwd_send_ops(bwd_chunk_id), f"{self.stage_index}-{bwd_chunk_id}")

    def forward_one_chunk(self, *given: Any, **named: Any) -> Any:
        self.end_wait()
        self._drag.begin()
        output = super().forward_one_chunk(*given, **named)
        self._drag.pull()
        return output

    def backward_one_chunk(self, *given: Any, **named: Any) -> Any:
        self.end_wait()
        self._drag.begin()
        output = super().backward_one_chunk(*given, **named)
        self._drag.pull()
        return output

    def end_wait(self) -> None:
        """What was waited for has come."""
        if self._receiving is not None:
            begun, message = self._receiving
            self._timeline.done(begun)
            self._timeline.exposed_since(begun, message)
        elif self._sending is not None:
            self._timeline.heartbeat.done()
            self._timeline.exposed_since(*self._sending)
        self._receiving = self._sending = None

    def _received(self, operations: list[dist.P2POp], message: str) -> list[dist.P2POp]:
        if operations:
            self.end_wait()
            self._timeline.reach(message)
            self._receiving = self._timeline.begin(SEND_RECEIVE, 0.0), message
        return operations

    def _sent(self, operations: list[dist.P2POp], message: str) -> list[dist.P2POp]:
        if operations:
            sent = sum(operation.tensor.nbytes for operation in operations)
            self._timeline.heartbeat.begin(SEND_RECEIVE)
            self._sending = self._timeline.reach(message, sent), message
        return operations


def _resized(example: Tensor, items: int, gradient: bool) -> Tensor:
    """As large as a micro-batch, without memory; and whether a gradient comes back for it."""
    return example.new_empty((items, *example.shape[1:]), device="meta", requires_grad=gradient)


def _check_loss(state: State, loss: Loss, batch: Batch, summed: bool) -> None:
    """The loss of a batch must be the sum or the mean of its items' losses; evaluation mode, as dropout is random."""
    training = state.model.training
    state.model.eval()
    with torch.no_grad(), state.autocast():
        items = [{name: column[place : place + 1] for name, column in batch.items()} for place in range(EXAMPLE)]
        parts, whole = sum(float(loss(item).sum()) for item in items), float(loss(batch).sum())
    state.model.train(training)
    if abs((parts if summed else parts / EXAMPLE) - whole) > TOLERANCE * abs(whole):
        raise NotAChain("has a loss that is neither the sum nor the mean of its items' losses")


def _keep(state: State, own: _Section) -> None:
    """The state has this stage's weights alone, with the optimizer's settings; the memory of the others is freed."""
    assert state.optimizer is not None
    kept = {id(weight) for weight in own.parameters()}
    for group in state.optimizer.param_groups:
        for weight in group["params"]:
            if id(weight) not in kept:
                state.optimizer.state.pop(weight, None)
                weight.data = weight.data.new_empty(0)
        group["params"] = [weight for weight in group["params"] if id(weight) in kept]
    state.optimizer.param_groups = [group for group in state.optimizer.param_groups if group["params"]]
    state.weights = list(own.parameters())
