"""What the engines share that run an exported graph: they export at the first batch of each shape, and only infer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor

from fathom.core.errors import EngineError
from fathom.data.base import Batch
from fathom.engine.base import Engine, Infer, Loss
from fathom.engine.export import Graph, NotExportable, export, reason
from fathom.engine.marks import mark
from fathom.workloads.base import Output, State, Workload

EXPORTERS = ("onnx", "onnxscript")  # what torch.onnx needs
Run = Callable[[Batch], Output]
_SHAPE = attrgetter("shape", "dtype")  # in C: some networks take less than a millisecond


class Exported(Engine):
    """Runs a graph with the weights of the first step; weights that change later do not reach it."""

    alone: ClassVar = True
    package: ClassVar[str]  # the runtime's; the extra that installs it has the engine's name

    def __init__(self, state: State, loss: Loss, infer: Infer, clip: Callable[[], object] | None = None) -> None:
        super().__init__(state, loss, infer, clip)
        if state.autocast is not nullcontext:
            raise EngineError(f"engine {self.name} runs in fp32: leave --precision out")
        self._runs: dict[tuple[Any, ...], Run] = {}

    @classmethod
    def refusal(cls, workload: Workload, device: torch.device, phase: str) -> str | None:
        if phase == "train":
            return "is for inference: it cannot train"
        if device.type != "cpu":
            return f"runs on the CPU alone, not on {device}"
        missing = [package for package in (cls.package, *EXPORTERS) if find_spec(package) is None]
        if missing:
            return f"needs {' and '.join(missing)}: pip install 'fathom[{cls.name}]'"
        return None

    @abstractmethod
    def build(self, graph: Graph) -> Run:
        """What runs this graph."""

    def update(self, batch: Batch) -> Tensor:
        raise EngineError(f"engine {self.name} is for inference: it cannot train")

    def infer(self, batch: Batch) -> Output:
        shape = tuple(map(_SHAPE, batch.values()))
        run = self._runs.get(shape)
        if run is None:
            run = self._runs[shape] = self._built(batch)
        with mark("forward"):
            return run(batch)

    def _built(self, batch: Batch) -> Run:
        try:
            graph = export(self.state.model, self._infer, batch)
        except NotExportable as error:
            raise EngineError(f"engine {self.name} {error}") from None
        try:
            return self.build(graph)
        except Exception as error:  # an operator that the runtime has not
            raise EngineError(f"engine {self.name} cannot load the exported graph: {reason(error)}") from None
