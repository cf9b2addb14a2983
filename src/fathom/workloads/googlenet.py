"""googlenet: GoogLeNet of Szegedy et al. (2014), nine Inception modules, without the auxiliary classifiers.

The paper trains with two auxiliary classifiers and drops them afterwards. The Cookbook's network has none, and so has
this one: 6,998,552 parameters, biases included, and response normalisation where the paper has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fathom.core.errors import BadOption
from fathom.workloads._image_classifier import ImageClassifier, Normalise
from fathom.workloads._response_normalisation import ResponseNormalisation
from fathom.workloads.base import Facts


class Widths(NamedTuple):
    """Channels that the branches of a module give; the reductions are 1x1 convolutions before the larger ones."""

    one: int
    reduce3: int
    three: int
    reduce5: int
    five: int
    pooled: int

    @property
    def total(self) -> int:
        return self.one + self.three + self.five + self.pooled


_STEM = (64, 64, 192)  # the 7x7 convolution, the 1x1 reduction and the 3x3 convolution
_MODULES = {  # Table 1 of the paper
    "3a": Widths(64, 96, 128, 16, 32, 32),
    "3b": Widths(128, 128, 192, 32, 96, 64),
    "4a": Widths(192, 96, 208, 16, 48, 64),
    "4b": Widths(160, 112, 224, 24, 64, 64),
    "4c": Widths(128, 128, 256, 24, 64, 64),
    "4d": Widths(112, 144, 288, 32, 64, 64),
    "4e": Widths(256, 160, 320, 32, 128, 128),
    "5a": Widths(256, 160, 320, 32, 128, 128),
    "5b": Widths(384, 192, 384, 48, 128, 128),
}
_POOLED_BEFORE = ("4a", "5a")
_NARROWEST = 8  # the largest shrink: no branch is left without a channel


class Inception(nn.Module):
    """Convolutions of 1x1, 3x3 and 5x5 and a pooling side by side, their results one after the other in channels."""

    def __init__(self, channels: int, widths: Widths) -> None:
        super().__init__()
        self.one = _convolutions((channels, widths.one, 1))
        self.three = _convolutions((channels, widths.reduce3, 1), (widths.reduce3, widths.three, 3))
        self.five = _convolutions((channels, widths.reduce5, 1), (widths.reduce5, widths.five, 5))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _convolutions((channels, widths.pooled, 1)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], 1)


class GoogLeNetwork(nn.Module):
    def __init__(self, classes: int, shrink: int, dropout: float, channels_last: bool) -> None:
        super().__init__()
        first, reduced, channels = (width // shrink for width in _STEM)
        self.normalise = Normalise(channels_last)
        self.stem = nn.Sequential()
        self.stem.add_module("conv1", nn.Conv2d(3, first, 7, stride=2, padding=3))
        self.stem.add_module("relu1", nn.ReLU(inplace=True))
        self.stem.add_module("pool1", nn.MaxPool2d(3, stride=2, ceil_mode=True))
        self.stem.add_module("response1", ResponseNormalisation())
        self.stem.add_module("conv2", _convolutions((first, reduced, 1), (reduced, channels, 3)))
        self.stem.add_module("response2", ResponseNormalisation())
        self.stem.add_module("pool2", nn.MaxPool2d(3, stride=2, ceil_mode=True))
        self.inception = nn.Sequential()
        for name, published in _MODULES.items():
            widths = Widths(*(width // shrink for width in published))
            if name in _POOLED_BEFORE:
                self.inception.add_module(f"pool{name[0]}", nn.MaxPool2d(3, stride=2, ceil_mode=True))
            self.inception.add_module(f"module{name}", Inception(channels, widths))
            channels = widths.total
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.full = nn.Linear(channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.mean(self.inception(self.stem(self.normalise(image))))
        logits: Tensor = self.full(self.dropout(x.flatten(1)))
        return logits

    def initialise(self) -> None:
        """He's, under which the signal passes 22 layers without normalisation; a last layer that begins as a guess."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        nn.init.normal_(self.full.weight, std=0.01)
        nn.init.zeros_(self.full.bias)


def _convolutions(*layers: tuple[int, int, int]) -> nn.Sequential:
    """Each (channels in, channels out, side of the window), with its ReLU."""
    found = nn.Sequential()
    for number, (inputs, outputs, window) in enumerate(layers, start=1):
        found.add_module(f"conv{number}", nn.Conv2d(inputs, outputs, window, padding=window // 2))
        found.add_module(f"relu{number}", nn.ReLU(inplace=True))
    return found


@dataclass(frozen=True, kw_only=True)
class GoogLeNet(ImageClassifier):
    name: ClassVar = "googlenet"
    facts: ClassVar = Facts(
        year=2014,
        paper="Szegedy et al., Going Deeper with Convolutions, CVPR 2015",
        style="Convolutional",
        layers=22,
        task="Supervised",
        dataset="ImageNet",
        parameters=6_998_552,
        macs_per_item=1_582_671_872,
        train_flop_per_item=9_260_003_328,
        cookbook="GoogleNet",
    )
    suites: ClassVar = ("cookbook",)
    smallest_side: ClassVar = 32
    presets: ClassVar = {
        "tiny": {"batch": 16, "side": 64, "classes": 10, "shrink": 8, "dropout": 0.1, "learning_rate": 0.02},
        "small": {"batch": 4, "learning_rate": 1.25e-3},  # the rate of Caffe's recipe is for 32: smaller in proportion
        "paper": {"batch": 32},  # the paper does not say; this is that of Caffe's recipe
    }

    dropout: float = 0.4
    weight_decay: float = 2e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shrink > _NARROWEST:
            raise BadOption(f"shrink of googlenet must be at most {_NARROWEST}, not {self.shrink}")

    def network(self) -> nn.Module:
        network = GoogLeNetwork(self.classes, self.shrink, self.dropout, self.channels_last)
        network.initialise()
        return network
