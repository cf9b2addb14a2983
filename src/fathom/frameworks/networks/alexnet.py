"""AlexNet without groups, as the guide's source ran it on synthetic images: five convolutions, three dense layers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fathom.frameworks.network import Array, Layer, Network

if TYPE_CHECKING:
    import torch

POOLED = ("conv1", "conv2", "conv5")  # convolutions with a 3x3 maximum pool of stride 2 after them
STRIDE = {"conv1": 4}
PADDING = {"conv1": 0, "conv2": 2, "conv3": 1, "conv4": 1, "conv5": 1}


@dataclass(frozen=True)
class AlexNet(Network):
    """Without dropout: its random masks could not be equal in two frameworks."""

    title: ClassVar[str] = "AlexNet, ungrouped"
    source: ClassVar[str] = "github.com/hclhkbu/dlbench, alexnet.prototxt (synthetic), at 227x227 and without dropout"
    batch: ClassVar[int] = 16
    learning_rate: ClassVar[float] = 0.001
    tiny: ClassVar[dict[str, Any]] = {"image": 99, "channels": (4, 6, 8, 8, 6), "hidden": 16, "classes": 10}

    image: int = 227
    channels: tuple[int, ...] = (96, 256, 384, 384, 256)
    hidden: int = 4096
    classes: int = 1000

    def layers(self) -> list[Layer]:
        sizes = zip((3, *self.channels), self.channels, (11, 5, 3, 3, 3), strict=False)
        convolutions = [Layer(f"conv{n}", "conv", *each) for n, each in enumerate(sizes, start=1)]
        side = self._side()
        flattened = (self.channels[-1], side, side)
        return [
            *convolutions,
            Layer("fc6", "dense", self.channels[-1] * side**2, self.hidden, flattened=flattened),
            Layer("fc7", "dense", self.hidden, self.hidden),
            Layer("fc8", "dense", self.hidden, self.classes),
        ]

    def _side(self) -> int:
        """Of the image after the last pool; all other convolutions keep the size."""
        side = (self.image - 11) // 4 + 1
        for _ in POOLED:
            side = (side - 3) // 2 + 1
        return side

    def inputs(self, batch: int, chance: np.random.Generator) -> tuple[Array, Array]:
        images = chance.random((batch, 3, self.image, self.image), dtype=np.float32) - np.float32(0.5)
        return images, chance.integers(0, self.classes, batch)

    def torch_module(self) -> torch.nn.Module:
        from torch import nn

        modules: OrderedDict[str, nn.Module] = OrderedDict()
        for layer in self.layers():
            if layer.kind == "conv":
                stride, padding = STRIDE.get(layer.name, 1), PADDING[layer.name]
                modules[layer.name] = nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, stride, padding)
            else:
                if layer.flattened:
                    modules["flatten"] = nn.Flatten()
                modules[layer.name] = nn.Linear(layer.inputs, layer.outputs)
            if layer.name != "fc8":
                modules[f"{layer.name}_relu"] = nn.ReLU()
            if layer.name in POOLED:
                modules[f"{layer.name}_pool"] = nn.MaxPool2d(3, 2)
        return nn.Sequential(modules)

    def keras_model(self, keras: Any) -> Any:
        last = keras.config.image_data_format() == "channels_last"
        model = keras.Sequential([keras.Input((self.image, self.image, 3) if last else (3, self.image, self.image))])
        for layer in self.layers():
            activation = None if layer.name == "fc8" else "relu"
            if layer.kind == "conv":
                padding, stride = "same" if PADDING[layer.name] else "valid", STRIDE.get(layer.name, 1)
                model.add(
                    keras.layers.Conv2D(
                        layer.outputs, layer.kernel, stride, padding, activation=activation, name=layer.name
                    )
                )
            else:
                if layer.flattened:
                    model.add(keras.layers.Reshape((layer.inputs,)))  # Flatten would reorder channels_first
                model.add(keras.layers.Dense(layer.outputs, activation, name=layer.name))
            if layer.name in POOLED:
                model.add(keras.layers.MaxPooling2D(3, 2))
        return model
