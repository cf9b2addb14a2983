"""The op calls of a step taken on the meta device against those of the same step with data; and calls made again."""

from __future__ import annotations

import inspect
from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fathom
from fathom.core.errors import BadOption
from fathom.engine.call_specs import decode, encode
from fathom.engine.live import LiveBytes
from fathom.engine.op_calls import call_of
from fathom.engine.stand_ins import STAND_INS
from fathom.engine.step_work import StepWorks, step_work
from fathom.measure.own.model import OwnModel
from fathom.trace.flops import flop, is_multiply_add
from fathom.workloads.base import workload_class

CPU = torch.device("cpu")
EIGHT = ["alexnet", "autoenc", "memnet", "residual", "seq2seq", "speech", "vgg"]  # deepq plays games, and is below


IMAGES = ["alexnet", "googlenet", "residual", "vgg"]  # networks whose tensors have their channels last


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts matrix products and convolutions, all calls with their arguments, and the FLOP of everything."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()
        self.specs: Counter[str] = Counter()
        self.flop = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if torch.is_inference_mode_enabled():
            with self:  # only there an op that consists of others comes whole
                parts = func.decompose(*args, **given)
            if parts is not NotImplemented:
                return parts
        if func.namespace == "aten":
            call = call_of(func, args, given)
            self.specs[encode(func, args, given)] += 1
            self.flop += flop(call) or 0.0
            if is_multiply_add(call.op):
                self.calls[call.op] += 1
        return func(*args, **given)


def of_real_step(name: str, phase: str) -> Products:
    with fathom.load(name, preset="tiny", device="cpu", phase=phase).setup() as session:
        batch = next(session.state.batches)
        step = partial(session.engine.update if phase == "train" else session.engine.infer, batch)
        step()
        with Products() as products:
            step()
        found: Products = products
        return found


@pytest.mark.parametrize("phase", ["train", "infer"])
@pytest.mark.parametrize("name", EIGHT)
def test_calls_are_those_of_the_same_step_with_data(name: str, phase: str) -> None:
    step = step_work(workload_class(name).configured("tiny"), phase, gpu=False)
    real = of_real_step(name, phase)
    simulated: Counter[str] = Counter()
    for op, calls in zip(step.ops, step.calls, strict=True):
        if is_multiply_add(op.op):
            simulated[op.op] += calls
    assert simulated == real.calls
    assert step.flop == pytest.approx(real.flop, rel=0.01)


@pytest.mark.parametrize("name", IMAGES)
def test_every_call_has_the_layout_of_the_same_step_with_data(name: str) -> None:
    step = step_work(workload_class(name).configured("tiny"), "train", gpu=False)
    simulated: Counter[str] = Counter()
    for op, calls in zip(step.ops, step.calls, strict=True):
        simulated[op.spec] += calls
    assert simulated == of_real_step(name, "train").specs


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("kept", ["input", "weight", "neither"])
def test_a_convolution_has_its_channels_last_where_its_input_or_weight_has(dims: int, kept: str) -> None:
    last = {2: torch.channels_last, 3: torch.channels_last_3d}[dims]
    convolve = {2: torch.conv2d, 3: torch.conv3d}[dims]
    strides = {}
    for device in ("meta", "cpu"):
        x, weight = (torch.rand(8, 4, *[size] * dims, device=device) for size in (6, 3))
        x = x.contiguous(memory_format=last) if kept == "input" else x
        weight = weight.contiguous(memory_format=last) if kept == "weight" else weight
        with LiveBytes(stand_ins=STAND_INS if device == "meta" else {}):
            found = convolve(x.requires_grad_(), weight.requires_grad_())
            torch.autograd.backward(found.sum())
        assert x.grad is not None
        assert weight.grad is not None
        strides[device] = found.stride(), x.grad.stride(), weight.grad.stride()
    assert strides["meta"] == strides["cpu"]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_batch_of_another_size_keeps_the_layout_of_the_users_input(layout: torch.memory_format) -> None:
    inputs = torch.rand(2, 4, 6, 5).contiguous(memory_format=layout)
    workload = OwnModel(module=nn.Conv2d(4, 8, 3), inputs=inputs, batch=2)
    (found,) = workload.shaped(7).args
    assert found.stride() == torch.empty(7, 4, 6, 5).contiguous(memory_format=layout).stride()


def test_a_transposed_input_stays_transposed_at_another_batch() -> None:
    workload = OwnModel(module=nn.Linear(3, 8), inputs=torch.rand(2, 3, 5).transpose(1, 2), batch=2)
    (found,) = workload.shaped(4).args
    assert (found.shape, found.stride()) == ((4, 5, 3), (15, 1, 5))


