"""What the Cookbook's classifiers of vectors share: cross-entropy, SGD with momentum, the likeliest class as answer."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from fathom.core.errors import BadOption
from fathom.data.base import Batch
from fathom.workloads.base import Output, Workload


@dataclass(frozen=True, kw_only=True)
class Classifier(Workload):
    """A network from some numbers to one of a few classes."""

    suites: ClassVar = ("cookbook",)
    expects: ClassVar = "nothing: the Cookbook published no data for this network, so that it runs on synthetic data"
    unit: ClassVar = "class"  # what a label is called in answers

    learning_rate: float = 0.01
    momentum: float = 0.9

    @abstractmethod
    def network(self) -> nn.Module:
        """From what inputs() gives to logits."""

    def inputs(self, batch: Batch) -> Tensor:
        return batch["features"]

    def model(self) -> nn.Module:
        """He's weights, which keep the variance of what passes the ReLUs, and no biases at the start."""
        network = self.network()
        for module in network.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        return network

    def real(self, folder: Path, split: str = "train") -> Any:
        raise BadOption(f"{self.name} runs on synthetic data alone: the Cookbook published no data for it")

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(self.inputs(batch))
        return logits

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(self.forward(model, batch).float(), batch["label"])

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(model.parameters(), lr=self.learning_rate, momentum=self.momentum, fused=True)

    def infer(self, model: nn.Module, batch: Batch) -> Output:
        """The likeliest class and how likely it is."""
        best = self.forward(model, batch).float().softmax(-1).max(-1)
        return {"label": best.indices, "probability": best.values}

    def answers(self, output: Output, source: Any) -> list[str]:
        pairs = zip(output["label"].tolist(), output["probability"].tolist(), strict=True)
        return [f"{self.unit} {label} {chance:.1%}" for label, chance in pairs]
