"""A step without data against the same step with data: live bytes, counts, precisions; and the largest batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import fathom
from fathom.core import plugins
from fathom.engine.as_on_gpu import AsOnGPU
from fathom.engine.cost_sheet import MOST_ITEMS, cost_sheet, largest_batch, peak_bytes
from fathom.engine.live import BLOCK, LiveBytes, held_bytes
from fathom.engine.simulate import Simulation, simulate
from fathom.engine.step_work import StepWorks
from fathom.engine.workspaces import convolution_bytes, workspace_bytes
from fathom.measure.own.cost import cost_of_target
from fathom.measure.own.model import OwnModel
from fathom.trace.step_work import FORWARD, OPTIMIZER
from fathom.workloads.base import workload_class

LONGER = ("resnet-101", "resnet-152", "vgg-16")  # of the same blocks as resnet-50 and vgg
ALL = [name for name in plugins.names("workloads") if name != "deepq"]  # a session of deepq plays games first
REAL = [name for name in ALL if name not in ("seq2seq", "speech")]  # these two have ops that only a GPU has
MIB = 1 << 20


def accumulators(state: fathom.State) -> list[torch.Tensor]:
    """What the optimizer keeps from the start on, as Adagrad does; counters of steps stay on the host."""
    states = state.optimizer.state.values() if state.optimizer else []
    return [each for kept in states for each in kept.values() if isinstance(each, torch.Tensor) and each.dim()]


def real_peak(name: str, phase: str) -> int:
    """The peak of a second step on real tensors."""
    with fathom.load(name, preset="tiny", device="cpu", phase=phase).setup() as session:
        state = session.state
        for group in state.optimizer.param_groups if state.optimizer else []:
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
        batch = next(state.batches)
        step: Callable[[], object] = partial(session.engine.update if phase == "train" else session.engine.infer, batch)
        with LiveBytes(temporary=convolution_bytes) as live, AsOnGPU():
            live.hold([*state.model.parameters(), *state.model.buffers(), *batch.values(), *accumulators(state)])
            for weight in state.weights:
                weight.grad = None
            step()
            for weight in state.weights:
                weight.grad = None
            live.restart_peak()
            step()
        peak: int = live.peak
        return peak


@pytest.mark.parametrize("phase", ["train", "infer"])
@pytest.mark.parametrize("name", REAL)
def test_live_bytes_are_those_of_the_same_step_on_real_tensors(name: str, phase: str) -> None:
    simulated = simulate(workload_class(name).configured("tiny"), phase)
    assert simulated.step_peak_bytes == pytest.approx(real_peak(name, phase), rel=0.03)


@pytest.mark.parametrize("name", [name for name in plugins.names("workloads") if name not in LONGER])
def test_mac_and_flop_are_those_of_the_facts(name: str) -> None:
    kind = workload_class(name)
    assert kind.facts is not None
    step = simulate(kind.configured("small"), "train")
    assert step.parameters == kind.facts.parameters
    assert step.work[FORWARD].mac == pytest.approx(kind.facts.macs_per_item * step.items, rel=1e-9)
    # cuDNN's backward also has the products of the first state, which is zero
    exact = 1e-3 if name == "seq2seq" else 1e-9
    assert 2 * step.total.mac == pytest.approx(kind.facts.train_flop_per_item * step.items, rel=exact)
    assert step.total.flop > 2 * step.total.mac
    assert not set(step.uncounted) - {"aten::scalar_tensor"}


def test_memory_is_its_parts() -> None:
    step = simulate(workload_class("sensor_net").configured("paper"), "train")
    weights = 4 * 2_919_440
    assert step.weight_bytes == pytest.approx(weights, rel=1e-3)
    assert step.gradient_bytes == step.optimizer_bytes == step.weight_bytes
    # two hidden layers give what the next needs: a ReLU works in place, and its result is its own gradient's mask
    assert step.activation_bytes == pytest.approx(512 * (3 * 1024 + 2 * 16) * 4, rel=0.05)
    assert step.apply_peak_bytes == pytest.approx(3 * weights + step.batch_bytes, rel=0.01)
    assert step.peak_bytes > 2 * weights + step.activation_bytes
    assert OPTIMIZER in step.work


def test_bf16_halves_activations_and_keeps_one_copy_of_each_weight() -> None:
    wide = Simulation(own(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)), 1 << 14), "train")
    full, half = wide.step("fp32"), wide.step("bf16")
    hidden = 256 << 14
    assert full.activation_bytes == pytest.approx(4 * hidden, rel=0.01)
    # the input in bf16, what goes through the ReLU, and copies of the weights
    assert half.activation_bytes == pytest.approx(2 * 2 * hidden + 2 * 2 * 256 * 257, rel=0.01)
    assert half.gradient_bytes == full.gradient_bytes


def own(module: nn.Module, rows: int) -> OwnModel:
    width = next(module.parameters()).shape[1]
    return OwnModel(module=module.to("meta"), inputs=torch.empty(rows, width, device="meta"), batch=rows)


def test_a_weight_used_twice_is_cast_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(512, 512, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(self.layer(x))
            return result

    kept = simulate(own(Twice(), 8), "infer", "bf16")
    assert kept.peak_bytes == pytest.approx(4 * 512**2 + 2 * 512**2, rel=0.1), "one copy, and not two"


class Casting(nn.Module):
    """Chooses a precision by itself; one of its layers stays out of it."""

    def __init__(self, device: str | None, dtype: torch.dtype | None = torch.bfloat16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
        self.last = nn.Linear(256, 256)
        self.device, self.dtype = device, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        device = self.device or x.device.type
        with torch.autocast(device, dtype=self.dtype):
            x = self.layers(x)
            with torch.autocast(device, enabled=False):
                result: torch.Tensor = self.last(x.float())
                return result


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize(
    ("device", "on_gpu", "on_cpu"),
    [(None, "BFloat16", "BFloat16"), ("cuda", "BFloat16", "float"), ("cpu", "float", "BFloat16")],
)
def test_a_models_own_autocast_is_that_of_the_simulated_device(
    device: str | None, on_gpu: str, on_cpu: str, gpu: bool
) -> None:
    usual = torch.autocast.__init__, torch.autocast.__enter__, torch.autocast.__exit__
    expected, works = on_gpu if gpu else on_cpu, StepWorks(own(Casting(device), 64), "train", gpu=gpu)
    step = works.at("fp32")
    products = [op.dtypes.split()[-1] for op in step.ops if op.op == "aten::addmm"]
    assert products == [expected, expected, "float"][-len(products) :]
    assert step.own_precision == ("bf16" if expected == "BFloat16" else "fp32")
    asked = [op.dtypes.split()[-1] for op in works.at("bf16").ops if op.op == "aten::addmm"]
    assert asked[-1] == ("float" if device is None or expected == "BFloat16" else "BFloat16")
    assert (torch.autocast.__init__, torch.autocast.__enter__, torch.autocast.__exit__) == usual


@pytest.mark.parametrize(("gpu", "dtype"), [(True, "Half"), (False, "BFloat16")])
def test_autocast_without_a_type_has_the_devices(gpu: bool, dtype: str) -> None:
    step = StepWorks(own(Casting(None, dtype=None), 64), "infer", gpu=gpu).at("fp32")
    assert any(dtype in op.dtypes.split() for op in step.ops if op.op == "aten::addmm")


class Product(nn.Module):
    """A product of fp32 with what a layer gives, in bf16 under autocast, by an op that promotes or casts both."""

    def __init__(self, op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.op = nn.Linear(8, 8), op

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.op(self.layer(x), x)


@pytest.mark.parametrize(
    "op",
    [
        lambda y, x: torch.dot(y[0], x[0]),
        lambda y, x: torch.tensordot(y, x, dims=2),
        lambda y, x: torch.linalg.multi_dot([y, x, y]),
        lambda y, x: x[None].baddbmm(y[None], x[None]),
        torch.linalg.vecdot,
        lambda y, x: x[0].addmv(y, x[0]),
    ],
)
def test_autocast_knows_what_promotes(op: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    assert simulate(own(Product(op), 8), "infer", "bf16").peak_bytes > 0


IN_FP32 = [
    lambda x: F.rms_norm(x, (8,)),
    lambda x: F.interpolate(x, scale_factor=2),
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    lambda x: F.interpolate(x, size=4, mode="area"),
    F.normalize,
    F.gumbel_softmax,
    lambda x: F.triplet_margin_loss(x, x, x),
    lambda x: torch.cdist(x, x),
    lambda x: x.logsumexp(-1),
    lambda x: 2**x,
    lambda x: 1 / x,
    lambda x: torch.log1p(x).square(),
    torch.linalg.vector_norm,
    lambda x: F.bilinear(x, x, x.float().view(16, 8, 8)),
    F.gelu,
]


@pytest.mark.parametrize("op", IN_FP32)
def test_autocast_gives_the_types_that_cudas_gives(op: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Torch's own autocast, of tensors that have no data and are told to be CUDA's."""
    on_gpu = AsOnGPU()
    with torch.device("meta"), on_gpu, on_gpu.autocast(torch.bfloat16):
        found = op(torch.empty(2, 8, 8, 8, dtype=torch.bfloat16))
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        with FakeTensorMode():
            expected = op(torch.empty(2, 8, 8, 8, dtype=torch.bfloat16, device="cuda"))
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)


