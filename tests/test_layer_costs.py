"""FLOP, bytes and parameters of every layer type beside a hand count; memory of a few of them by hand, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathom.engine.op_calls import call_of
from fathom.engine.simulate import Simulation, simulate
from fathom.measure.own.model import OwnModel
from fathom.trace.flops import cost
from fathom.trace.step_work import BACKWARD, FORWARD

B, T, C, H = 4, 6, 8, 16  # items, time, channels, hidden


class Layer(NamedTuple):
    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    forward_mac: float  # of the batch
    backward_mac: float  # the gradient of the weights, and of the input where it is asked for
    parameters: int


def image(side: int = 10, channels: int = C) -> Callable[[], Tensor]:
    return lambda: torch.empty(B, channels, side, side, requires_grad=True)


def sequence() -> Tensor:
    return torch.empty(B, T, C, requires_grad=True)


class Attention(nn.Module):
    """Two heads, by torch's function."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x.view(B, T, 2, C // 2).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(heads, heads, heads)


class Experts(nn.Module):
    """Two of them, each with a part of the rows: one product of groups, in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2, C, H))

    def forward(self, x: Tensor) -> Tensor:
        ends = torch.empty(2, dtype=torch.int32)
        return nn.functional.grouped_mm(x.flatten(0, 1), self.weight, offs=ends)


class Heads(nn.Module):
    def forward(self, heads: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(heads, heads, heads)


CONV = B * 10 * 10 * H * C * 9
LSTM = B * T * 4 * H * (C + H)
LAYERS = [
    Layer("linear", lambda: nn.Linear(C, H), sequence, B * T * C * H, 2 * B * T * C * H, C * H + H),
    Layer("conv", lambda: nn.Conv2d(C, H, 3, padding=1), image(), CONV, 2 * CONV, H * C * 9 + H),
    Layer(
        "grouped", lambda: nn.Conv2d(C, H, 3, padding=1, groups=4), image(), CONV / 4, 2 * CONV / 4, H * C // 4 * 9 + H
    ),
    Layer(
        "depthwise", lambda: nn.Conv2d(C, C, 3, padding=1, groups=C), image(), B * 100 * C * 9, 2 * B * 100 * C * 9, 80
    ),
    Layer("strided", lambda: nn.Conv2d(C, H, 3, 2, 1), image(), CONV / 4, 2 * CONV / 4, H * C * 9 + H),
    Layer("conv1d", lambda: nn.Conv1d(T, H, 3), sequence, B * 6 * H * T * 3, 2 * B * 6 * H * T * 3, H * T * 3 + H),
    # every input element times a window
    Layer(
        "transposed",
        lambda: nn.ConvTranspose2d(C, H, 2, 2),
        image(),
        B * 100 * C * H * 4,
        2 * B * 100 * C * H * 4,
        C * H * 4 + H,
    ),
    # a bias of the input and one of the state
    Layer("lstm", lambda: nn.LSTM(C, H, batch_first=True), sequence, LSTM, 2 * LSTM, 4 * H * (C + H + 2)),
    Layer("gru", lambda: nn.GRU(C, H, batch_first=True), sequence, LSTM * 3 / 4, LSTM * 3 / 2, 3 * H * (C + H + 2)),
    Layer("rnn", lambda: nn.RNN(C, H, batch_first=True), sequence, LSTM / 4, LSTM / 2, H * (C + H + 2)),
    Layer(
        "both ways",
        lambda: nn.LSTM(C, H, batch_first=True, bidirectional=True),
        sequence,
        2 * LSTM,
        4 * LSTM,
        8 * H * (C + H + 2),
    ),
    # backward makes the scores again: five products for two
    Layer("attention", Attention, sequence, 2 * B * T * T * C, 5 * B * T * T * C, 0),
    Layer("experts", Experts, sequence, B * T * C * H, 2 * B * T * C * H, 2 * C * H),
    Layer("batch norm", lambda: nn.BatchNorm2d(C), image(), 0, 0, 2 * C),
    Layer("layer norm", lambda: nn.LayerNorm(C), sequence, 0, 0, 2 * C),
    Layer("max pool", lambda: nn.MaxPool2d(2), image(), 0, 0, 0),
    Layer("mean pool", lambda: nn.AvgPool2d(2), image(), 0, 0, 0),
]


def own(make: Callable[[], nn.Module], inputs: Callable[[], Tensor]) -> OwnModel:
    with torch.device("meta"):
        return OwnModel(module=make(), inputs=inputs(), batch=B)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_a_layer_costs_what_a_hand_count_says(layer: Layer) -> None:
    workload = own(layer.make, layer.inputs)
    if not layer.parameters:
        workload.module.register_parameter("unused", nn.Parameter(torch.empty(0, device="meta")))
    step = simulate(workload, "train")
    assert step.parameters == layer.parameters
    assert step.work[FORWARD].mac == pytest.approx(layer.forward_mac, rel=0.01)
    assert step.work[BACKWARD].mac == pytest.approx(layer.backward_mac, rel=0.01)
    assert step.work[FORWARD].flop >= 2 * step.work[FORWARD].mac
    assert step.work[FORWARD].bytes > 0
    assert not step.uncounted


def test_an_embedding_moves_rows_and_multiplies_nothing() -> None:
    workload = own(lambda: nn.Embedding(1000, C), lambda: torch.empty(B, T, dtype=torch.int64))
    step = simulate(workload, "infer")
    assert step.parameters == 1000 * C
    assert step.total.mac == 0
    assert step.total.bytes == B * T * (8 + 2 * 4 * C), "the indices, and each row read and written"


def test_a_linear_layer_moves_its_operands_once() -> None:
    """Input, weight, bias and output."""
    step = simulate(own(lambda: nn.Linear(C, H), sequence), "infer")
    assert step.total.bytes == 4 * (B * T * C + C * H + H + B * T * H)


def test_attention_keeps_no_scores() -> None:
    """Half precision: query, key and value once, the result, and a number a row."""
    length, width = 2048, 64
    kept = {}
    for dtype in (torch.bfloat16, torch.float32):
        with torch.device("meta"):
            x = torch.empty(B, 2, length, width, dtype=dtype, requires_grad=True)
            module = Heads()
        module.register_parameter("unused", nn.Parameter(torch.empty(0, device="meta")))
        step = simulate(OwnModel(module=module, inputs=x, batch=B), "train")
        kept[dtype] = step.activation_bytes
        assert step.work[BACKWARD].mac == 2.5 * step.work[FORWARD].mac == 2.5 * 2 * B * 2 * length**2 * width
    elements, scores = B * 2 * length * width, B * 2 * length**2
    assert kept[torch.bfloat16] == pytest.approx(2 * elements + 4 * B * 2 * length, rel=0.05)
    assert kept[torch.float32] < scores, "the scores alone would have four times as many bytes"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_encoder_layer_keeps_no_scores_either(precision: str) -> None:
    """torch's own multi-head attention, in a layer of a transformer."""
    length, width = 1024, 64
    module = nn.TransformerEncoderLayer(width, 2, 2 * width, batch_first=True)
    workload = own(lambda: module.to("meta"), lambda: torch.empty(B, length, width))
    step = simulate(workload, "train", precision)
    products = B * length * (4 * width**2 + 2 * length * width + 4 * width**2)
    assert step.work[FORWARD].mac == products
    assert step.activation_bytes < 4 * B * 2 * length**2, "the scores alone would have as many bytes"
    assert not step.uncounted