def test_batch_normalisation_is_cudnns_on_a_gpu_in_single_precision() -> None:
    workload = workload_class("residual").configured("tiny")
    layers = sum(isinstance(each, nn.BatchNorm2d) for each in workload.model().modules())
    for precision, op in (("fp32", "aten::cudnn_batch_norm"), ("bf16", "aten::native_batch_norm")):
        step = step_work(workload, "train", precision)
        counts = Counter({each.op: 0 for each in step.ops})
        for each, calls in zip(step.ops, step.calls, strict=True):
            counts[each.op] += calls
        assert {name: calls for name, calls in counts.items() if "batch_norm" in name} == {
            op: layers,
            f"{op}_backward": layers,
        }
        assert all(each.flop for each in step.ops if "batch_norm" in each.op)


class Attention(nn.Module):
    """Eight heads of queries, and as many or fewer of keys and values."""

    def __init__(self, heads: int, masked: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.masked, self.dropout = heads, masked, dropout
        self.queries, self.keys = nn.Linear(32, 32), nn.Linear(32, 4 * heads)

    def forward(self, x: Tensor) -> Tensor:
        q, k = (layer(x).view(*x.shape[:2], -1, 4).transpose(1, 2) for layer in (self.queries, self.keys))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device) if self.masked else None
        grouped = self.heads < 8
        return F.scaled_dot_product_attention(
            q, k, k, attn_mask=mask, dropout_p=self.dropout, is_causal=not self.masked, enable_gqa=grouped
        )


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return output


ATTENTION = [
    Attention(8),
    Attention(2),
    Attention(8, masked=True),
    Attention(2, masked=True),
    Attention(8, dropout=0.1),
]


@pytest.mark.parametrize(
    "module", [*ATTENTION, Packed()], ids=["plain", "grouped", "mask", "both", "dropout", "packed"]
)
def test_attention_is_what_a_cpu_runs(module: nn.Module) -> None:
    inputs = torch.rand(2, 16, 32)
    with Products() as real:
        torch.autograd.backward(module(inputs).sum())
    step = step_work(OwnModel(module=module.to("meta"), inputs=inputs.to("meta"), batch=2), gpu=False)
    simulated: Counter[str] = Counter()
    for op, calls in zip(step.ops, step.calls, strict=True):
        if is_multiply_add(op.op):
            simulated[op.op] += calls
    assert simulated == real.calls


@pytest.mark.parametrize(("precision", "fused"), [("bf16", True), ("fp32", False)])
def test_grouped_queries_are_flash_attention_on_a_gpu_in_half_precision_alone(precision: str, fused: bool) -> None:
    workload = OwnModel(module=Attention(2).to("meta"), inputs=torch.empty(2, 16, 32, device="meta"), batch=2)
    ops = {op.op for op in step_work(workload, "train", precision).ops}
    assert ("aten::_scaled_dot_product_flash_attention" in ops) is fused
    assert ("aten::_safe_softmax" in ops) is not fused


def test_a_step_of_deepq_has_its_passes_without_gradients() -> None:
    workload = workload_class("deepq").configured("tiny")
    step = step_work(workload, "train", gpu=False)
    forward = sum(calls for op, calls in zip(step.ops, step.calls, strict=True) if op.op == "aten::convolution")
    layers = sum(isinstance(each, nn.Conv2d) for each in workload.model().modules())
    assert forward == layers * (workload.updates_per_step + len(workload.passes_beside()))
    assert step.batch == workload.items_per_step("train")
    assert step.updates == workload.updates_per_step


def test_updates_are_counted_as_a_step_makes_them() -> None:
    workload = workload_class("deepq").configured("paper")
    assert step_work(workload, "train").updates == workload.updates_per_step > 1
    assert step_work(workload, "infer").updates == 0


def test_gradients_come_in_the_order_of_the_backward_pass() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to("meta")
    workload = OwnModel(module=module, inputs=torch.empty(3, 4, device="meta"), batch=3)
    step = step_work(workload, "train")
    assert sorted(each.size_bytes for each in step.gradients[:2]) == [8, 64]  # the last layer's
    assert step.gradient_bytes == 4 * sum(weight.numel() for weight in module.parameters())
    after = [each.after for each in step.gradients]
    assert after == sorted(after)
    assert after[-1] <= len(step.sequence)


def test_an_optimizer_that_divides_by_its_steps_can_be_simulated_on_a_cpu() -> None:
    module = nn.Linear(4, 2).to("meta")
    workload = OwnModel(module=module, inputs=torch.empty(3, 4, device="meta"), batch=3, updated_by="adam")
    assert any(op.part == "optimizer" for op in step_work(workload, "train", gpu=False).ops)