def test_a_precision_that_a_model_cannot_have_costs_its_rows_alone() -> None:
    sheet = cost_sheet(own(Product(lambda y, x: torch.fft.irfft(torch.fft.rfft(y)) + x), 8))
    assert {row.precision for row in sheet.memory} == {"fp32"}
    assert sheet.notes[0].startswith("bf16 is not possible: ")


def test_a_transformer_with_a_padding_mask_is_inferred_op_by_op() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(16, 16)
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)[:, None, :].expand(-1, 5, -1)
            result: torch.Tensor = self.encoder(y, src_key_padding_mask=y[..., 0] > 0)
            return result

    assert simulate(own(Padded(), 8), "infer").total.mac > 8 * 5 * 16 * 16
    assert torch.backends.mha.get_fastpath_enabled()


def test_weights_that_a_graph_holds_are_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["import torch", "def make():", "    layer = torch.nn.utils.weight_norm(torch.nn.Linear(4, 3))"]
    (tmp_path / "normed.py").write_text("\n".join([*lines, "    return layer, torch.randn(8, 4)"]))
    monkeypatch.syspath_prepend(tmp_path)
    assert cost_of_target("normed:make").parameters == 3 + 12 + 3


def test_a_model_that_casts_has_one_precision_in_its_cost() -> None:
    sheet = cost_sheet(own(Casting(None), 64))
    assert {row.precision for row in sheet.memory} == {"own"}
    assert list(sheet.infer_peak) == ["own"]
    with torch.autocast("cpu"):
        assert torch.is_autocast_enabled("cpu"), "as torch has it, after simulated steps"