def test_an_op_of_the_users_own_is_named_as_not_counted() -> None:
    @torch.library.custom_op("fathom_test::doubled", mutates_args=())
    def doubled(x: Tensor) -> Tensor:
        return 2 * x

    doubled.register_fake(torch.empty_like)

    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = doubled(x)
            return result

    assert simulate(own(Doubled, sequence), "infer").uncounted == {"fathom_test::doubled": 1}


@pytest.mark.parametrize("gpu", [True, False])
def test_a_learned_bias_of_scores_is_counted_on_every_device(gpu: bool) -> None:
    """As Swin's; a CPU's flash attention has no gradient of it."""

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.empty(1, 2, T, T))

        def forward(self, x: Tensor) -> Tensor:
            heads = x.view(B, T, 2, C // 2).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(heads, heads, heads, self.bias)

    step = Simulation(own(Biased, sequence), "train", gpu=gpu).step()
    assert step.work[FORWARD].mac == 2 * B * T * T * C
    assert step.work[BACKWARD].mac == (5 if gpu else 4) * B * T * T * C, "kept scores are not made again"


@pytest.mark.parametrize("gpu", [True, False])
def test_normalised_channels_of_a_transposed_sequence_are_copied(gpu: bool) -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(C, C), nn.BatchNorm1d(C), nn.Linear(C, C)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.first(x).transpose(1, 2)).transpose(1, 2)
            result: Tensor = self.last(y) * y
            return result

    workload = own(Normalised, lambda: torch.empty(B, 1024, C))
    kept = Simulation(workload, "train", gpu=gpu).step().activation_bytes
    kinds = 4  # what is normalised, its result, that in rows of channels for the last layer, and what this one gives
    assert kept == pytest.approx(kinds * 4 * B * 1024 * C, abs=4096)


