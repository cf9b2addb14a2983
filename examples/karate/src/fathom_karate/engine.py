"""anomaly: eager execution with autograd's anomaly detection, which names the op that makes a gradient nan."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from fathom import Engine

Batch = dict[str, Tensor]


class Anomaly(Engine):
    name: ClassVar = "anomaly"

    def update(self, batch: Batch) -> Tensor:
        with torch.autograd.set_detect_anomaly(True):
            loss = self.gradients(batch)
        self.clip()
        self.apply()
        return loss

    def infer(self, batch: Batch) -> dict[str, Tensor]:
        return self.output(batch)
