"""faulty: autoenc with something going wrong, as torch or the system would have it."""

from __future__ import annotations

import os
import resource
import signal
from dataclasses import dataclass
from typing import ClassVar

import psutil
import torch
from torch import Tensor, nn

from fathom.data import mnist
from fathom.data.base import Batch
from fathom.workloads.autoenc import Autoenc


@dataclass(frozen=True, kw_only=True)
class Faulty(Autoenc):
    name: ClassVar = "faulty"

    fault: str = "none"

    def synthetic(self, seed: int) -> mnist.Digits:
        if self.fault == "killed in setup":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().synthetic(seed)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss = super().loss(model, batch)
        if self.fault == "device out of memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        if self.fault == "host out of memory":
            most = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (64 << 20), most))
            torch.ones(1 << 28)
        return loss