@pytest.mark.parametrize("both_masks", [False, True])
def test_attention_with_two_masks_keeps_their_sum(both_masks: bool) -> None:
    """torch's own multi-head attention: of a mask of places and one of padding it makes one for each item and head."""
    length, width = 256, 16

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(width, 2, kdim=C, vdim=C, batch_first=True)
            self.register_buffer("mask", torch.empty(length, length))

        def forward(self, x: Tensor, y: Tensor, padding: Tensor) -> Tensor:
            masks = {"attn_mask": self.mask, "key_padding_mask": padding} if both_masks else {}
            output: Tensor = self.layer(x, y, y, need_weights=False, **masks)[0]
            return output

    with torch.device("meta"):
        inputs = (torch.empty(B, length, width), torch.empty(B, length, C), torch.empty(B, length))
        step = simulate(OwnModel(module=Masked(), inputs=inputs, batch=B), "train")
    scores = 4 * B * 2 * length**2
    assert not step.uncounted
    assert scores * both_masks <= step.activation_bytes < scores * (0.5 + both_masks), "no scores beside"


def test_what_an_op_is_made_of_is_seen_in_inference_mode_too() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(C, C)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.mse_loss(self.layer(x), x) + nn.functional.triplet_margin_loss(x, x + 1, x - 1)

    step = simulate(own(Loss, lambda: torch.empty(B, 1 << 16, C)), "infer")
    assert step.peak_bytes > 4 * 4 * (B << 16) * C, "the batch, a layer, and differences inside of a loss"


def test_packed_sequences_cost_what_their_rows_do() -> None:
    lengths = [6, 5, 3, 1]

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(C, H)

        def forward(self, x: Tensor) -> Tensor:
            packed = nn.utils.rnn.PackedSequence(x, torch.tensor([4, 3, 3, 2, 2, 1], device="cpu"))
            output: Tensor = self.layer(packed)[0].data
            return output

    step = simulate(own(Packed, lambda: torch.empty(sum(lengths), C)), "train")
    assert step.work[FORWARD].mac == sum(lengths) * 3 * H * (C + H)


def test_pooling_keeps_the_places_of_its_maxima_for_backward() -> None:
    """An int64 for each of the results, which themselves nobody needs again; the input is the batch."""
    workload = own(lambda: nn.MaxPool2d(2), image(side=64))
    workload.module.register_parameter("unused", nn.Parameter(torch.empty(0, device="meta")))
    results = B * C * 32 * 32
    assert simulate(workload, "train").activation_bytes == pytest.approx(results * 8, abs=2048)


def test_dropout_keeps_a_byte_an_element() -> None:
    workload = own(lambda: nn.Sequential(nn.Linear(C, C), nn.Dropout(0.5)), lambda: torch.empty(B, 1024, C))
    elements = B * 1024 * C
    kept = simulate(workload, "train").activation_bytes
    assert kept == pytest.approx(elements, abs=2048), "its mask: what it gets and gives, a mean does not need again"


