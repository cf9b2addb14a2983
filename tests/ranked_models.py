"""Networks that no strategy was written for, as `ranked_models:Name`: their structure says how they are divided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adagrad, Optimizer

from fathom.data.base import Batch, InMemory
from fathom.workloads._classifier import Classifier


class Shortcut(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.inside(x)
        return result


class Mixed(nn.Module):
    """Children in another order than they are called in, with a reshape between two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(48, 4)
        self.body = nn.ModuleList(Shortcut(24) for _ in range(3))
        self.first = nn.Linear(24, 24)
        self.fold = nn.Conv1d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.body:
            x = block(x)
        result: Tensor = self.head(self.fold(x.reshape(len(x), 2, 12)).flatten(1))
        return result


@dataclass(frozen=True, kw_only=True)
class Folded(Classifier):
    """Summed losses, clipped gradients, and an optimizer whose state is there before the first step."""

    name: ClassVar = "folded"
    presets: ClassVar = {"tiny": {"batch": 8}, "small": {"batch": 8}}

    clip_norm: float | None = 1.0
    learning_rate: float = 0.05

    def network(self) -> nn.Module:
        return Mixed()

    def model(self) -> nn.Module:
        return self.network()

    def synthetic(self, seed: int) -> InMemory:
        chance = torch.Generator().manual_seed(seed)
        features = torch.randn(64, 24, generator=chance)
        return InMemory(features=features, label=features[:, :4].argmax(1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(self.forward(model, batch), batch["label"], reduction="sum")

    def optimizer(self, model: nn.Module) -> Optimizer:
        return Adagrad(model.parameters(), lr=self.learning_rate)


class Entangled(nn.Module):
    """The second layer reads the first one's features in another order, and a third one's weights are used directly."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.direct = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).softmax(-1))
        return F.linear(x, self.direct.weight, self.direct.bias)


@dataclass(frozen=True, kw_only=True)
class Softened(Folded):
    name: ClassVar = "softened"

    def network(self) -> nn.Module:
        return Entangled()
