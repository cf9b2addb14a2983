"""alexnet: the network of Krizhevsky, Sutskever and Hinton (2012), whose two halves met only in some layers.

Harvard's 2016 code built the later single-tower variant without dropout; this is the network of the paper:
96-256-384-384-256 convolutions in two groups, response normalisation before overlapping pooling, and dropout.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fathom.workloads._image_classifier import THUMBNAILS, ImageClassifier, ImageRecipe, Normalise, dense_layers
from fathom.workloads.base import Facts

_K, _ALPHA, _BETA = 2.0, 1e-4, 0.75  # the paper's; each channel is divided by (k + alpha * sum of 5 squares) ** beta
_POSITIVE = ("conv2", "conv4", "conv5", "full1", "full2")


class _ResponseNormalisation(torch.autograd.Function):
    """Written out, both ways: several times faster on a CPU than torch's, which pools in three dimensions.

    With s = k + alpha * window(x^2) and y = x * s^-beta, the gradient is
    dx = dy * s^-beta - 2 * alpha * beta * x * window(dy * y / s): the window is symmetric.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        wide = x.float()  # near k, bfloat16 is too coarse to hold the sum
        root = torch.rsub(_window(wide.square()), _K, alpha=-_ALPHA).rsqrt_()  # s in one pass, then s^-1/2
        ctx.save_for_backward(x, root)
        return root.sqrt().mul_(root).mul_(wide).to(x.dtype)  # s^-3/4 from two square roots: a power costs ten

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x: Tensor
        root: Tensor
        x, root = ctx.saved_tensors
        wide = x.float()
        direct = root.sqrt().mul_(root).mul_(gradient)
        shared = _window((direct * wide).mul_(root).mul_(root))
        return direct.addcmul_(wide, shared, value=-2 * _ALPHA * _BETA).to(x.dtype)


def _window(x: Tensor) -> Tensor:
    """Each channel's sum with two neighbours on either side, in three additions rather than four."""
    padded = F.pad(x, (0, 0, 0, 0, 2, 2))
    pairs = padded[:, :-1] + padded[:, 1:]
    return (pairs[:, :-3] + pairs[:, 2:-1]).add_(padded[:, 4:])


class ResponseNormalisation(nn.Module):
    """Local response normalisation across channels, by the formula of the paper (torch divides alpha by the window)."""

    def forward(self, x: Tensor) -> Tensor:
        normalised: Tensor = _ResponseNormalisation.apply(x)  # type: ignore[no-untyped-call]
        return normalised


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
    )
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