def test_a_users_training_step_has_dropout_though_his_module_is_also_inferred() -> None:
    module = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 256))
    sheet = cost_sheet(own(module, 512))
    alone = Simulation(own(module, 512), "train").step("fp32")
    trained = next(row for row in sheet.memory if row.precision == "fp32")
    assert trained.activations == alone.activation_bytes
    assert alone.activation_bytes >= (4 + 4 + 1) * 512 * 1024, "outputs of ReLU and dropout, and a mask of bytes"


MEASURED = json.loads((Path(__file__).parents[1] / "results/benchmarks/h200-memory.json").read_text())["rows"]
CHECKED = ("acoustic_model", "deepq", "googlenet", "residual", "resnet-50", "speech", "text_cnn", "vgg")


@pytest.mark.parametrize("name", CHECKED)
def test_peaks_of_an_h200_are_predicted_within_a_tenth(name: str) -> None:
    workload, off = workload_class(name).configured("paper"), []
    for row in MEASURED:
        if row["name"] == name:
            step = Simulation(workload, row["phase"]).step(row["precision"], counted=False)
            error = (peak_bytes(workload, row["phase"], step) + row["data"]) / row["measured"] - 1
            if abs(error) > 0.1:
                off.append((row["phase"], row["precision"], round(error, 2)))
    assert off == ([("train", "bf16", -0.12)] if name == "text_cnn" else []), "its workspace is not predicted"


