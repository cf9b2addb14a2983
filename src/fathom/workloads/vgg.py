"""vgg and vgg-16: VGG-19 and VGG-16, configurations E and D of Simonyan and Zisserman (2014): 3x3 convolutions.

Harvard's 2016 code had twelve convolutions, a ReLU on the logits and dropout of .2; this is the network of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from fathom.core.errors import UnknownName
from fathom.workloads._image_classifier import THUMBNAILS, ImageClassifier, ImageRecipe, Normalise, dense_layers
from fathom.workloads.base import Facts

_WIDTHS = (64, 128, 256, 512, 512)
_DEPTHS = {
    "A": (1, 1, 2, 2, 2),
    "B": (2, 2, 2, 2, 2),
    "D": (2, 2, 3, 3, 3),
    "E": (2, 2, 4, 4, 4),
}  # convolutions a stage


class VGGNetwork(nn.Module):
    def __init__(
        self, depths: Sequence[int], side: int, classes: int, shrink: int, dropout: float, channels_last: bool
    ) -> None:
        super().__init__()
        self.normalise = Normalise(channels_last)
        self.stages = nn.Sequential()
        channels = 3
        for number, (width, depth) in enumerate(zip(_WIDTHS, depths, strict=True), start=1):
            self.stages.add_module(f"stage{number}", _stage(channels, width // shrink, depth))
            channels = width // shrink
            side //= 2
        self.dense = dense_layers(channels * side**2, 4096 // shrink, classes, dropout)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.dense(self.stages(self.normalise(image)).flatten(1))
        return logits

    def initialise(self, gain: float, last_deviation: float | None) -> None:
        """Glorot's, with which the authors found that the deep network needs no shallower one to start from."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight, gain)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        if last_deviation is not None:
            nn.init.normal_(self.dense[-1].weight, std=last_deviation)  # type: ignore[arg-type]


def _stage(channels: int, width: int, depth: int) -> nn.Sequential:
    stage = nn.Sequential()
    for number in range(1, depth + 1):
        stage.add_module(f"conv{number}", nn.Conv2d(channels, width, 3, padding=1))
        stage.add_module(f"relu{number}", nn.ReLU(inplace=True))
        channels = width
    stage.add_module("pool", nn.MaxPool2d(2))
    return stage


@dataclass(frozen=True, kw_only=True)
class VGG(ImageClassifier):
    name: ClassVar = "vgg"
    facts: ClassVar = Facts(
        year=2014,
        paper="Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015",
        style="Convolutional, Full",
        layers=19,
        task="Supervised",
        dataset="ImageNet",
        parameters=143_667_240,
        macs_per_item=19_632_062_464,
        train_flop_per_item=117_618_966_528,
        cookbook="VGG-19",
    )
    suites: ClassVar[tuple[str, ...]] = ("fathom", "cookbook")
    algorithms: ClassVar = 4  # at the published batch the last of ten take minutes to try, and none of them wins
    smallest_side: ClassVar = 32
    presets: ClassVar = {
        "tiny": {
            "batch": 16,
            "side": 32,
            "classes": 10,
            "shrink": 8,
            "configuration": "A",
            "weight_gain": 2**0.5,  # with 1, every ReLU halves the variance, and so narrow a network hardly starts
            "dropout": 0.2,
            "learning_rate": 0.005,
        },
        "small": {"batch": 1, "learning_rate": 4e-5},  # the published rate is for 256: smaller in proportion
        "paper": {"batch": 256},
    }

    recipe: ClassVar = ImageRecipe(
        target=88.0,
        skips_nonfinite_gradients=True,  # nothing normalises what passes its layers
        evaluations=90,
        precision="bf16",
        options={
            **THUMBNAILS,
            "side": 128,  # images of 32 pixels a side say no more at 224, at three times the cost
            "batch": 64,  # as many images a second as 128, and twice the updates
            "weight_gain": 2**0.5,  # with 1, what comes out of nineteen layers is too faint to learn from for long
            "last_deviation": 0.01,  # with Glorot's, logits begin so far apart that guesses are unlearnt first
            "learning_rate": 0.02,
            "warm_up": 0.05,
            "clip_norm": 2.0,  # nothing else keeps so deep a network in bounds
        },
    )

    configuration: str = "E"  # a column of the paper's table: A has 11 layers, B 13, D 16 and E 19
    dropout: float = 0.5
    weight_gain: float = 1.0
    last_deviation: float | None = None  # of the last layer's weights; None is Glorot's, as for all others

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.configuration not in _DEPTHS:
            raise UnknownName.among(f"configuration of {self.name}", self.configuration, _DEPTHS)

    def network(self) -> nn.Module:
        depths = _DEPTHS[self.configuration]
        network = VGGNetwork(depths, self.side, self.classes, self.shrink, self.dropout, self.channels_last)
        network.initialise(self.weight_gain, self.last_deviation)
        return network


@dataclass(frozen=True, kw_only=True)
class VGG16(VGG):
    """Configuration D: a convolution fewer in each of the last three stages."""

    name: ClassVar = "vgg-16"
    facts: ClassVar = replace(
        VGG.facts,
        layers=16,
        parameters=138_357_544,
        macs_per_item=15_470_264_320,
        train_flop_per_item=92_648_177_664,
        cookbook="VGG-16",
    )
    suites: ClassVar = ("cookbook",)
    presets: ClassVar = {**VGG.presets, "tiny": {**VGG.presets["tiny"], "configuration": "B"}}
    recipe: ClassVar = None  # type: ignore[assignment]

    configuration: str = "D"
