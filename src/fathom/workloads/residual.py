"""residual, resnet-50, -101 and -152: the networks of He, Zhang, Ren and Sun (2015), with projections (option B).

residual is ResNet-34. Harvard's 2016 code had 42 bottleneck layers, no batch normalisation and full resolution
throughout; these are the networks of the paper. Stages of bottlenecks halve the image in their first 1x1 convolution,
as in the paper; torchvision's halve it in the 3x3 one, with as many parameters and 6 % more FLOP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from fathom.core.errors import BadOption
from fathom.workloads._image_classifier import THUMBNAILS, ImageClassifier, ImageRecipe, Normalise
from fathom.workloads.base import Facts

_WIDTHS = (64, 128, 256, 512)  # of the stages
_DEPTHS = {34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}  # layers -> blocks of a stage
_EXPANSION = 4  # what comes out of a bottleneck is wider than its 3x3 convolution by this


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
        self.shortcut = _shortcut(channels, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        x = self.relu1(self.norm1(self.conv1(x)))
        x = self.norm2(self.conv2(x))
        x += shortcut
        result: Tensor = self.relu2(x)
        return result


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1, the first narrowing and the last widening, around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, stride, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv3 = nn.Conv2d(width, _EXPANSION * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(_EXPANSION * width)
        self.relu3 = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(channels, _EXPANSION * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.shortcut is None else self.shortcut(x)
        x = self.relu1(self.norm1(self.conv1(x)))
        x = self.relu2(self.norm2(self.conv2(x)))
        x = self.norm3(self.conv3(x))
        x += shortcut
        result: Tensor = self.relu3(x)
        return result


def _shortcut(channels: int, width: int, stride: int) -> nn.Sequential | None:
    """A projection where the shape changes; None where the input is added as it is."""
    if stride == 1 and channels == width:
        return None
    shortcut = nn.Sequential()
    shortcut.add_module("conv", nn.Conv2d(channels, width, 1, stride, bias=False))
    shortcut.add_module("norm", nn.BatchNorm2d(width))
    return shortcut


class ResidualNetwork(nn.Module):
    def __init__(
        self, depths: Sequence[int], bottlenecks: bool, classes: int, shrink: int, channels_last: bool
    ) -> None:
        super().__init__()
        channels = _WIDTHS[0] // shrink
        self.normalise = Normalise(channels_last)
        self.conv1 = nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.pool1 = nn.MaxPool2d(3, stride=2, padding=1)
        self.stages = nn.Sequential()
        for number, (width, depth) in enumerate(zip(_WIDTHS, depths, strict=True), start=1):
            stride = 1 if number == 1 else 2
            self.stages.add_module(f"stage{number}", _stage(channels, width // shrink, depth, stride, bottlenecks))
            channels = width // shrink * (_EXPANSION if bottlenecks else 1)
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


def _stage(channels: int, width: int, depth: int, stride: int, bottlenecks: bool) -> nn.Sequential:
    kind, widened = (Bottleneck, _EXPANSION * width) if bottlenecks else (Block, width)
    stage = nn.Sequential()
    stage.add_module("block1", kind(channels, width, stride))
    for number in range(2, depth + 1):
        stage.add_module(f"block{number}", kind(widened, width, 1))
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
    shorten: int = 1  # divides the number of blocks of every stage, rounded up; the published network is 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shorten < 1:
            raise BadOption(f"shorten of {self.name} must be at least 1, not {self.shorten}")

    def network(self) -> nn.Module:
        layers = self.facts.layers
        depths = [-(-depth // self.shorten) for depth in _DEPTHS[layers]]
        return ResidualNetwork(depths, layers >= 50, self.classes, self.shrink, self.channels_last)


@dataclass(frozen=True, kw_only=True)
class ResNet50(Residual):
    name: ClassVar = "resnet-50"
    facts: ClassVar = replace(
        Residual.facts,
        layers=50,
        parameters=25_557_032,
        macs_per_item=3_857_973_248,
        train_flop_per_item=22_911_811_584,
        cookbook="ResNet50",
        cookbook_biases=64,  # of the first convolution
    )
    suites: ClassVar = ("cookbook",)
    presets: ClassVar = {**Residual.presets, "tiny": {**Residual.presets["tiny"], "shorten": 4}}
    recipe: ClassVar = None  # type: ignore[assignment]


@dataclass(frozen=True, kw_only=True)
class ResNet101(ResNet50):
    name: ClassVar = "resnet-101"
    facts: ClassVar = replace(
        Residual.facts,
        layers=101,
        parameters=44_549_160,
        macs_per_item=7_570_194_432,
        train_flop_per_item=45_185_138_688,
        cookbook="ResNet101",
    )


@dataclass(frozen=True, kw_only=True)
class ResNet152(ResNet50):
    name: ClassVar = "resnet-152"
    facts: ClassVar = replace(
        Residual.facts,
        layers=152,
        parameters=60_192_808,
        macs_per_item=11_282_415_616,
        train_flop_per_item=67_458_465_792,
        cookbook="ResNet152",
    )
