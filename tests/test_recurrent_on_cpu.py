"""Recurrent layers of a simulated CPU against the same step with data: products, and live bytes at their peak."""

from __future__ import annotations

import copy
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fathom.engine.live import LiveBytes
from fathom.engine.op_calls import call_of
from fathom.engine.recurrent_on_cpu import lstm_workspace_bytes
from fathom.engine.simulate import Simulation
from fathom.measure.own.model import OwnModel
from fathom.trace.flops import is_multiply_add

ITEMS, STEPS, WIDTH = 16, 20, 32
LAYERS: dict[str, partial[nn.RNNBase]] = {
    "gru": partial(nn.GRU),
    "tanh": partial(nn.RNN),
    "relu": partial(nn.RNN, nonlinearity="relu", bias=False),
    "two": partial(nn.GRU, num_layers=2, batch_first=True, dropout=0.1),
    "both ways": partial(nn.RNN, num_layers=2, bidirectional=True),
    "gru both ways": partial(nn.GRU, bidirectional=True, batch_first=True),
    "lstm": partial(nn.LSTM, batch_first=True),
    "lstm both ways": partial(nn.LSTM, num_layers=2, bidirectional=True, bias=False, dropout=0.1),
}


class Recurrent(nn.Module):
    def __init__(self, make: partial[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = make(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH * (2 if self.layer.bidirectional else 1), 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.layer(x if self.layer.batch_first else x.transpose(0, 1))[0])
        return result


class Products:
    """Shapes and types of the operands of each matrix product."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str, str]] = Counter()

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = call_of(func, args, kwargs)
        if is_multiply_add(call.op):
            self.calls[(call.op, *call.shown())] += 1


def real_step(module: nn.Module, x: Tensor, phase: str, precision: str) -> tuple[int, Counter[tuple[str, str, str]]]:
    def step() -> None:
        for weight in module.parameters():
            weight.grad = None
        with torch.inference_mode(phase == "infer"):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = module(x).float().mean()
            if phase == "train":
                loss.backward()

    products = Products()
    with LiveBytes(products) as live:
        live.hold([*module.parameters(), x])
        step()
    peak: int = live.peak
    return peak, products.calls


@pytest.mark.parametrize("phase", ["train", "infer"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_recurrent_layer_is_what_a_cpu_runs(name: str, phase: str) -> None:
    module, x = Recurrent(LAYERS[name]), torch.rand(ITEMS, STEPS, WIDTH)
    workload = OwnModel(module=copy.deepcopy(module).to("meta"), inputs=x.to("meta"), batch=ITEMS)
    seen = Products()
    step = Simulation(workload, phase, gpu=False).step(watch=lambda _, *call: seen(*call))
    peak, calls = real_step(module.train(phase == "train"), x, phase, "fp32")
    assert seen.calls == calls
    assert step.peak_bytes == pytest.approx(peak, rel=0.02)


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1), (5, 3, 16, 32), (7, 5, 33, 47), (20, 8, 256, 64), (20, 8, 64, 256), (3, 2, 100, 100)]
)
def test_the_workspace_of_an_lstm_runs_in_onednn_to_the_byte(sizes: tuple[int, int, int, int]) -> None:
    steps, items, width, hidden = sizes
    weights = [torch.zeros(4 * hidden, width), torch.zeros(4 * hidden, hidden), *torch.zeros(2, 4 * hidden)]
    states = torch.zeros(2, items, hidden)
    how: tuple[Any, ...] = (False, [], 2, hidden, 1, True, False, False, True)
    found = torch.ops.aten.mkldnn_rnn_layer(torch.zeros(steps, items, width), *weights, *states, *how)
    assert lstm_workspace_bytes(*sizes) == found[3].nbytes


def test_its_products_are_cast_as_a_cpus_autocast_casts_them() -> None:
    module, x = Recurrent(LAYERS["gru"]), torch.rand(ITEMS, STEPS, WIDTH)
    workload = OwnModel(module=copy.deepcopy(module).to("meta"), inputs=x.to("meta"), batch=ITEMS)
    seen = Products()
    Simulation(workload, "train", gpu=False).step("bf16", watch=lambda _, *call: seen(*call))
    assert seen.calls == real_step(module, x, "train", "bf16")[1]


def test_packed_sequences_are_torchs_own() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            packed = nn.utils.rnn.PackedSequence(x, torch.tensor([2, 1], device="cpu"))
            output: Tensor = self.layer(packed)[0].data
            return output

    workload = OwnModel(module=Packed().to("meta"), inputs=torch.empty(3, WIDTH, device="meta"), batch=3)
    assert Simulation(workload, "infer", gpu=False).step().total.mac == 3 * 2 * 3 * WIDTH**2