TABLE, ROWS = (torch.empty(1000, 16, device="meta"), torch.empty(5, dtype=torch.int64, device="meta"))
INDEX, PUT, PUT_INTO = torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default, torch.ops.aten.index_put_.default
INDEXED: list[tuple[Any, tuple[Any, ...], float | None, float | None]] = [
    # 5 rows of 16; 5 of 16 columns; 5 elements, by two indices that are broadcast
    (INDEX, (TABLE, [ROWS]), 0, 8 * 5 + 4 * 2 * 80),
    (INDEX, (TABLE, [None, ROWS]), 0, 8 * 5 + 4 * 2 * 5000),
    (INDEX, (TABLE, [ROWS[:, None], ROWS[:1]]), 0, 8 * 6 + 4 * 2 * 5),
    # in place they are written, and read where they are added to; otherwise the whole table is
    (PUT_INTO, (TABLE, [ROWS], TABLE[:5]), 0, 8 * 5 + 4 * 2 * 80),
    (PUT_INTO, (TABLE, [ROWS], TABLE[:5], True), 80, 8 * 5 + 4 * 3 * 80),
    (PUT, (TABLE, [ROWS], torch.empty((), device="meta")), 0, 8 * 5 + 4 * (1 + 2 * 16000)),
    # how much a mask chooses is in its values
    (INDEX, (TABLE, [TABLE > 0]), 0, None),
    (PUT_INTO, (TABLE, [TABLE > 0], torch.empty((), device="meta"), True), None, None),
]


@pytest.mark.parametrize(("op", "args", "done", "moved"), INDEXED)
def test_indices_are_known_where_a_step_is_simulated(
    op: Any, args: tuple[Any, ...], done: float | None, moved: float | None
) -> None:
    assert cost(call_of(op, args, {})) == (done, moved)


FORMERLY_UNCOUNTED: list[tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = [
    *((make, sequence) for make in (nn.PReLU, nn.RReLU, nn.LogSigmoid)),
    *((pad, sequence) for pad in (partial(nn.ReflectionPad1d, 1), partial(nn.ReplicationPad1d, 1))),
    *((pad, image()) for pad in (partial(nn.ReflectionPad2d, 1), partial(nn.ReplicationPad2d, 1))),
    *((pool, image()) for pool in (partial(nn.AdaptiveMaxPool2d, 5), partial(nn.FractionalMaxPool2d, 2, 5))),
    (partial(nn.AdaptiveMaxPool1d, 3), sequence),
]


@pytest.mark.parametrize(("make", "inputs"), FORMERLY_UNCOUNTED)
def test_rare_layers_of_torch_have_formulas_forward_and_backward(
    make: Callable[[], nn.Module], inputs: Callable[[], Tensor]
) -> None:
    workload = own(make, inputs)
    workload.module.register_parameter("unused", nn.Parameter(torch.empty(0, device="meta")))
    step = simulate(workload, "train")
    assert not step.uncounted
    assert step.work[BACKWARD].flop > 0


def test_a_bilinear_layer_is_two_products() -> None:
    """x A y for each of the results; the gradients of x, A and y are two products each."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Bilinear(C, C, H, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layer(x, x)
            return result

    step = simulate(own(Twice, lambda: torch.empty(B, C, requires_grad=True)), "train")
    whole, row, matrix = B * H * C * C, B * H * C, B * C * C
    assert step.work[FORWARD].mac == whole + row
    assert step.work[BACKWARD].mac == (whole + matrix) + (row + whole) + (whole + row)


class Loss(nn.Module):
    """Of what a layer gives; the target is the second of its inputs."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(C, C), function

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return self.function(self.layer(x), target)


def ctc_loss(scores: Tensor, target: Tensor) -> Tensor:
    return torch.ctc_loss(scores.log_softmax(-1).transpose(0, 1), target, [T] * B, [2] * B)


LOSSES: list[tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...], torch.dtype]] = [
    (F.soft_margin_loss, (B, C), (B, C), torch.float32),
    (F.multi_margin_loss, (B, C), (B,), torch.int64),
    (F.multilabel_margin_loss, (B, C), (B, C), torch.int64),
    (ctc_loss, (B, T, C), (B, 2), torch.int64),  # with lengths as lists
    (lambda x, target: F.gaussian_nll_loss(x, target, x.exp()), (B, C), (B, C), torch.float32),  # asks for a value
]


@pytest.mark.parametrize(("function", "shape", "target", "dtype"), LOSSES)
def test_losses_that_the_meta_device_lacks_are_counted(
    function: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...], target: tuple[int, ...], dtype: torch.dtype
) -> None:
    with torch.device("meta"):
        inputs = torch.empty(shape), torch.empty(target, dtype=dtype)
        step = simulate(OwnModel(module=Loss(function), inputs=inputs, batch=B), "train")
    assert not step.uncounted
    assert not step.branches
