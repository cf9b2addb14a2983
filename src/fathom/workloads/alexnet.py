"""alexnet: the network of Krizhevsky, Sutskever and Hinton (2012), whose two halves met only in some layers.

Harvard's 2016 code built the later single-tower variant without dropout; this is the network of the paper:
96-256-384-384-256 convolutions in two groups, response normalisation before overlapping pooling, and dropout.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from fathom.workloads._image_classifier import THUMBNAILS, ImageClassifier, ImageRecipe, Normalise, dense_layers
from fathom.workloads._response_normalisation import ResponseNormalisation
from fathom.workloads.base import Facts

_POSITIVE = ("conv2", "conv4", "conv5", "full1", "full2")


class AlexNetwork(nn.Module):
    def __init__(self, side: int, classes: int, shrink: int, dropout: float, channels_last: bool) -> None:
        super().__init__()
        widths = [width // shrink for width in (96, 256, 384, 384, 256)]
        self.normalise = Normalise(channels_last)
        self.features = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(3, widths[0], 11, stride=4),
                relu1=nn.ReLU(inplace=True),
                response1=ResponseNormalisation(),
                pool1=nn.MaxPool2d(3, stride=2),
                conv2=nn.Conv2d(widths[0], widths[1], 5, padding=2, groups=2),
                relu2=nn.ReLU(inplace=True),
                response2=ResponseNormalisation(),
                pool2=nn.MaxPool2d(3, stride=2),
                conv3=nn.Conv2d(widths[1], widths[2], 3, padding=1),  # the one convolution that sees both halves
                relu3=nn.ReLU(inplace=True),
                conv4=nn.Conv2d(widths[2], widths[3], 3, padding=1, groups=2),
                relu4=nn.ReLU(inplace=True),
                conv5=nn.Conv2d(widths[3], widths[4], 3, padding=1, groups=2),
                relu5=nn.ReLU(inplace=True),
                pool5=nn.MaxPool2d(3, stride=2),
            )
        )
        self.dense = dense_layers(widths[4] * _pooled(side) ** 2, 4096 // shrink, classes, dropout)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.dense(self.features(self.normalise(image)).flatten(1))
        return logits

    def initialise(self, deviation: float | None) -> None:
        """Normal weights; biases of one where that hands the ReLUs positive inputs from the start, zero elsewhere.

        Without a deviation, each layer gets He's for its own size, and needs no biases to start.
        """
        for name, module in [*self.features.named_children(), *self.dense.named_children()]:
            if not isinstance(module, nn.Conv2d | nn.Linear):
                continue
            nn.init.constant_(module.bias, 1.0 if deviation and name in _POSITIVE else 0.0)  # type: ignore[arg-type]
            if deviation:
                nn.init.normal_(module.weight, std=deviation)
            else:
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")


def _pooled(side: int) -> int:
    """The side of what the last pooling leaves of an image."""
    side = (side - 11) // 4 + 1
    for _ in range(3):
        side = (side - 3) // 2 + 1
    return side


@dataclass(frozen=True, kw_only=True)
class AlexNet(ImageClassifier):
    name: ClassVar = "alexnet"
    facts: ClassVar = Facts(
        year=2012,
        paper="Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep CNNs, NIPS 2012",
        style="Convolutional, Full",
        layers=5,
        task="Supervised",
        dataset="ImageNet",
        parameters=60_965_224,
        macs_per_item=724_406_816,
        train_flop_per_item=4_135_610_496,
        cookbook="AlexNet",
    )
    suites: ClassVar = ("fathom", "cookbook")
    smallest_side: ClassVar = 67
    presets: ClassVar = {
        "tiny": {
            "batch": 16,
            "side": 67,
            "classes": 10,
            "shrink": 8,
            "weight_deviation": 0.08,  # in so narrow a network the signal would die of the published one
            "dropout": 0.1,
            "learning_rate": 0.002,
        },
        "small": {"batch": 4, "learning_rate": 3e-4},  # the published rate is for 128: smaller in proportion
        "paper": {"batch": 128},
    }

    recipe: ClassVar = ImageRecipe(
        target=85.0,
        skips_nonfinite_gradients=True,  # nothing normalises what its dense layers get
        evaluations=150,
        precision="tf32",  # in bfloat16 one of three runs had non-finite gradients in its second epoch
        options={
            **THUMBNAILS,
            # of the published start, ten classes make logits differ by 2e-4 around 0.8, which is little to go by
            "weight_deviation": None,
            "clip_norm": 5.0,
        },
    )

    side: int = 227  # the paper says 224, but its convolutions need 227
    dropout: float = 0.5
    weight_deviation: float | None = 0.01  # the paper's; None is He's

    def network(self) -> nn.Module:
        network = AlexNetwork(self.side, self.classes, self.shrink, self.dropout, self.channels_last)
        network.initialise(self.weight_deviation)
        return network
