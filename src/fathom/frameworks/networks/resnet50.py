"""ResNet-50: bottleneck blocks with batch normalisation, the stride in the 3x3 convolution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fathom.frameworks.network import Array, Layer, Network

if TYPE_CHECKING:
    import torch

EPSILON, MOMENTUM = 1e-5, 0.9  # of batch normalisation; torch's own, as Keras has others
EXPANSION = 4


@dataclass(frozen=True)
class Block:
    """One bottleneck; its layers are named after it."""

    name: str
    inputs: int
    width: int
    stride: int

    @property
    def outputs(self) -> int:
        return EXPANSION * self.width

    @property
    def projects(self) -> bool:
        """Whether the shortcut needs a convolution."""
        return self.stride > 1 or self.inputs != self.outputs

    def layers(self) -> Iterator[Layer]:
        convolutions = [
            ("conv1", self.inputs, self.width, 1),
            ("conv2", self.width, self.width, 3),
            ("conv3", self.width, self.outputs, 1),
            *([("shortcut", self.inputs, self.outputs, 1)] if self.projects else []),
        ]
        for name, inputs, outputs, kernel in convolutions:
            yield Layer(f"{self.name}_{name}", "conv", inputs, outputs, kernel, bias=False)
            yield Layer(f"{self.name}_{name}_norm", "norm", outputs, outputs)


@dataclass(frozen=True)
class ResNet50(Network):
    title: ClassVar[str] = "ResNet-50"
    source: ClassVar[str] = "He et al. 2015, as github.com/hclhkbu/dlbench ran it on synthetic images"
    batch: ClassVar[int] = 8
    learning_rate: ClassVar[float] = 0.01
    tiny: ClassVar[dict[str, Any]] = {"image": 64, "width": 4, "depths": (1, 2), "classes": 10}

    image: int = 224
    width: int = 64
    depths: tuple[int, ...] = (3, 4, 6, 3)
    classes: int = 1000

    def blocks(self) -> list[Block]:
        made, inputs = [], self.width
        for stage, depth in enumerate(self.depths):
            for number in range(depth):
                stride = 2 if stage and not number else 1
                block = Block(f"stage{stage + 1}_block{number + 1}", inputs, self.width << stage, stride)
                made.append(block)
                inputs = block.outputs
        return made

    def layers(self) -> list[Layer]:
        blocks = self.blocks()
        return [
            Layer("stem", "conv", 3, self.width, 7, bias=False),
            Layer("stem_norm", "norm", self.width, self.width),
            *(layer for block in blocks for layer in block.layers()),
            Layer("logits", "dense", blocks[-1].outputs, self.classes),
        ]

    def inputs(self, batch: int, chance: np.random.Generator) -> tuple[Array, Array]:
        images = chance.random((batch, 3, self.image, self.image), dtype=np.float32) - np.float32(0.5)
        return images, chance.integers(0, self.classes, batch)

    def torch_module(self) -> torch.nn.Module:
        from fathom.frameworks.networks._torch_modules import ResidualModule

        return ResidualModule(self)

    def keras_model(self, keras: Any) -> Any:
        """Padding is explicit: "same" pads a strided convolution on one side only."""
        last = keras.config.image_data_format() == "channels_last"
        layers, axis = keras.layers, -1 if last else 1

        def convolved(x: Any, layer: Layer, stride: int) -> Any:
            if layer.kernel > 1:
                x = layers.ZeroPadding2D(layer.kernel // 2)(x)
            return layers.Conv2D(layer.outputs, layer.kernel, stride, "valid", use_bias=False, name=layer.name)(x)

        def normed(x: Any, name: str) -> Any:
            return layers.BatchNormalization(axis, MOMENTUM, EPSILON, name=name)(x)

        def block(x: Any, each: Block) -> Any:
            found = [layer for layer in each.layers() if layer.kind == "conv"]
            kept = normed(convolved(x, found[3], each.stride), f"{found[3].name}_norm") if each.projects else x
            for layer, stride in zip(found[:3], (1, each.stride, 1), strict=True):
                x = normed(convolved(x, layer, stride), f"{layer.name}_norm")
                x = x if layer is found[2] else layers.ReLU()(x)
            return layers.ReLU()(layers.Add()([x, kept]))

        inputs = keras.Input((self.image, self.image, 3) if last else (3, self.image, self.image))
        x = layers.ReLU()(normed(convolved(inputs, self.layers()[0], 2), "stem_norm"))
        x = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(x))  # after ReLU a zero is never above the maximum
        for each in self.blocks():
            x = block(x, each)
        x = layers.GlobalAveragePooling2D()(x)
        return keras.Model(inputs, layers.Dense(self.classes, name="logits")(x))
