"""The PyTorch modules of networks that are more than a sequence of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from fathom.frameworks.networks.resnet50 import Block, ResNet50


class LanguageModelModule(nn.Module):
    """Embedding, two LSTMs, logits of every position.

    torch's LSTM has two biases, of which one is enough: the other stays at zero and is not trained, as Keras has none.
    """

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.lstm1, self.lstm2 = (nn.LSTM(hidden, hidden, batch_first=True) for _ in range(2))
        self.logits = nn.Linear(hidden, vocabulary)
        for name, weight in self.named_parameters():
            if name.endswith("bias_hh_l0"):
                nn.init.zeros_(weight.requires_grad_(False))

    def forward(self, words: Tensor) -> Tensor:
        x, _ = self.lstm1(self.embedding(words))
        x, _ = self.lstm2(x)
        made: Tensor = self.logits(x)
        return made


class ResidualModule(nn.Module):
    """Layers are children under the names that the network gives them."""

    def __init__(self, network: ResNet50) -> None:
        from fathom.frameworks.networks.resnet50 import EPSILON, MOMENTUM

        super().__init__()
        self.blocks = network.blocks()
        strides = {f"{block.name}_{name}": block.stride for block in self.blocks for name in ("conv2", "shortcut")}
        strides["stem"] = 2
        for layer in network.layers():
            module: nn.Module
            if layer.kind == "conv":
                stride, padding = strides.get(layer.name, 1), layer.kernel // 2
                module = nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, stride, padding, bias=False)
            elif layer.kind == "norm":
                module = nn.BatchNorm2d(layer.outputs, EPSILON, 1 - MOMENTUM)
            else:
                module = nn.Linear(layer.inputs, layer.outputs)
            self.add_module(layer.name, module)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self._normed(images, "stem")), 3, 2, 1)
        for block in self.blocks:
            x = self._block(x, block)
        made: Tensor = self.get_submodule("logits")(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
        return made

    def _block(self, x: Tensor, block: Block) -> Tensor:
        kept = self._normed(x, f"{block.name}_shortcut") if block.projects else x
        x = F.relu(self._normed(x, f"{block.name}_conv1"))
        x = F.relu(self._normed(x, f"{block.name}_conv2"))
        return F.relu(self._normed(x, f"{block.name}_conv3") + kept)

    def _normed(self, x: Tensor, name: str) -> Tensor:
        made: Tensor = self.get_submodule(f"{name}_norm")(self.get_submodule(name)(x))
        return made
