"""Steps that are not a plain loop: closures of optimizers, and threads of the user's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.profiler import record_function
from torch.utils.checkpoint import checkpoint

import fathom as suite
from fathom.analysis.actions import actions
from fathom.core.errors import BadOption
from fathom.measure.own.step import _number

pytestmark = pytest.mark.usefixtures("few_steps")

WIDTH, ITEMS = 64, 32
PRODUCT = 2 * ITEMS * WIDTH * WIDTH  # FLOP of a forward pass; the weight's gradient takes as many


def profiled(step: Callable[[], Any]) -> suite.Record:
    return suite.profile(step, device="cpu", threads=1, name="step")


def by_phase(record: suite.Record, kind: str = "MatMul") -> dict[str, float]:
    """FLOP of the products of each phase."""
    assert record.profile is not None
    found: dict[str, float] = {}
    for row in record.profile.rows:
        if row.type == kind:
            found[row.phase] = found.get(row.phase, 0.0) + (row.flop or 0.0)
    return found


def types_of(record: suite.Record, phase: str) -> set[str]:
    assert record.profile is not None
    return {row.type for row in record.profile.rows if row.phase == phase}


def closure_step(model: nn.Module, optimizer: Optimizer) -> Callable[[], Any]:
    inputs = torch.randn(ITEMS, WIDTH)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(inputs).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return lambda: optimizer.step(closure)  # type: ignore[arg-type]


def test_what_a_closure_does_is_not_the_optimizers_update() -> None:
    """PyTorch Lightning gives every optimizer a closure with the forward and backward pass in it."""
    model = nn.Linear(WIDTH, WIDTH)
    record = profiled(closure_step(model, AdamW(model.parameters())))
    assert by_phase(record) == {"forward": PRODUCT, "backward": PRODUCT}
    assert types_of(record, "optimizer") == {"ApplyAdamW"}
    assert "ApplyAdamW" not in types_of(record, "forward") | types_of(record, "backward")


def test_lbfgs_calls_its_closure_several_times() -> None:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=1e-3, max_iter=3, tolerance_grad=0, tolerance_change=0)
    record = profiled(closure_step(model, optimizer))
    found = by_phase(record)
    assert found["forward"] == found["backward"] == 3 * PRODUCT
    assert types_of(record, "optimizer") == {"ApplyLBFGS"}
    assert not any("fused" in str(action) for action in actions(record)), "LBFGS has no such option"


class OnGradients(SGD):
    """An update of its own kind, with gradients on: nothing of it is a closure's."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.add_(weight.grad.matmul(weight.grad), alpha=-1e-6)


def test_an_update_without_a_closure_is_one_whatever_it_calls() -> None:
    model, inputs = nn.Linear(WIDTH, WIDTH, bias=False), torch.randn(ITEMS, WIDTH)
    optimizer = OnGradients(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()

    record = profiled(step)
    assert by_phase(record) == {"forward": PRODUCT, "backward": PRODUCT}
    assert types_of(record, "optimizer") == {"ApplyOnGradients"}


class Towers(nn.Module):
    """Two halves of a batch in two threads, which share a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        with ThreadPoolExecutor(2) as pool:
            halves = list(pool.map(self.shared, inputs.chunk(2)))
        head: Tensor = self.head(torch.cat(halves))
        return head


@pytest.mark.parametrize(("phase", "products"), [("infer", {"forward": 2}), ("train", {"forward": 2, "backward": 3})])
def test_ops_of_other_threads_are_counted(phase: str, products: dict[str, int]) -> None:
    record = suite.profile(Towers(), torch.randn(ITEMS, WIDTH), phase=phase, device="cpu", threads=1)
    assert by_phase(record) == {phase: count * PRODUCT for phase, count in products.items()}
    assert record.profile is not None
    forward = [row for row in record.profile.rows if (row.type, row.phase) == ("MatMul", "forward")]
    assert {row.layer: row.flop for row in forward} == {"shared": PRODUCT, "head": PRODUCT}


def test_two_threads_may_be_in_the_same_module_at_once() -> None:
    model, inputs = nn.Linear(WIDTH, WIDTH), torch.randn(ITEMS, WIDTH)
    inside = threading.Barrier(2, timeout=240)

    class Meeting(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            inside.wait()  # both threads have entered
            result: Tensor = model(values)
            inside.wait()
            return result

    meeting = Meeting()

    def step() -> None:
        other = threading.Thread(target=meeting, args=(inputs,))
        other.start()
        meeting(inputs)
        other.join()

    assert by_phase(profiled(step)) == {"forward": 2 * PRODUCT}


def test_only_a_number_that_a_step_returns_is_kept() -> None:
    """An output would keep the graph of its step in memory, for all steps of a series."""
    loss = torch.ones(1, requires_grad=True).sum()
    assert _number(torch.ones(3)) is None
    assert _number({"loss": 1.0}) is None
    assert _number(2.5) == 2.5
    kept = _number(loss)
    assert isinstance(kept, Tensor)
    assert kept.grad_fn is None


def test_a_generator_is_no_step() -> None:
    def step() -> Iterator[None]:
        yield

    async def later() -> None:
        return

    for lazy in (step, later):
        with pytest.raises(BadOption, match="a generator or a coroutine"):
            profiled(lazy)


def test_a_decorated_step_has_its_network() -> None:
    model, inputs = nn.Linear(WIDTH, WIDTH), torch.randn(ITEMS, WIDTH)

    @torch.inference_mode()
    def step() -> None:
        model(inputs)

    record = profiled(step)
    assert record.parameters == WIDTH * WIDTH + WIDTH
    assert record.spec.phase == "infer", "it makes no backward pass"


def test_a_mark_with_quotes_leaves_a_trace_that_is_valid_json(tmp_path: Path) -> None:
    """Torch writes names of marks as they are."""
    model, inputs = nn.Linear(WIDTH, WIDTH), torch.randn(ITEMS, WIDTH)

    def step() -> None:
        with record_function('the "step"'):
            model(inputs)

    path = tmp_path / "trace.json"
    record = suite.profile(step, device="cpu", trace_out=path)
    assert record.profile is not None
    assert record.profile.op_s > 0
    assert 'the "step"' in {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}


class Named(nn.Module):
    """Speakers have roles."""

    def __init__(self) -> None:
        super().__init__()
        self.role = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.role(inputs)
        return found


def test_a_submodule_may_be_called_role() -> None:
    record = suite.profile(Named(), torch.randn(ITEMS, WIDTH), device="cpu", phase="infer")
    assert record.profile is not None
    assert {row.role for row in record.profile.rows if row.layer == "role"} == {"fully connected"}


class Again(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.layer, self.reentrant = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), reentrant

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.layer, inputs.requires_grad_(), use_reentrant=self.reentrant)
        return found


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_makes_again_belongs_to_its_layer(reentrant: bool) -> None:
    record = suite.profile(Again(reentrant=reentrant), torch.randn(ITEMS, WIDTH), device="cpu")
    assert record.profile is not None
    products = [row for row in record.profile.rows if row.phase == "backward" and row.type == "MatMul" and row.flop]
    assert products
    assert {row.layer for row in products} == {"layer.0"}
