"""compile: forward and backward are compiled by torch.compile, into fewer and larger kernels.

Random numbers are torch's own and in its order: a seed trains the same network as eager does, up to rounding.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import ClassVar

import torch
from torch import Tensor

from fathom.core.errors import EngineError, first_line
from fathom.data.base import Batch
from fathom.engine.base import Engine, Infer, Loss
from fathom.workloads.base import Output, State, Workload

COMPILERS = ("g++", "clang++", "c++")  # of a CPU's kernels, besides what CXX names


class Compile(Engine):
    name: ClassVar = "compile"
    layer: ClassVar = 1

    def __init__(self, state: State, loss: Loss, infer: Infer, clip: Callable[[], object] | None = None) -> None:
        super().__init__(state, loss, infer, clip)
        # without the option dropout draws other numbers than eager does, and no loss could be compared
        compiled = partial(torch.compile, options={"fallback_random": True})
        self._loss, self._infer = compiled(self._loss), compiled(self._infer)

    @classmethod
    def refusal(cls, workload: Workload, device: torch.device, phase: str) -> str | None:
        if device.type == "cuda" and find_spec("triton") is None:
            return "needs triton, which this build of torch did not bring"
        if device.type == "cpu":
            from torch._inductor import config  # loads the compiler, for a second

            asked = [config.cpp.cxx[1], *COMPILERS]
            if not any(shutil.which(compiler) for compiler in asked if compiler):
                return "needs a C++ compiler such as g++ on the PATH"
        return None

    def gradients(self, batch: Batch) -> Tensor:
        with _told_in_one_line():  # the backward pass is compiled when it first runs
            return super().gradients(batch)

    def output(self, batch: Batch) -> Output:
        with _told_in_one_line():
            return super().output(batch)


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """What fails in the compiler is one line about the engine; what fails in the work itself stays as it is."""
    from torch._dynamo.exc import TorchDynamoException  # loads the compiler, for a second

    try:
        yield
    except TorchDynamoException as error:
        raise EngineError(f"engine compile cannot compile this step: {first_line(error)}") from None
