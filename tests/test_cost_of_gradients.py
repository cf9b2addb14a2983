"""Models that take gradients in their forward pass: the same step with data, torch's own counter and a hand count."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from conftest import fathom
from torch import Tensor, nn
from torch.func import hessian, vmap
from torch.utils.flop_counter import FlopCounterMode

from fathom.engine.cost_sheet import cost_sheet
from fathom.engine.live import LiveBytes
from fathom.engine.simulate import Simulation
from fathom.measure.own.model import OwnModel
from fathom.trace.step_work import FORWARD

ROWS, WIDTH = 64, 32


class Physics(nn.Module):
    """A heat equation: its residual has a second derivative of the network by its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.layers(x).sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
        return (slope[:, 1] - bend[:, 0]).square().mean()


class Penalty(nn.Module):
    """Of a critic's gradient between real and generated images, as in WGAN-GP."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            *(nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1), nn.LeakyReLU(0.2)),
            *(nn.Flatten(), nn.Linear(256, 1)),
        )

    def forward(self, real: Tensor, generated: Tensor) -> Tensor:
        share = torch.rand(len(real), 1, 1, 1, device=real.device)
        between = (share * real + (1 - share) * generated).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        distance: Tensor = self.critic(generated).mean() - self.critic(real).mean()
        penalty: Tensor = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        return distance + 10 * penalty


class Curvature(nn.Module):
    """By torch.func, which inference can run, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        bends: Tensor = vmap(hessian(lambda row: self.layers(row).sum()))(x)
        return bends.square().mean()


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "physics": (Physics, (ROWS, 2), 1),
    "penalty": (Penalty, (4, 3, 16, 16), 2),
    "curvature": (Curvature, (ROWS, 2), 1),
}


def torchs_count(module: nn.Module, inputs: list[Tensor]) -> int:
    """Without its names of modules: the hooks that find them refuse gradients by a leaf."""
    counter = FlopCounterMode(display=False)
    unnamed = nullcontext()
    unnamed.parents = {"Global"}  # type: ignore[attr-defined]
    counter.mod_tracker = unnamed  # type: ignore[assignment]
    with counter:
        module(*inputs).backward()
    return counter.get_total_flops()


def real_peak(module: nn.Module, inputs: list[Tensor]) -> int:
    with LiveBytes() as live:
        live.hold([*module.parameters(), *inputs])
        module(*inputs).backward()
    peak: int = live.peak
    return peak


def on_meta(module: nn.Module, inputs: list[Tensor]) -> OwnModel:
    batch = tuple(each.to("meta") for each in inputs)
    return OwnModel(module=copy.deepcopy(module).to("meta"), inputs=batch, batch=len(batch[0]))


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_in_the_forward_pass_cost_what_the_same_step_with_data_does(name: str, gpu: bool) -> None:
    make, shape, count = MODELS[name]
    module, inputs = make(), [torch.rand(shape) for _ in range(count)]
    step = Simulation(on_meta(module, inputs), "train", gpu=gpu).step()
    assert 2 * step.total.mac == torchs_count(module, inputs)
    assert not step.uncounted or name == "curvature"


@pytest.mark.parametrize("name", ["physics", "penalty"])
def test_they_live_as_long_as_in_the_same_step_with_data(name: str) -> None:
    make, shape, count = MODELS[name]
    module, inputs = make(), [torch.rand(shape) for _ in range(count)]
    step = Simulation(on_meta(module, inputs), "train", gpu=False).step()
    assert step.peak_bytes == pytest.approx(real_peak(module, inputs), rel=0.02)


def test_they_are_part_of_the_forward_pass() -> None:
    """Of two layers; each derivative by the input goes back through both, and the bend also through the slope."""
    step = Simulation(on_meta(Physics(), [torch.rand(ROWS, 2)]), "train").step()
    first, last = ROWS * 2 * WIDTH, ROWS * WIDTH
    values, slope, bend = first + last, last + first, 2 * first
    assert step.work[FORWARD].mac == values + slope + bend
    assert step.activation_bytes > 4 * ROWS * WIDTH * 4, "what the slope and the bend keep is there, too"


def test_a_model_that_inference_mode_refuses_has_its_training_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet = cost_sheet(on_meta(Physics(), [torch.rand(ROWS, 2)]), memory_bytes=1 << 30)
    assert {phase for phase, _ in sheet.largest} == {"train"}
    assert sheet.notes[0].startswith("inference is not possible: RuntimeError: ")
    assert fathom(monkeypatch, "cost", "test_cost_of_gradients:physics") == 0
    printed = capsys.readouterr()
    assert "Peak of an inference step" not in printed.out
    assert "inference is not possible" in printed.err


def physics() -> tuple[nn.Module, Tensor]:
    return Physics(), torch.rand(ROWS, 2)
