"""eager: every op is launched by the host when Python comes to it, as PyTorch does by default."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from fathom.data.base import Batch
from fathom.engine.base import Engine
from fathom.workloads.base import Output


class Eager(Engine):
    name: ClassVar = "eager"

    def update(self, batch: Batch) -> Tensor:
        loss = self.gradients(batch)
        self.clip()
        self.apply()
        return loss

    def infer(self, batch: Batch) -> Output:
        return self.output(batch)
