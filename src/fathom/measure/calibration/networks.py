"""Random small networks, whose steps are what a campaign draws its op calls from.

A call drawn from a real step has arguments that belong together, whatever the op. None of these networks is a workload:
a workload can be left out of a campaign, and its ops are then predicted from others of their kind.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from fathom.measure.own.model import OwnModel
from fathom.measure.own.training import Criterion

ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU)
RATE = 1e-6  # small: a step is repeated, and only its work is of interest
OPTIMIZERS: tuple[Callable[[Any], Optimizer], ...] = (
    partial(SGD, lr=RATE),
    partial(SGD, lr=RATE, momentum=0.9, weight_decay=1e-4),
    partial(Adam, lr=RATE),
    partial(AdamW, lr=RATE),
    partial(RMSprop, lr=RATE),
    partial(Adagrad, lr=RATE),
)


def log_uniform(draw: random.Random, low: int, high: int) -> int:
    """Between these, each order of magnitude as likely; half of the draws are powers of two, as in most networks."""
    value = math.exp(draw.uniform(math.log(low), math.log(high)))
    return max(low, min(high, 1 << round(math.log2(value)) if draw.random() < 0.5 else round(value)))


def random_network(seed: int, largest: float = 1.0, device: str = "meta") -> OwnModel:
    """The network of this number; `largest` scales batches, to suit a faster device."""
    draw = random.Random(seed)
    family = FAMILIES[seed % len(FAMILIES)]
    return _trained(lambda: family(draw, largest), draw, device)


def deep_network(seed: int, device: str = "meta") -> OwnModel:
    """Many small layers, or one cell at many time steps: what a step costs the host is then that of its calls."""
    draw = random.Random(seed)
    width, depth = log_uniform(draw, 16, 128), log_uniform(draw, 20, 200)

    def stack() -> tuple[nn.Module, Tensor]:
        layers = [part for _ in range(depth) for part in (nn.Linear(width, width), draw.choice(ACTIVATIONS)())]
        return nn.Sequential(*layers), torch.empty(8, width).normal_()

    def unrolled() -> tuple[nn.Module, Tensor]:
        return _Recurrent(100, width, width, "cell"), torch.zeros((8, depth), dtype=torch.int64)

    return _trained(unrolled if seed % 2 else stack, draw, device)


def _trained(made: Callable[[], tuple[nn.Module, Tensor]], draw: random.Random, device: str) -> OwnModel:
    with torch.device(device):
        module, inputs = made()
        target = _target(module, inputs, draw)
    return OwnModel(
        module=module,
        inputs=(inputs, target),
        criterion=Criterion(_loss_of(target), wants_target=True),
        updated_by=draw.choice(OPTIMIZERS)(module.parameters()),
        batch=len(inputs),
        clip_norm=draw.choice((None, 1.0)),
    )


def _target(module: nn.Module, inputs: Tensor, draw: random.Random) -> Tensor:
    """Classes for scores of rows; else numbers of the output's shape."""
    with torch.no_grad():
        output = module(inputs)
    if output.dim() == 2 and draw.random() < 0.7:
        return torch.zeros(len(output), dtype=torch.int64, device=output.device)
    return torch.zeros_like(output)


def _loss_of(target: Tensor) -> Callable[..., Tensor]:
    return F.mse_loss if target.is_floating_point() else F.cross_entropy


def _perceptron(draw: random.Random, largest: float) -> tuple[nn.Module, Tensor]:
    widths = [log_uniform(draw, 8, 4096) for _ in range(draw.randint(2, 5))]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=draw.random() < 0.8), draw.choice(ACTIVATIONS)()]
        if draw.random() < 0.3:
            layers.append(nn.Dropout(0.5))
        if draw.random() < 0.2:
            layers.append(nn.LayerNorm(after))
    batch = log_uniform(draw, 1, round(512 * largest))
    return nn.Sequential(*layers), torch.empty(batch, widths[0]).normal_()