def convolved(channels: int, dtype: torch.dtype, last: bool, kernel: int) -> tuple[int, int, int]:
    """What a convolution to 16 channels takes beside its tensors, in forward and backward; and bytes of an image."""
    layer = nn.Conv2d(channels, 16, kernel, padding=kernel // 2, bias=False, device="meta", dtype=dtype)
    return *workspaces(layer, channels, dtype, last), 2 * 32 * 32 * dtype.itemsize


def workspaces(layer: nn.Module, channels: int, dtype: torch.dtype, last: bool) -> tuple[int, int]:
    """Of a convolution of two images, in forward and backward."""
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.empty(2, channels, 32, 32, device="meta", dtype=dtype, requires_grad=True)
    taken: list[int] = []

    def noted(op: object, args: tuple[object, ...], result: object) -> int:
        if "convolution" in str(op):
            taken.append(convolution_bytes(op, args, result))
        return 0

    with LiveBytes(temporary=noted):
        layer.to(memory_format=layout)(x.to(memory_format=layout)).sum().backward()  # type: ignore[call-overload]
    forward, backward = taken
    return forward, backward


@pytest.mark.parametrize(
    ("channels", "dtype", "last", "kernel", "forward", "backward"),
    [
        (16, torch.float32, True, 1, 32, 32),  # copies of input and output, as kernels of fp32 read channels first
        (16, torch.float32, True, 3, 32, 32 + 3 * 32),  # and transformed tiles
        (16, torch.bfloat16, True, 3, 0, 0),  # in the layout of its kernels
        (16, torch.bfloat16, False, 3, 32, 32),
        (3, torch.bfloat16, True, 3, 8, 8),  # padded to eight channels
        (3, torch.bfloat16, False, 3, 8 + 16, 8 + 16),
    ],
)
def test_a_convolution_takes_copies_where_the_layout_is_not_that_of_its_kernels(
    channels: int, dtype: torch.dtype, last: bool, kernel: int, forward: int, backward: int
) -> None:
    found = convolved(channels, dtype, last, kernel)
    copied = forward > 8  # weights too
    weights = 16 * channels * kernel**2 * dtype.itemsize if copied else 0
    assert found[:2] == (forward * found[2] + weights, backward * found[2] + weights)


def test_a_depthwise_convolution_takes_nothing_and_a_transposed_one_to_one_channel_is_none() -> None:
    how: dict[str, Any] = {"padding": 1, "bias": False, "device": "meta", "dtype": torch.bfloat16}
    assert workspaces(nn.Conv2d(16, 16, 3, groups=16, **how), 16, torch.bfloat16, last=False) == (0, 0)
    image, weights = 2 * 2 * 32 * 32, 2 * 16 * 9
    copies = 16 * image + image + weights
    transposed = nn.ConvTranspose2d(16, 1, 3, **how)
    assert workspaces(transposed, 16, torch.bfloat16, last=False) == (copies, copies)


def test_what_an_op_takes_and_gives_back_is_in_the_peak_alone() -> None:
    with LiveBytes(temporary=lambda op, args, result: 100 * BLOCK) as live:
        kept = torch.empty(1000, device="meta")
    assert (live.live, live.peak) == (8 * BLOCK, 108 * BLOCK)
    assert kept.numel() == 1000


def test_in_inference_autocast_keeps_no_copies_of_weights() -> None:
    layers = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(4)))
    trained, inferred = (simulate(own(layers, 8), phase, "bf16") for phase in ("train", "infer"))
    assert inferred.peak_bytes == pytest.approx(4 * 4 * 512**2 + 2 * 512**2, rel=0.05), "one at a time"
    assert trained.activation_bytes == pytest.approx(3 * 2 * 512**2, rel=0.05), "those that the backward pass reads"


def test_a_storage_counts_once_in_blocks_until_its_last_view_is_gone() -> None:
    with LiveBytes() as live:
        first = torch.empty(1000, device="meta")
        assert live.live == 8 * BLOCK
        view = first.view(10, 100)[2:]
        assert live.live == 8 * BLOCK
        del first
        assert live.live == 8 * BLOCK
        other = view + 1
        del view
        assert live.live == 7 * BLOCK == held_bytes([other, other[1:]])
        assert live.peak == 15 * BLOCK
        live.restart_peak()
        assert live.peak == live.live
        other.add_(1)
        assert live.peak == live.live


