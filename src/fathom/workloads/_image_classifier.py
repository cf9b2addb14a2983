"""What the three ImageNet networks share: bytes in, normalised on the device, cross-entropy, five guesses out."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from fathom.dataset import Batch
from fathom.datasets import imagenet
from fathom.errors import BadOption
from fathom.workload import Output, Workload

_MEAN = (0.485, 0.456, 0.406)  # of ImageNet's red, green and blue, where white is 1
_DEVIATION = (0.229, 0.224, 0.225)
_SHRINKS = (1, 2, 4, 8, 16)  # every width of the three networks can be divided by these, AlexNet's groups included


class Normalise(nn.Module):
    """Bytes to floats of zero mean and unit deviation per colour, written once, in the network's memory format."""

    scale: Tensor
    offset: Tensor

    def __init__(self, channels_last: bool) -> None:
        super().__init__()
        self.memory_format = torch.channels_last if channels_last else torch.contiguous_format
        mean, deviation = (torch.tensor(values).view(1, 3, 1, 1) for values in (_MEAN, _DEVIATION))
        self.register_buffer("scale", 1 / (255 * deviation), persistent=False)
        self.register_buffer("offset", -mean / deviation, persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        shape, device = image.shape, image.device
        normal = torch.empty(shape, dtype=self.scale.dtype, device=device, memory_format=self.memory_format)
        return torch.addcmul(self.offset, image, self.scale, out=normal)


def dense_layers(features: int, hidden: int, classes: int, dropout: float) -> nn.Sequential:
    """The three fully connected layers that AlexNet introduced and VGG kept."""
    layers = nn.Sequential()
    for number, (inputs, outputs) in enumerate(((features, hidden), (hidden, hidden)), start=1):
        layers.add_module(f"full{number}", nn.Linear(inputs, outputs))
        layers.add_module(f"relu{number}", nn.ReLU(inplace=True))
        layers.add_module(f"dropout{number}", nn.Dropout(dropout))
    layers.add_module("full3", nn.Linear(hidden, classes))
    return layers


@dataclass(frozen=True, kw_only=True)
class ImageClassifier(Workload):
    """A network from images to one of many classes."""

    task: ClassVar = "Supervised"
    dataset: ClassVar = "ImageNet"
    item: ClassVar = "image"
    expects: ClassVar = imagenet.EXPECTS
    smallest_side: ClassVar[int]  # of an image that leaves at least one value after the last pooling

    side: int = 224
    classes: int = 1000
    shrink: int = 1  # divides the width of every layer; the published network is 1
    channels_last: bool = True
    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        if self.side < self.smallest_side:
            raise BadOption(f"side of {self.name} must be at least {self.smallest_side}, not {self.side}")
        if self.classes < 2:
            raise BadOption(f"classes must be at least 2, not {self.classes}")
        if self.shrink not in _SHRINKS:
            raise BadOption(f"shrink must be one of {', '.join(map(str, _SHRINKS))}, not {self.shrink}")

    @abstractmethod
    def network(self) -> nn.Module:
        """The network in torch's own memory format, from bytes [B, 3, side, side] to logits [B, classes]."""

    def model(self) -> nn.Module:
        network = self.network()
        if self.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network

    def synthetic(self, seed: int) -> imagenet.Patterns:
        return imagenet.synthetic(seed, self.side, self.classes)

    def real(self, folder: Path, split: str = "train") -> imagenet.Images:
        return imagenet.read(folder, split, self.side, self.classes)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch["image"])
        return logits

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(self.forward(model, batch).float(), batch["label"])

    def optimizer(self, model: nn.Module) -> Optimizer:
        return SGD(
            model.parameters(),
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            fused=True,  # one pass over the parameters, which for VGG-19 are half a gigabyte
        )

    def infer(self, model: nn.Module, batch: Batch) -> Output:
        """The five likeliest classes, best first, and how likely each is."""
        probabilities = self.forward(model, batch).float().softmax(-1)
        best = probabilities.topk(min(5, self.classes))
        return {"classes": best.indices, "probabilities": best.values}

    def answers(self, output: Output, source: Any) -> list[str]:
        names = dict(enumerate(source.class_names))
        guesses = zip(output["classes"].tolist(), output["probabilities"].tolist(), strict=True)
        return [
            ", ".join(f"{names.get(index, f'class {index}')} {chance:.1%}" for index, chance in zip(*row, strict=True))
            for row in guesses
        ]
