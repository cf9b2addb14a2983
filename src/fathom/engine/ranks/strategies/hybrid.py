"""hybrid: synchronous inside a group of ranks, asynchronous between groups, with bounded staleness.

The ranks of a group average their gradients by all-reduce and clip the result. The first of each group sends it to the
server, a thread of rank 0 that applies gradients to the shared weights as they come, and receives the weights of that
moment; it gives them to its group. A group that is more than `staleness` updates ahead of the slowest waits. Groups of
one rank are fully asynchronous; one group of all ranks is synchronous.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from fathom.core.errors import BadOption
from fathom.core.ranks import ALL_REDUCE, BROADCAST, SEND_RECEIVE
from fathom.data.base import Batch
from fathom.engine.base import Engine, Loss
from fathom.engine.ranks.base import Parallel, Rank, Strategy, is_summed
from fathom.engine.ranks.server import Server
from fathom.workloads.base import State, Workload

PUSH, FINISH = 0.0, 1.0  # what a message says, in its first element


@dataclass(frozen=True, kw_only=True)
class Hybrid(Strategy):
    name: ClassVar = "hybrid"
    synchronous: ClassVar = False
    checkpointed: ClassVar = False

    group_size: int = 2
    staleness: int = 4  # updates that a group may be ahead of the slowest

    def check(self) -> None:
        if self.group_size < 1 or self.staleness < 0:
            raise BadOption("group_size must be at least 1, and staleness at least 0")

    def refusal(self, workload: Workload, ranks: int) -> str | None:
        if ranks % self.group_size:
            return f"cannot divide {ranks} ranks into groups of {self.group_size}"
        return None

    def prepare(self, rank: Rank, workload: Workload, state: State, loss: Loss) -> Parallel:
        if state.device.type != "cpu":
            raise BadOption(f"strategy {self.name} exchanges weights through a CPU: --device cpu")
        return _Worker(self, rank, state, loss)


class _Worker(Parallel):
    """One rank. The first rank of a group speaks with the server; on rank 0 the server runs beside it."""

    def __init__(self, settings: Hybrid, rank: Rank, state: State, loss: Loss) -> None:
        super().__init__(rank, state, loss)
        me, ranks, size = rank.group.rank, rank.group.ranks, settings.group_size
        leaders = list(range(0, ranks, size))
        groups = [dist.new_group(list(range(first, first + size))) for first in leaders]
        self._group, self._leader, self._size = groups[me // size], me - me % size, size
        self._traffic = dist.new_group(list(range(ranks)))  # of the server alone: its thread receives at any time
        self._count = sum(weight.numel() for weight in state.weights)
        self._summed: bool | None = None
        start = self._flat([weight.detach() for weight in state.weights])
        dist.broadcast(start, src=0)
        self._set_weights(start)
        self._server = _ServerThread(settings, rank, state, leaders, self._traffic) if me == 0 else None

    @property
    def summed(self) -> bool:
        return bool(self._summed)

    @property
    def notes(self) -> list[str]:
        seen = self._server.server.staleness if self._server else []
        if not seen:
            return []
        return [f"staleness: mean {sum(seen) / len(seen):.3g}, largest {max(seen)} updates of other groups"]

    def learnt(self) -> list[Tensor]:
        return super().learnt() if self._server is None else self._server.weights()

    def update(self, engine: Engine, batch: Batch) -> Tensor:
        if self._summed is None:
            self._summed = is_summed(self.rank, self.state, self.loss, batch)
        self.rank.drag.begin()
        loss = engine.gradients(batch)
        self.rank.drag.pull()
        if self._size > 1:
            self._reduce_in_group()
            self.rank.drag.begin()
        engine.clip()  # the gradients of the group, as one worker with its batches would
        flat = torch.empty(self._count + 1)
        flat[0] = PUSH
        flat[1:] = self._flat([_gradient(weight) for weight in self.state.weights])
        self.rank.drag.pull()
        ready = self.rank.timeline.now()
        self._exchange(flat)
        if self.rank.group.ranks > 1:
            self.rank.timeline.exposed_since(ready)
        self._set_weights(flat[1:])
        return loss

    def _reduce_in_group(self) -> None:
        """Leaves on every rank the gradients of all batches of its group."""
        flat = self._flat([_gradient(weight) for weight in self.state.weights])
        begun = self.rank.timeline.begin(ALL_REDUCE, flat.nbytes, self._size)
        dist.all_reduce(flat, group=self._group)
        self.rank.timeline.done(begun)
        self.rank.timeline.exposed_since(begun)
        if not self.summed:
            flat /= self._size
        for weight, part in zip(self.state.weights, _parts(flat, self.state.weights), strict=True):
            weight.grad = part.clone()

    def _exchange(self, flat: Tensor) -> None:
        """Gradients for weights: the leader with the server, the others of the group with the leader."""
        timeline = self.rank.timeline
        if self.rank.group.rank == self._leader:
            if self._server is not None:  # in this process: nothing travels
                self._server.push_own(flat)
            else:
                begun = timeline.begin(SEND_RECEIVE, flat.nbytes, 2)
                dist.send(flat, 0, group=self._traffic)
                dist.recv(flat, 0, group=self._traffic)
                timeline.done(begun)
        if self._size > 1:
            begun = timeline.begin(BROADCAST, flat.nbytes if self.rank.group.rank == self._leader else 0, self._size)
            dist.broadcast(flat, src=self._leader, group=self._group)
            timeline.done(begun)

    def finish(self) -> None:
        """Nobody waits for this group any more. Rank 0 leaves when all have finished."""
        if self._server is not None:
            self._server.finish_own()
        elif self.rank.group.rank == self._leader:
            dist.send(torch.full((self._count + 1,), FINISH), 0, group=self._traffic)

    @staticmethod
    def _flat(tensors: list[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def _set_weights(self, flat: Tensor) -> None:
        for weight, part in zip(self.state.weights, _parts(flat, self.state.weights), strict=True):
            weight.data.copy_(part)


def _parts(flat: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """Of each weight its own, in its shape."""
    parts = torch.split(flat, [weight.numel() for weight in weights])
    return [part.view(weight.shape) for weight, part in zip(weights, parts, strict=True)]


def _gradient(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad


class _ServerThread:
    """The server on rank 0, and the thread that receives what leaders send."""

    def __init__(self, settings: Hybrid, rank: Rank, state: State, leaders: list[int], traffic: Any) -> None:
        self._weights = [weight.detach().clone() for weight in state.weights]
        self._frozen = [not weight.requires_grad for weight in state.weights]
        self._timeline = rank.timeline
        self._optimizer, self._settings = _copied(state, self._weights), state.optimizer
        self._leaders, self._traffic = leaders, traffic
        self._count = sum(weight.numel() for weight in self._weights)
        self.server = Server(self._apply, len(leaders), settings.staleness)
        self._thread = threading.Thread(target=self._serve, name="parameter server", daemon=True)
        if len(leaders) > 1:
            self._thread.start()

    def weights(self) -> list[Tensor]:
        return [weight.clone() for weight in self._weights]

    def push_own(self, flat: Tensor) -> None:
        """Rank 0's own gradients; gives the weights in the same memory."""
        answered = threading.Event()

        def reply() -> None:
            self._weights_into(flat)
            answered.set()

        self.server.push(0, flat[1:], reply)
        answered.wait()

    def finish_own(self) -> None:
        self.server.finish(0)
        if self._thread.is_alive():
            self._thread.join()

    def _serve(self) -> None:
        while not self._others_finished():
            flat = torch.empty(self._count + 1)
            source = dist.recv(flat, group=self._traffic)
            worker = self._leaders.index(source)
            if flat[0] == FINISH:
                self.server.finish(worker)
            else:
                self.server.push(worker, flat[1:], lambda source=source: self._send(source))  # type: ignore[misc]

    def _others_finished(self) -> bool:
        return not self.server.running - {0}

    def _send(self, target: int) -> None:
        flat = torch.empty(self._count + 1)
        self._weights_into(flat)
        dist.send(flat, target, group=self._traffic)
        self._timeline.sent(flat.nbytes)

    def _weights_into(self, flat: Tensor) -> None:
        torch.cat([weight.reshape(-1) for weight in self._weights], out=flat[1:])

    def _apply(self, gradients: Tensor) -> None:
        for weight, part, frozen in zip(self._weights, _parts(gradients, self._weights), self._frozen, strict=True):
            if not frozen:  # without a gradient: weight decay would change it
                weight.grad = torch.empty_like(weight).copy_(part)  # in the layout that fused optimizers need
        assert self._settings is not None
        for group, own in zip(self._optimizer.param_groups, self._settings.param_groups, strict=True):
            group["lr"] = own["lr"]  # which a schedule changes in rank 0's optimizer
        self._optimizer.step()


def _copied(state: State, weights: list[Tensor]) -> Any:
    """The optimizer of the network, with its settings, over the server's weights."""
    assert state.optimizer is not None
    places = {id(weight): number for number, weight in enumerate(state.weights)}
    groups = [
        {**group, "params": [weights[places[id(weight)]] for weight in group["params"]]}
        for group in state.optimizer.param_groups
    ]
    make: Any = type(state.optimizer)  # every group has all settings
    return make(groups)
