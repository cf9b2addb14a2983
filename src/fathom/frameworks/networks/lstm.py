"""The LSTM of the guide's source: a language model with two layers of 256 units over sequences of 32 words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fathom.frameworks.network import Array, Layer, Network

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LanguageModel(Network):
    title: ClassVar[str] = "LSTM language model"
    source: ClassVar[str] = "github.com/hclhkbu/dlbench, lstm.py, its default sizes"
    batch: ClassVar[int] = 64
    learning_rate: ClassVar[float] = 1.0
    tiny: ClassVar[dict[str, Any]] = {"vocabulary": 30, "hidden": 12, "length": 5}

    vocabulary: int = 10_000
    hidden: int = 256
    length: int = 32

    def layers(self) -> list[Layer]:
        return [
            Layer("embedding", "embedding", self.vocabulary, self.hidden),
            Layer("lstm1", "lstm", self.hidden, self.hidden),
            Layer("lstm2", "lstm", self.hidden, self.hidden),
            Layer("logits", "dense", self.hidden, self.vocabulary),
        ]

    def inputs(self, batch: int, chance: np.random.Generator) -> tuple[Array, Array]:
        words = chance.integers(0, self.vocabulary, (batch, self.length + 1))
        return words[:, :-1].astype(np.int32), words[:, 1:]

    def torch_module(self) -> torch.nn.Module:
        from fathom.frameworks.networks._torch_modules import LanguageModelModule

        return LanguageModelModule(self.vocabulary, self.hidden)

    def keras_model(self, keras: Any) -> Any:
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((self.length,), dtype="int32"),
                layers.Embedding(self.vocabulary, self.hidden, name="embedding"),
                layers.LSTM(self.hidden, return_sequences=True, name="lstm1"),
                layers.LSTM(self.hidden, return_sequences=True, name="lstm2"),
                layers.Dense(self.vocabulary, name="logits"),
            ]
        )
