"""residual: ResNet-34 of He, Zhang, Ren and Sun (2015), with batch normalisation and projection shortcuts (option B).

Harvard's 2016 code had 42 bottleneck layers, no batch normalisation and full resolution throughout; this is the
network of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fathom.workloads._image_classifier import THUMBNAILS, ImageClassifier, ImageRecipe, Normalise
from fathom.workloads.base import Facts

_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # width and number of blocks


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, which is a projection where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU(inplace=True)
        self.shortcut: nn.Sequential | None = None
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential()
            self.shortcut.add_module("conv", nn.Conv2d(channels, width, 1, stride, bias=False))
            self.shortcut.add_module("norm", nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        x = self.relu1(self.norm1(self.conv1(x)))
        x = self.norm2(self.conv2(x))
        x += shortcut
        result: Tensor = self.relu2(x)
        return result


class ResidualNetwork(nn.Module):
    def __init__(self, classes: int, shrink: int, channels_last: bool) -> None:
        super().__init__()
        channels = _STAGES[0][0] // shrink
        self.normalise = Normalise(channels_last)
        self.conv1 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.pool1 = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = nn.Sequential()
        for number, (width, depth) in enumerate(_STAGES, start=1):
            stride = 1 if number == 1 else 2
            self.stages.add_module(f"stage{number}", _stage(channels, width // shrink, depth, stride))
            channels = width // shrink
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.full = nn.Linear(channels, classes)
        self._initialise()

    def forward(self, image: Tensor) -> Tensor:
        x = self.pool1(self.relu1(self.norm1(self.conv1(self.normalise(image)))))
        logits: Tensor = self.full(self.mean(self.stages(x)).flatten(1))
        return logits

    def _initialise(self) -> None:
        """He's for the convolutions, which keeps the variance of what flows back through the ReLUs.

        The last layer has no ReLU and few outputs: He's would make logits so large that the first loss is several
        times that of a guess.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.full.weight, std=0.01)
        nn.init.zeros_(self.full.bias)


def _stage(channels: int, width: int, depth: int, stride: int) -> nn.Sequential:
    stage = nn.Sequential()
    stage.add_module("block1", Block(channels, width, stride))
    for number in range(2, depth + 1):
        stage.add_module(f"block{number}", Block(width, width, 1))
    return stage


@dataclass(frozen=True, kw_only=True)
class Residual(ImageClassifier):
    name: ClassVar = "residual"
    facts: ClassVar = Facts(
        year=2015,
        paper="He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, CVPR 2016",
        style="Convolutional",
        layers=34,
        task="Supervised",
        dataset="ImageNet",
        parameters=21_797_672,
        macs_per_item=3_663_761_408,
        train_flop_per_item=21_746_540_544,
    )
    smallest_side: ClassVar = 33  # 32 leaves one value a channel, and one alone cannot be normalised
    presets: ClassVar = {
        "tiny": {"batch": 16, "side": 64, "classes": 10, "shrink": 8, "learning_rate": 0.05},
        "small": {"batch": 2, "learning_rate": 8e-4},  # the published rate is for 256: smaller in proportion
        "paper": {"batch": 256},
    }

    recipe: ClassVar = ImageRecipe(
        target=90.0,
        evaluations=80,
        precision="bf16",
        options={
            **THUMBNAILS,
            "side": 128,  # images of 32 pixels a side say no more at 224, at three times the cost
            "cutout": 0.375,
            "weight_decay": 5e-4,  # for few images, more than the paper's
        },
    )

    learning_rate: float = 0.1
    weight_decay: float = 1e-4

    def network(self) -> nn.Module:
        return ResidualNetwork(self.classes, self.shrink, self.channels_last)
