"""text_cnn: the sentence classifier of HPE's Deep Learning Cookbook, after Kim (2014): windows of 1, 3 and 5 words.

A sentence is 59 embedded words of 128 numbers. The embedding table is not part of the network, and not of its count of
151,690 parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fathom.core.errors import BadOption
from fathom.data import _vectors
from fathom.workloads._classifier import Classifier
from fathom.workloads.base import Facts

WINDOWS = (1, 3, 5)  # words
EMBEDDING = 128
CLASSES = 10


class TextNetwork(nn.Module):
    """Convolutions over all numbers of a few words each, side by side; the largest of each over the sentence."""

    def __init__(self, windows: Sequence[int], maps: int) -> None:
        super().__init__()
        self.windows = nn.ModuleDict(
            {f"window{size}": nn.Conv2d(1, maps, (size, EMBEDDING), padding=(size // 2, 0)) for size in windows}
        )
        self.relu = nn.ReLU(inplace=True)
        self.full = nn.Linear(len(windows) * maps, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        found = torch.cat([window(words) for window in self.windows.values()], 1)
        logits: Tensor = self.full(self.relu(found).amax((2, 3)))
        return logits


@dataclass(frozen=True, kw_only=True)
class TextCNN(Classifier):
    name: ClassVar = "text_cnn"
    facts: ClassVar = Facts(
        year=2014,
        paper="Kim, Convolutional Neural Networks for Sentence Classification, EMNLP 2014; as in the HPE Cookbook",
        style="Convolutional",
        layers=2,
        task="Supervised",
        dataset="none published",
        parameters=151_690,
        macs_per_item=8_703_744,
        train_flop_per_item=34_822_656,
        cookbook="TextCNN",
    )
    item: ClassVar = "sentence"
    presets: ClassVar = {
        "tiny": {"batch": 16, "words": 12, "maps": 16},
        "small": {"batch": 16},
        "paper": {"batch": 50},  # Kim's
    }

    words: int = 59  # of a sentence
    maps: int = 128  # of each window

    def __post_init__(self) -> None:
        for name in ("words", "maps"):
            if getattr(self, name) < 1:
                raise BadOption(f"{name} of text_cnn must be at least 1, not {getattr(self, name)}")

    def network(self) -> nn.Module:
        return TextNetwork(WINDOWS, self.maps)

    def synthetic(self, seed: int) -> Any:
        return _vectors.synthetic(seed, (1, self.words, EMBEDDING), CLASSES)
