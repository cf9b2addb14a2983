"""Network: what every framework runs alike: layers in order, seeded weights, a seeded batch, a learning rate."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fathom.core import plugins

if TYPE_CHECKING:
    import torch

Array = NDArray[Any]
Arrays = dict[str, dict[str, Array]]  # layer -> name of a weight, as torch has it -> values


@dataclass(frozen=True)
class Layer:
    """A layer with weights. Its name is the same in every framework."""

    name: str
    kind: Literal["dense", "conv", "norm", "embedding", "lstm"]
    inputs: int
    outputs: int
    kernel: int = 1
    bias: bool = True
    flattened: tuple[int, int, int] | None = None  # channels, height, width of the image that the input was

    @property
    def parameters(self) -> int:
        """Trainable ones; running statistics are none."""
        match self.kind:
            case "norm":
                return 2 * self.outputs
            case "embedding":
                return self.inputs * self.outputs
            case "lstm":
                return 4 * self.outputs * (self.inputs + self.outputs + 1)
        return self.inputs * self.kernel**2 * self.outputs + self.bias * self.outputs


class Network(abc.ABC):
    """Frozen sizes; a preset is a set of them."""

    title: ClassVar[str]
    source: ClassVar[str]  # where its sizes are from
    batch: ClassVar[int]  # by default
    learning_rate: ClassVar[float]
    tiny: ClassVar[dict[str, Any]]  # sizes for a test

    @classmethod
    def configured(cls, preset: str) -> Network:
        return cls(**(cls.tiny if preset == "tiny" else {}))

    @abc.abstractmethod
    def layers(self) -> list[Layer]:
        """All layers with weights."""

    @abc.abstractmethod
    def inputs(self, batch: int, chance: np.random.Generator) -> tuple[Array, Array]:
        """A batch and its labels; images are float32 with channels first, tokens and labels are integers."""

    @abc.abstractmethod
    def torch_module(self) -> torch.nn.Module:
        """From inputs to logits, whose last dimension is the classes."""

    @abc.abstractmethod
    def keras_model(self, keras: Any) -> Any:
        """The same as a Keras model, in the data format that Keras is set to."""

    def batch_of(self, batch: int, seed: int) -> tuple[Array, Array]:
        return self.inputs(batch, np.random.default_rng([seed, 0]))

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers())

    def weights(self, seed: int) -> Arrays:
        """Of every layer, from the seed and its position alone."""
        return {
            layer.name: _weights(layer, np.random.default_rng([seed, index]))
            for index, layer in enumerate(self.layers(), start=1)
        }


def load(name: str) -> type[Network]:
    return plugins.load_class("networks", name, Network)  # type: ignore[type-abstract]


def _weights(layer: Layer, chance: np.random.Generator) -> dict[str, Array]:
    match layer.kind:
        case "norm":  # none of them neutral, so that one in the wrong place shows
            return {
                "weight": _uniform(chance, 0.3, 0.7, layer.outputs),
                "bias": _uniform(chance, -0.1, 0.1, layer.outputs),
                "running_mean": _uniform(chance, -0.1, 0.1, layer.outputs),
                "running_var": _uniform(chance, 0.5, 1.5, layer.outputs),
            }
        case "embedding":
            return {"weight": _uniform(chance, -0.1, 0.1, layer.inputs, layer.outputs)}
        case "lstm":
            edge, gates = layer.outputs**-0.5, 4 * layer.outputs
            return {
                "weight_ih_l0": _uniform(chance, -edge, edge, gates, layer.inputs),
                "weight_hh_l0": _uniform(chance, -edge, edge, gates, layer.outputs),
                "bias_ih_l0": _uniform(chance, -edge, edge, gates),
            }
    fan_in = layer.inputs * layer.kernel**2
    edge = (6 / fan_in) ** 0.5  # He, uniform: activations keep their size
    kernel = (layer.kernel, layer.kernel) if layer.kind == "conv" else ()
    made = {"weight": _uniform(chance, -edge, edge, layer.outputs, layer.inputs, *kernel)}
    return made | ({"bias": _uniform(chance, -0.1, 0.1, layer.outputs)} if layer.bias else {})


def _uniform(chance: np.random.Generator, low: float, high: float, *shape: int) -> Array:
    values = chance.random(shape, dtype=np.float32)
    values *= np.float32(high - low)
    values += np.float32(low)
    return values


def keras_weights(layer: Layer, arrays: dict[str, Array], *, channels_last: bool) -> list[Array]:
    """The weights of a layer in the order and layout of Keras."""
    match layer.kind:
        case "conv":
            made = [arrays["weight"].transpose(2, 3, 1, 0)]
        case "norm":
            return [arrays[name] for name in ("weight", "bias", "running_mean", "running_var")]
        case "embedding":
            return [arrays["weight"]]
        case "lstm":  # both order the gates as input, forget, cell, output
            return [arrays["weight_ih_l0"].T, arrays["weight_hh_l0"].T, arrays["bias_ih_l0"]]
        case "dense":
            weight = arrays["weight"]
            if layer.flattened and channels_last:
                channels, height, width = layer.flattened
                image = weight.reshape(layer.outputs, channels, height, width)
                weight = image.transpose(0, 2, 3, 1).reshape(layer.outputs, -1)
            made = [weight.T]
    return made + ([arrays["bias"]] if layer.bias else [])