CALLS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "transposed": (torch.ops.aten.mm.default, (torch.rand(3, 4), torch.rand(5, 4).t()), {}),
    "expanded": (torch.ops.aten.add.Tensor, (torch.rand(2, 1).expand(2, 6), torch.rand(2, 6)), {"alpha": 2}),
    "list": (torch.ops.aten.cat.default, ([torch.rand(2, 3), torch.rand(4, 3)],), {}),
    "lookup": (torch.ops.aten.embedding.default, (torch.rand(7, 3), torch.tensor([0, 6])), {}),
    "loss": (
        torch.ops.aten.nll_loss_forward.default,
        (torch.rand(4, 3), torch.zeros(4, dtype=torch.int64), None, 1, -100),
        {},
    ),
    "cast": (torch.ops.aten._to_copy.default, (torch.rand(3),), {"dtype": torch.bfloat16}),
    "made": (torch.ops.aten.zeros.default, ([2, 3],), {"device": CPU, "pin_memory": False}),
    "convolution": (
        torch.ops.aten.convolution.default,
        (torch.rand(1, 4, 8, 8), torch.rand(6, 2, 3, 3), None, [2, 2], [1, 1], [1, 1], False, [0, 0], 2),
        {},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_made_again_from_its_text(name: str) -> None:
    func, args, kwargs = CALLS[name]
    text = encode(func, args, kwargs)
    again, new_args, new_kwargs = decode(text, CPU)
    assert again is func
    assert encode(again, tuple(new_args), new_kwargs) == text  # the same shapes, strides and types
    made, expected = again(*new_args, **new_kwargs), func(*args, **kwargs)
    first, second = (each[0] if isinstance(each, tuple) else each for each in (made, expected))
    assert isinstance(first, Tensor)
    assert (first.shape, first.dtype) == (second.shape, second.dtype)


def test_a_tensor_that_is_an_argument_twice_is_one_tensor_again() -> None:
    """An op that writes to its own operand has nothing to copy: on a GPU that is a third of a small product's time."""
    product, (into, first, second) = torch.ops.aten.baddbmm.out, (torch.rand(2, 3, 3) for _ in range(3))
    apart = encode(product, (into, first, second), {"out": torch.rand(2, 3, 3)})
    text = encode(product, (into, first, second), {"out": into})
    assert text != apart
    _, args, kwargs = decode(text, CPU)
    assert kwargs["out"] is args[0]
    assert args[1] is not args[0]
    _, args, kwargs = decode(apart, CPU)
    assert kwargs["out"] is not args[0]
    square = encode(torch.ops.aten.mul.Tensor, (first, first), {})
    _, args, _ = decode(square, CPU)
    assert args[0] is args[1]
    assert encode(torch.ops.aten.mul.Tensor, tuple(args), {}) == square


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_indices_that_are_made_up_are_within_the_table(rows: int) -> None:
    text = encode(torch.ops.aten.embedding.default, (torch.rand(rows, 2), torch.zeros(500, dtype=torch.int64)), {})
    _, args, _ = decode(text, CPU)
    assert 0 <= int(args[1].min()) <= int(args[1].max()) < rows
    assert rows == 1 or int(args[1].max()) > 0  # not one row again and again


def test_several_indices_are_within_every_dimension() -> None:
    indices = [torch.zeros(50, dtype=torch.int64), torch.zeros(50, dtype=torch.int64)]
    func, args, kwargs = decode(encode(torch.ops.aten.index.Tensor, (torch.rand(100, 3), indices), {}), CPU)
    assert func(*args, **kwargs).shape == (50,)
    assert max(int(each.max()) for each in args[1]) < 3


class Checkpointed(nn.Module):
    """Layers that are computed again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 16))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.layers, x.requires_grad_(), use_reentrant=self.reentrant)
        return found


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("gpu", [False, True])
def test_checkpointed_layers_are_computed_again_as_they_were(precision: str, gpu: bool, reentrant: bool) -> None:
    """Both forward, and again: but for the last, where torch stops as soon as it has what the gradients need."""
    workload = OwnModel(module=Checkpointed(reentrant).to("meta"), inputs=torch.empty(4, 16, device="meta"), batch=4)
    before = inspect.unwrap(checkpoint).__kwdefaults__["context_fn"]
    step = step_work(workload, "train", precision, gpu=gpu)
    products: Counter[str] = Counter()
    for op, calls in zip(step.ops, step.calls, strict=True):
        if op.op == "aten::addmm":
            products[op.dtypes.split()[0]] += calls
    if not reentrant:
        assert products == {"float" if precision == "fp32" else "BFloat16": 3}
    assert products.total() == (4 if reentrant else 3)
    assert inspect.unwrap(checkpoint).__kwdefaults__["context_fn"] is before


def test_a_batch_without_rows_has_no_other_size() -> None:
    """A list of images, as detection networks take them: 64 of them are not the same two."""
    images = [torch.empty(3, 8, 8, device="meta"), torch.empty(3, 8, 8, device="meta")]
    workload = OwnModel(module=FirstOf().to("meta"), inputs=(images,), batch=2)
    assert step_work(workload, "infer").batch == 2
    with pytest.raises(BadOption, match="no tensor with a row an item"):
        step_work(workload, "infer", items=64)


class FirstOf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, images: list[Tensor]) -> Tensor:
        found: Tensor = self.layer(torch.stack(images))
        return found


def test_passes_beside_the_updates_follow_the_batch() -> None:
    """deepq values as many transitions as it learns from."""
    small = StepWorks(workload_class("deepq").configured("tiny"), "train").at(items=16)
    configured = step_work(workload_class("deepq").configured("tiny", batch=16), "train")
    assert [(op.op, op.shapes) for op in small.ops] == [(op.op, op.shapes) for op in configured.ops]
