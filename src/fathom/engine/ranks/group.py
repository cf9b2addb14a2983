"""Group: the process group of a job as one rank sees it, and the small messages that ranks exchange outside steps."""

from __future__ import annotations

import os
import socket
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from fathom.core.errors import BadOption, DeviceError
from fathom.core.heartbeat import BARRIER, RENDEZVOUS, Heartbeat
from fathom.machine.devices import resolve

PINGS = 16  # round trips by which the clocks of two machines are compared


@dataclass(frozen=True)
class Clock:
    """What is added to this rank's clock to get rank 0's, and by how much that may be wrong; None: the same clock."""

    offset_s: float = 0.0
    error_s: float | None = None


class Group(AbstractContextManager["Group"]):
    """Joined on entering, left on leaving. torchrun's environment says who is who."""

    def __init__(self, device: str, heartbeat: Heartbeat, timeout_s: float) -> None:
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_rank, self.local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        self.nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
        self.device = _device_of(device, self.local_rank, self.local_ranks)
        self.backend = "nccl" if self.device.type == "cuda" else "gloo"
        self.heartbeat, self.timeout_s = heartbeat, timeout_s

    def __enter__(self) -> Self:
        self.heartbeat.doing(RENDEZVOUS)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        backend = "cpu:gloo,cuda:nccl" if self.backend == "nccl" else "gloo"  # objects travel by the CPU
        timeout = timedelta(seconds=self.timeout_s)
        store, rank, ranks = next(rendezvous("env://", timeout=timeout))
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = PrefixStore(f"attempt-{attempt}", store)  # it still has the addresses of the ranks before a restart
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:  # else others may be gone, and leaving would wait for them
            dist.destroy_process_group()

    def barrier(self) -> None:
        """By a message on the CPU, so that it says nothing to a GPU."""
        self.heartbeat.begin(BARRIER)
        dist.all_reduce(torch.zeros(1))
        self.heartbeat.done()

    def gathered(self, value: Any) -> list[Any]:
        """The values of all ranks, on every rank."""
        found: list[Any] = [None] * self.ranks
        self.heartbeat.begin("all-gather")
        dist.all_gather_object(found, value)
        self.heartbeat.done()
        return found

    def largest(self, value: float) -> float:
        """Over the ranks: how they come to one decision."""
        held = torch.tensor([value], dtype=torch.float64)
        self.heartbeat.begin("all-reduce")
        dist.all_reduce(held, op=dist.ReduceOp.MAX)
        self.heartbeat.done()
        return float(held)

    def check_agreement(self, configuration: dict[str, Any]) -> None:
        """Raises on every rank where one was started with another configuration, with the first difference."""
        found = self.gathered(configuration)
        for rank, other in enumerate(found):
            for name in sorted(found[0].keys() | other.keys()):
                if other.get(name) != found[0].get(name):
                    ours = f"{name} is {other.get(name)!r} on rank {rank} and {found[0].get(name)!r} on rank 0"
                    raise BadOption(f"rank {rank}: started with another configuration: {ours}")

    def clock(self) -> Clock:
        """By pings to rank 0, of which the shortest round trip bounds the error; one machine has one clock."""
        hosts = self.gathered(socket.gethostname())
        if len(set(hosts)) == 1:
            return Clock()
        found = Clock(0.0, 0.0)
        for rank in range(1, self.ranks):
            if self.rank == 0:
                self._answer(rank)
            elif self.rank == rank:
                found = self._ask()
        return found

    def _answer(self, rank: int) -> None:
        held = torch.zeros(1, dtype=torch.float64)
        for _ in range(PINGS):
            dist.recv(held, rank)
            held[0] = time.perf_counter()
            dist.send(held, rank)

    def _ask(self) -> Clock:
        held, best = torch.zeros(1, dtype=torch.float64), Clock(0.0, float("inf"))
        for _ in range(PINGS):
            begun = time.perf_counter()
            dist.send(held, 0)
            dist.recv(held, 0)
            ended = time.perf_counter()
            if best.error_s is None or (ended - begun) / 2 < best.error_s:
                best = Clock(float(held) - (begun + ended) / 2, (ended - begun) / 2)
        return best


def _device_of(name: str, local_rank: int, local_ranks: int) -> torch.device:
    """Each rank of a machine has a GPU of its own: NCCL refuses two ranks on one."""
    device = resolve(name)
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise DeviceError(f"ranks run on cpu or cuda, not {device.type}")
    if (found := torch.cuda.device_count()) < local_ranks:
        raise DeviceError(f"{local_ranks} ranks on one machine need {local_ranks} GPUs; there are {found}")
    return torch.device("cuda", local_rank)