def _convolutional(draw: random.Random, largest: float) -> tuple[nn.Module, Tensor]:
    side, channels = log_uniform(draw, 14, 224), draw.choice((1, 3, 3, 16, 32, 64, 128, 256, 512))
    inputs = torch.empty(log_uniform(draw, 1, round(16 * largest)), channels, side, side).normal_()
    layers: list[nn.Module] = []
    for _ in range(draw.randint(1, 4)):
        kernel, stride = draw.choice((1, 1, 3, 3, 3, 5, 7, 11)), draw.choice((1, 1, 1, 2, 4))
        if side < max(kernel, 4):
            break
        groups = draw.choice((1, 1, 1, 2)) if channels % 2 == 0 else 1
        after = 2 * log_uniform(draw, 8, 256)
        layers.append(nn.Conv2d(channels, after, kernel, stride, kernel // 2, groups=groups, bias=draw.random() < 0.5))
        channels, side = after, (side + 2 * (kernel // 2) - kernel) // stride + 1
        if draw.random() < 0.5:
            layers.append(nn.BatchNorm2d(channels))
        layers.append(draw.choice((nn.ReLU(), nn.ReLU(inplace=True), nn.SiLU())))
        if draw.random() < 0.4 and side >= 6:
            pool = draw.choice((nn.MaxPool2d(2), nn.MaxPool2d(3, 2), nn.AvgPool2d(2)))
            layers.append(pool)
            side = (side - 2) // 2 + 1 if pool.kernel_size == 2 else (side - 3) // 2 + 1
    if draw.random() < 0.5:
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, log_uniform(draw, 10, 1000))]
    else:
        layers += [nn.Flatten()]
    return nn.Sequential(*layers), inputs


class _Residual(nn.Module):
    """A residual block, with what a plain stack has not: additions and a projection."""

    def __init__(self, channels: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()),
            *(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)),
        )
        self.shortcut = nn.Sequential(nn.Conv2d(channels, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def _residual(draw: random.Random, largest: float) -> tuple[nn.Module, Tensor]:
    channels, after = (2 * log_uniform(draw, 8, 256) for _ in range(2))
    inputs = torch.empty(log_uniform(draw, 1, round(16 * largest)), channels, *[log_uniform(draw, 7, 64)] * 2)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(after, log_uniform(draw, 10, 1000))]
    return nn.Sequential(_Residual(channels, after, draw.choice((1, 2))), *head), inputs.normal_()


class _Recurrent(nn.Module):
    """Tokens through a recurrent layer or a cell step by step, to scores of words."""

    def __init__(self, words: int, width: int, hidden: int, kind: str) -> None:
        super().__init__()
        self.embedding, self.kind = nn.Embedding(words, width), kind
        made: dict[str, Callable[[], nn.Module]] = {
            "lstm": lambda: nn.LSTM(width, hidden, batch_first=True),
            "gru": lambda: nn.GRU(width, hidden, batch_first=True),
            "rnn": lambda: nn.RNN(width, hidden, batch_first=True, nonlinearity="relu"),
            "cell": lambda: nn.LSTMCell(width, hidden),
        }
        self.layer = made[kind]()
        self.scores = nn.Linear(hidden, words)

    def forward(self, x: Tensor) -> Tensor:
        embedded = self.embedding(x)
        if self.kind != "cell":
            scores: Tensor = self.scores(self.layer(embedded)[0])
            return scores.flatten(0, 1)
        state, outputs = None, []
        for step in embedded.unbind(1):
            state = self.layer(step, state)
            outputs.append(state[0])
        stacked: Tensor = self.scores(torch.stack(outputs, 1))
        return stacked.flatten(0, 1)


def _recurrent(draw: random.Random, largest: float) -> tuple[nn.Module, Tensor]:
    words, width, hidden = (log_uniform(draw, low, high) for low, high in ((20, 20000), (16, 1024), (16, 1024)))
    shape = log_uniform(draw, 1, round(64 * largest)), log_uniform(draw, 4, 48)
    return _Recurrent(words, width, hidden, draw.choice(("lstm", "gru", "rnn", "cell"))), torch.zeros(
        shape, dtype=torch.int64
    )


class _Attention(nn.Module):
    """One block of a transformer, with attention written out or fused."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = (q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)).softmax(-1)
            mixed = weights @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.mlp(self.norms[1](x))
        return result


def _attention(draw: random.Random, largest: float) -> tuple[nn.Module, Tensor]:
    heads = draw.choice((1, 2, 4, 8))
    width = heads * draw.choice((16, 32, 64))
    shape = log_uniform(draw, 1, round(16 * largest)), log_uniform(draw, 8, 256), width
    return _Attention(width, heads, draw.random() < 0.5), torch.empty(shape).normal_()


class _Memory(nn.Module):
    """Small ops as in networks with a memory: lookups, masks, batched products with vectors, stacks and sums."""

    def __init__(self, words: int, width: int, hops: int) -> None:
        super().__init__()
        self.embedding, self.hops = nn.Embedding(words, width), hops
        self.answer = nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = (x != 1).unsqueeze(-1)
        memory = (self.embedding(x) * mask).sum(2)
        question = memory.select(1, 0)
        for _ in range(self.hops):
            weights = torch.bmm(memory, question.unsqueeze(2)).squeeze(2).softmax(1)
            question = question + torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        pieces = torch.cat([question.exp(), question.square(), question.clamp(0, 1)], 1)
        result: Tensor = self.answer(torch.stack(pieces.chunk(3, 1)).mean(0))
        return result


def _memory(draw: random.Random, largest: float) -> tuple[nn.Module, Tensor]:
    words, width = log_uniform(draw, 20, 2000), log_uniform(draw, 16, 256)
    shape = log_uniform(draw, 1, round(64 * largest)), log_uniform(draw, 4, 50), log_uniform(draw, 2, 12)
    return _Memory(words, width, draw.randint(1, 3)), torch.zeros(shape, dtype=torch.int64)


FAMILIES = (_perceptron, _convolutional, _recurrent, _residual, _attention, _memory, _convolutional)
