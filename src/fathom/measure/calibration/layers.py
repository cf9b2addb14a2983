"""Single convolutions and matrix products of random sizes: most of a step's time is in these, and few shapes recur.

A step of one layer has the product itself and those of its gradients, in the layouts that autograd gives them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from fathom.measure.calibration.networks import RATE, log_uniform
from fathom.measure.own.model import OwnModel
from fathom.measure.own.training import Criterion
from fathom.trace.step_work import StepWork
from fathom.trace.taxonomy import family_of

FEWEST_FLOP, MOST_FLOP = 1e6, 2e9  # of the forward pass; they grow with the cube of a device's `largest`
DRAWS = 1000  # until a few have no more FLOP than wanted
FEW = 4
PRODUCTS = ("convolution", "matrix product")
Made = Callable[[], tuple[nn.Module, Tensor]]
KERNELS = (1, 1, 2, 3, 3, 3, 3, 4, 5, 5, 7, 8, 11)
CHANNELS_BY_SIDE = (2000, 16000)  # channels x side inside an image network: 3584 in ResNets, 14336 in VGG


def random_layer(seed: int, largest: float = 1.0, device: str = "meta") -> OwnModel:
    """The layer of this number; `largest` scales it, to suit a faster device."""
    draw = random.Random(seed)
    made, least = LAYERS[seed % len(LAYERS)]
    fewest, most = least * FEWEST_FLOP * largest**3, MOST_FLOP * largest**3
    wanted = math.exp(draw.uniform(math.log(fewest), math.log(most)))
    with torch.device(device):
        module, inputs = _up_to(wanted, lambda: made(draw, largest))()
        with torch.no_grad():
            target = torch.zeros_like(module(inputs))
    return OwnModel(
        module=module,
        inputs=(inputs, target),
        criterion=Criterion(F.mse_loss, wants_target=True),
        updated_by=SGD(module.parameters(), lr=RATE),
        batch=len(inputs),
        clip_norm=None,
    )


def products_of(step: StepWork) -> StepWork:
    """Its convolutions and matrix products alone: networks have enough of everything else."""
    ops = tuple(op for op in step.ops if family_of(op.type) in PRODUCTS)
    return replace(step, ops=ops, sequence=tuple(range(len(ops))), gradients=())


def _up_to(wanted: float, drawn: Callable[[], tuple[float, Made]]) -> Made:
    """Of a few drawn with at most the wanted FLOP, that with most; where none is so small, the smallest drawn."""
    fitting: list[tuple[float, Made]] = []
    smallest = drawn()
    for _ in range(DRAWS):
        found = drawn()
        smallest = min(smallest, found, key=lambda pair: pair[0])
        if found[0] <= wanted:
            fitting.append(found)
        if len(fitting) == FEW:
            break
    return max(fitting or [smallest], key=lambda pair: pair[0])[1]


def _convolution(draw: random.Random, largest: float) -> tuple[float, Made]:
    """Of any sizes, each for itself."""
    kernel, stride = draw.choice(KERNELS), draw.choice((1, 1, 1, 2, 4))
    first = draw.random() < 0.25  # of a network: few channels, and nobody wants the gradient of its input
    channels = draw.choice((1, 3, 4)) if first else _width(draw, 8, 512)
    after, batch = _width(draw, 16, 512), log_uniform(draw, 1, round(64 * largest))
    side, padding = max(kernel, log_uniform(draw, 5, 230)), draw.choice((0, kernel // 2))
    groups = 2 if not first and draw.random() < 0.25 else 1
    return _convolving(draw, (batch, channels, side, side), after, (kernel, stride, padding, groups), first)


def _image_convolution(draw: random.Random, largest: float) -> tuple[float, Made]:
    """As inside an image network, where channels grow as sides shrink; libraries have algorithms for just these."""
    side = log_uniform(draw, 7, 224)
    channels = 8 * max(2, round(log_uniform(draw, *CHANNELS_BY_SIDE) / side / 8))
    after = draw.choice((channels, channels, channels, 2 * channels, max(16, channels // 2)))
    kernel, stride = draw.choice((1, 3, 3, 3, 3, 5)), draw.choice((1, 1, 1, 1, 2))
    batch = log_uniform(draw, max(1, round(4 * largest)), round(32 * largest))
    return _convolving(draw, (batch, channels, side, side), after, (kernel, stride, kernel // 2, 1), first=False)


def _convolving(
    draw: random.Random, shape: tuple[int, int, int, int], after: int, how: tuple[int, int, int, int], first: bool
) -> tuple[float, Made]:
    """FLOP, and the layer with its input; `how` is kernel, stride, padding and groups."""
    kernel, stride, padding, groups = how
    batch, channels, side, _ = shape
    out = (side + 2 * padding - kernel) // stride + 1
    layout = draw.choice((torch.contiguous_format, torch.channels_last))
    bias = draw.random() < 0.5
    flop = 2.0 * batch * out * out * after * channels / groups * kernel * kernel

    def make() -> tuple[nn.Module, Tensor]:
        layer: Any = nn.Conv2d(channels, after, kernel, stride, padding, groups=groups, bias=bias)
        inputs = torch.empty(shape).normal_().to(memory_format=layout)
        layer = layer.to(memory_format=layout)
        return layer if first else nn.Sequential(_Scaled(), layer), inputs

    return flop, make


def _width(draw: random.Random, low: int, high: int) -> int:
    """Channels: an even number, and mostly a multiple of 8, as in most networks."""
    value = log_uniform(draw, low, high)
    return value + value % 2 if draw.random() < 0.25 else 8 * math.ceil(value / 8)


class _Scaled(nn.Module):
    """Before a layer, so that the gradient of its input is wanted, as inside a network."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def _linear(draw: random.Random, largest: float) -> tuple[float, Made]:
    rows = log_uniform(draw, 1, round(1024 * largest))
    before, after = log_uniform(draw, 8, 8192), log_uniform(draw, 8, 8192)
    bias = draw.random() < 0.5

    def make() -> tuple[nn.Module, Tensor]:
        layer = nn.Linear(before, after, bias=bias)
        return nn.Sequential(_Scaled(), layer), torch.empty(rows, before).normal_()

    return 2.0 * rows * before * after, make


class _Batched(nn.Module):
    """A product of two stacks of matrices, as in attention and in networks trained side by side."""

    def __init__(self, count: int, before: int, after: int, added: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, after, before).normal_())
        self.bias = nn.Parameter(torch.zeros(count, 1, after)) if added else None

    def forward(self, x: Tensor) -> Tensor:
        turned = self.weight.transpose(1, 2)
        return torch.bmm(x, turned) if self.bias is None else torch.baddbmm(self.bias, x, turned)


def _batched(draw: random.Random, largest: float) -> tuple[float, Made]:
    count, rows = log_uniform(draw, 1, round(128 * largest)), log_uniform(draw, 1, 512)
    before, after = log_uniform(draw, 8, 2048), log_uniform(draw, 1, 2048)
    added = draw.random() < 0.3

    def make() -> tuple[nn.Module, Tensor]:
        layers = nn.Sequential(_Scaled(), _Batched(count, before, after, added))
        return layers, torch.empty(count, rows, before).normal_()

    return 2.0 * count * rows * before * after, make


# how it is drawn, and by how much its fewest FLOP are more: image networks keep a device busy
LAYERS = ((_convolution, 1), (_linear, 1), (_image_convolution, 30), (_batched, 1))