ROWS = torch.arange(0, 64, 8)
CHOICES: dict[str, Callable[[Tensor], Tensor]] = {
    "index": lambda x: x[ROWS.to(x.device)],
    "index_select": lambda x: x.index_select(0, ROWS.to(x.device)),
    "gather": lambda x: x.gather(0, ROWS.to(x.device)[:, None].expand(8, 64)),
    "take": lambda x: x.take(ROWS.to(x.device)),
    "max": lambda x: x.max(1).values,
    "topk": lambda x: x.topk(2).values,
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_gradient_of_what_was_chosen_is_there_once(name: str) -> None:
    """As torch has it where nobody watches: it adds to zeros in place."""
    gradients = {}
    for watched in (False, True):
        x = torch.rand(64, 64, generator=torch.Generator().manual_seed(3)).requires_grad_()
        with LiveBytes() if watched else nullcontext() as live:
            CHOICES[name](x).square().sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        gradients[watched] = x.grad.tolist()
    assert gradients[True] == gradients[False]
    assert live is not None
    assert x.nbytes <= live.peak <= 1.6 * x.nbytes


def test_a_copy_of_zeros_that_a_model_makes_itself_is_counted() -> None:
    zeros, rows = torch.zeros(64, 64, device="meta"), ROWS.to("meta")
    with LiveBytes() as live:
        live.hold([zeros])
        changed = zeros.index_put((rows,), torch.ones(8, 64, device="meta"), accumulate=True)
    assert live.live >= zeros.nbytes + changed.nbytes


def test_no_step_leaves_anything_behind() -> None:
    simulation = Simulation(workload_class("residual").configured("tiny"), "train")
    assert simulation.step() == simulation.step()
    assert all(weight.grad is None for weight in simulation.model.parameters())


def test_costs_grow_with_the_batch_and_counts_per_item_do_not() -> None:
    simulation = Simulation(workload_class("googlenet").configured("tiny"), "train")
    two, four = (simulation.step(items=items) for items in (2, 4))
    assert four.work[FORWARD].mac == 2 * two.work[FORWARD].mac
    assert two.peak_bytes < four.peak_bytes < 2 * two.peak_bytes


def test_a_decoder_runs_to_its_full_length() -> None:
    """Whether all sentences have ended is not known without data."""
    short, long = (
        simulate(workload_class("seq2seq").configured("tiny", target_length=length), "infer") for length in (16, 32)
    )
    assert long.work[FORWARD].mac > 1.7 * short.work[FORWARD].mac


def test_deepqs_memory_includes_its_replay_buffer() -> None:
    workload = workload_class("deepq").configured("paper")
    sheet = cost_sheet(workload)
    assert sheet.kept_bytes == 1_000_000 * (84 * 84 + 20) + 4 * 1_686_180
    assert all(row.peak > sheet.kept_bytes for row in sheet.memory)
    assert max(sheet.infer_peak.values()) < 100 * MIB


@pytest.mark.parametrize(
    ("peak", "limit", "largest"),
    [
        (lambda items: 100 + 7 * items, 100 + 7 * 61 + 3, 61),
        (lambda items: 100 + 7 * items, 106, 0),
        (lambda items: 100 + 7 * items, 107, 1),
        (lambda items: 5, 5, MOST_ITEMS),
        (lambda items: max(1000, 3 * items**2), 3 * 1234**2, 1234),  # bent
        (lambda items: 1000 * -(-items // 32), 7999, 7 * 32),  # in steps
    ],
)
@pytest.mark.parametrize("start", [1, 8, 256, 4000])
def test_the_largest_batch_is_found(peak: Callable[[int], int], limit: int, largest: int, start: int) -> None:
    found = largest_batch(peak, limit, start)
    assert found == largest
    assert found == 0 or peak(found) <= limit


def test_the_largest_batch_of_a_workload_fits_and_the_next_does_not() -> None:
    workload, limit = workload_class("text_cnn").configured("small"), 100 * MIB
    sheet = cost_sheet(workload, limit)
    for phase in ("train", "infer"):
        items, simulation = sheet.largest[phase, "fp32"], Simulation(workload, phase)
        peaks = [simulation.step(items=each).step_peak_bytes + workspace_bytes(phase) for each in (items, items + 1)]
        assert peaks[0] <= limit < peaks[1]


def test_other_optimizers_keep_their_state() -> None:
    rows = {
        (row.precision, row.optimizer): row for row in cost_sheet(workload_class("vgg-16").configured("tiny")).memory
    }
    sgd, momentum, adam = (rows["fp32", name] for name in ("sgd", "sgd with momentum", "adam"))
    assert (sgd.state, momentum.state, adam.state) == (0, sgd.gradients, 2 * sgd.gradients)
    assert sgd.peak < momentum.peak < adam.peak
    assert rows["fp32", "its own (SGD)"].peak == momentum.peak, "its own is SGD with momentum"
