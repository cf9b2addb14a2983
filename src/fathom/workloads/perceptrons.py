"""acoustic_model, deep_mnist and sensor_net: the three fully connected ReLU networks of HPE's Deep Learning Cookbook.

The Cookbook's slides call the English acoustic model an RNN; the network that they count, 34,678,784 parameters, is
fully connected. Batches are not published; those of preset paper are the largest replica batch of its scripts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from fathom.core.errors import BadOption
from fathom.data import _vectors, mnist
from fathom.data.base import Batch, part_of_training
from fathom.workloads._classifier import Classifier
from fathom.workloads.base import Facts

COOKBOOK = "HPE Deep Learning Cookbook: Vassilieva, Characterization and Benchmarking of Deep Learning"
_PUBLISHED_BATCH = 512


@dataclass(frozen=True, kw_only=True)
class Perceptron(Classifier):
    """Fully connected layers with ReLUs between them."""

    item: ClassVar = "frame"
    widths: ClassVar[tuple[int, ...]]  # of the input, the hidden layers and the output

    shrink: int = 1  # divides the width of every hidden layer; the published network is 1

    def __post_init__(self) -> None:
        if not 1 <= self.shrink <= min(self.widths[1:-1]):
            raise BadOption(f"shrink of {self.name} must be 1 to {min(self.widths[1:-1])}, not {self.shrink}")

    def network(self) -> nn.Module:
        first, *hidden, last = self.widths
        widths = [first, *(width // self.shrink for width in hidden), last]
        layers = nn.Sequential()
        for number, (inputs, outputs) in enumerate(pairwise(widths), start=1):
            layers.add_module(f"full{number}", nn.Linear(inputs, outputs))
            if number < len(widths) - 1:
                layers.add_module(f"relu{number}", nn.ReLU(inplace=True))
        return layers

    def synthetic(self, seed: int) -> Any:
        return _vectors.synthetic(seed, (self.widths[0],), self.widths[-1])


@dataclass(frozen=True, kw_only=True)
class AcousticModel(Perceptron):
    """From 540 numbers around a frame of speech to one of 8192 phone states."""

    name: ClassVar = "acoustic_model"
    facts: ClassVar = Facts(
        year=2017,
        paper=COOKBOOK,
        style="Full",
        layers=6,
        task="Supervised",
        dataset="none published",
        parameters=34_678_784,
        macs_per_item=34_660_352,
        train_flop_per_item=205_750_272,
        cookbook="Eng Acoustic Model",
    )
    unit: ClassVar = "state"
    widths: ClassVar = (540, *(2048,) * 5, 8192)
    presets: ClassVar = {
        "tiny": {"batch": 16, "shrink": 16},
        "small": {"batch": 32},
        "paper": {"batch": _PUBLISHED_BATCH},
    }


@dataclass(frozen=True, kw_only=True)
class SensorNet(Perceptron):
    """From 784 sensor readings to one of 16 states."""

    name: ClassVar = "sensor_net"
    facts: ClassVar = replace(
        AcousticModel.facts,
        layers=4,
        parameters=2_919_440,
        macs_per_item=2_916_352,
        train_flop_per_item=15_892_480,
        cookbook="sensor_net",
    )
    item: ClassVar = "reading"
    unit: ClassVar = "state"
    widths: ClassVar = (784, 1024, 1024, 1024, 16)
    presets: ClassVar = {
        "tiny": {"batch": 32, "shrink": 8},
        "small": {"batch": 64},
        "paper": {"batch": _PUBLISHED_BATCH},
    }


@dataclass(frozen=True, kw_only=True)
class DeepMNIST(Perceptron):
    """From the pixels of a digit to which one it is: the largest network of Cireşan et al. (2010)."""

    name: ClassVar = "deep_mnist"
    facts: ClassVar = Facts(
        year=2010,
        paper="Cireşan, Meier, Gambardella and Schmidhuber, Deep, Big, Simple Neural Nets, Neural Computation 22",
        style="Full",
        layers=6,
        task="Supervised",
        dataset="MNIST",
        parameters=11_972_510,
        macs_per_item=11_965_000,
        train_flop_per_item=67_870_000,
        cookbook="deep_mnist",
    )
    item: ClassVar = "image"
    expects: ClassVar = mnist.EXPECTS
    unit: ClassVar = "digit"
    widths: ClassVar = (mnist.SIDE**2, 2500, 2000, 1500, 1000, 500, 10)
    presets: ClassVar = {
        "tiny": {"batch": 32, "shrink": 10},
        "small": {"batch": 64},
        "paper": {"batch": _PUBLISHED_BATCH},
    }

    def synthetic(self, seed: int) -> mnist.Digits:
        return mnist.synthetic(seed)

    def real(self, folder: Path, split: str = "train") -> mnist.Digits:
        return part_of_training(partial(mnist.read, folder), split)

    def inputs(self, batch: Batch) -> Tensor:
        return batch["pixels"].float() / 255
