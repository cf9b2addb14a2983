"""FCN-5, the fully connected network of the guide's Table I: three hidden layers of 2048 sigmoid units."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fathom.frameworks.network import Array, Layer, Network

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class FullyConnected(Network):
    title: ClassVar[str] = "Fully connected network (FCN-5)"
    source: ClassVar[str] = (
        "github.com/hclhkbu/dlbench, ffn26752.prototxt: the code of the study that the guide's Table I is from; the "
        "guide itself does not print the layers"
    )
    batch: ClassVar[int] = 64
    learning_rate: ClassVar[float] = 0.01
    tiny: ClassVar[dict[str, Any]] = {"features": 40, "hidden": 16, "classes": 24}

    features: int = 26_752
    hidden: int = 2048
    classes: int = 26_752

    def layers(self) -> list[Layer]:
        return [
            Layer("hidden1", "dense", self.features, self.hidden),
            Layer("hidden2", "dense", self.hidden, self.hidden),
            Layer("hidden3", "dense", self.hidden, self.hidden),
            Layer("logits", "dense", self.hidden, self.classes),
        ]

    def inputs(self, batch: int, chance: np.random.Generator) -> tuple[Array, Array]:
        features = chance.random((batch, self.features), dtype=np.float32) - np.float32(0.5)
        return features, chance.integers(0, self.classes, batch)

    def torch_module(self) -> torch.nn.Module:
        from torch import nn

        modules: OrderedDict[str, nn.Module] = OrderedDict()
        *hidden, logits = self.layers()
        for layer in hidden:
            modules[layer.name] = nn.Linear(layer.inputs, layer.outputs)
            modules[f"{layer.name}_sigmoid"] = nn.Sigmoid()
        modules[logits.name] = nn.Linear(logits.inputs, logits.outputs)
        return nn.Sequential(modules)

    def keras_model(self, keras: Any) -> Any:
        *hidden, logits = self.layers()
        dense = [keras.layers.Dense(layer.outputs, "sigmoid", name=layer.name) for layer in hidden]
        last = keras.layers.Dense(logits.outputs, name=logits.name)
        return keras.Sequential([keras.Input((self.features,)), *dense, last])
