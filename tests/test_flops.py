"""FLOP and bytes of single ops in real traces against counts by hand; and the measured peaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.profiler import ProfilerActivity, profile
from trace_events import event
from traced_calls import f32, trace_args

from fathom.core.record import OpRow
from fathom.machine import peaks
from fathom.measure.convolution import split_convolution_backward
from fathom.trace import walk
from fathom.trace.convolution import split_backward
from fathom.trace.event import OpArgs
from fathom.trace.flops import RULES, TracedCall, bytes_moved, flop
from fathom.trace.reader import read

Rows = Callable[[Callable[[], object]], list[OpRow]]


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    """Runs a function under the profiler and returns its op rows, with convolution backward split in two."""

    def run(work: Callable[[], object]) -> list[OpRow]:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
            work()
        recorder.export_chrome_trace(str(tmp_path / "t.json"))
        found = walk.breakdown(read(tmp_path / "t.json").events)
        split_backward(found)
        return found.rows()

    return run


def flop_by_type(found: list[OpRow], group: str) -> dict[str, float | None]:
    return {row.type: row.flop for row in found if row.group == group}


def bytes_of(found: list[OpRow], op: str) -> float | None:
    (row,) = (row for row in found if row.op == f"aten::{op}")
    return row.bytes


# FLOP of the forward: 2 x outputs x window x channels per group, of transposed ones 2 x inputs x the same
CONVOLUTIONS: dict[str, tuple[nn.Module, list[int], int]] = {
    "1d": (nn.Conv1d(4, 6, 3), [2, 4, 8], 2 * (2 * 6 * 6) * (4 * 3)),
    "1d without a batch": (nn.Conv1d(4, 6, 3), [4, 8], 2 * (6 * 6) * (4 * 3)),
    "1d strided": (nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2), [2, 4, 9], 2 * (2 * 6 * 4) * (4 * 3)),
    "2d grouped": (nn.Conv2d(4, 6, 3, groups=2), [2, 4, 8, 8], 2 * (2 * 6 * 6 * 6) * (2 * 9)),
    "2d same": (nn.Conv2d(4, 6, 3, padding="same"), [2, 4, 8, 8], 2 * (2 * 6 * 8 * 8) * (4 * 9)),
    "2d same, dilated": (nn.Conv2d(4, 6, 3, padding="same", dilation=2), [2, 4, 8, 7], 2 * (2 * 6 * 8 * 7) * (4 * 9)),
    "2d valid, strided": (nn.Conv2d(4, 6, 3, 2, padding="valid"), [2, 4, 9, 9], 2 * (2 * 6 * 4 * 4) * (4 * 9)),
    "3d": (nn.Conv3d(4, 6, 3), [2, 4, 5, 6, 7], 2 * (2 * 6 * 3 * 4 * 5) * (4 * 27)),
    "3d grouped": (nn.Conv3d(4, 6, 3, groups=2), [2, 4, 5, 6, 7], 2 * (2 * 6 * 3 * 4 * 5) * (2 * 27)),
    "transposed 1d": (nn.ConvTranspose1d(4, 6, 3, stride=2), [2, 4, 8], 2 * (2 * 4 * 8) * (6 * 3)),
    "transposed 2d": (nn.ConvTranspose2d(4, 6, 4, 2, 1), [2, 4, 8, 8], 2 * (2 * 4 * 8 * 8) * (6 * 16)),
    "transposed 2d grouped": (
        nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2),
        [2, 4, 8, 8],
        2 * (2 * 4 * 8 * 8) * (3 * 9),
    ),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_and_each_half_of_its_backward_count_the_same(rows: Rows, name: str) -> None:
    layer, sizes, by_hand = CONVOLUTIONS[name]
    x = torch.randn(sizes, requires_grad=True)
    found = rows(lambda: layer(x).sum().backward())
    assert flop_by_type(found, "D") == {
        "Conv2D": by_hand,
        "Conv2DBackFilter": by_hand,
        "Conv2DBackInput": by_hand,
    }


@pytest.mark.parametrize(
    ("layer", "sizes", "weights", "outputs"),
    [
        (nn.Conv1d(4, 6, 3, bias=False), [2, 4, 8], 6 * 4 * 3, 2 * 6 * 6),
        (nn.Conv3d(4, 6, 3, bias=False), [2, 4, 5, 6, 7], 6 * 4 * 27, 2 * 6 * 3 * 4 * 5),
        (nn.Conv2d(4, 6, 3, padding="same", bias=False), [2, 4, 8, 8], 6 * 4 * 9, 2 * 6 * 8 * 8),
        # (8 - 1) x 2 - 2 x 1 + 2 + 1 + 1 = 16 each way
        (
            nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1, groups=2, bias=False),
            [2, 4, 8, 8],
            4 * 3 * 9,
            2 * 6 * 16 * 16,
        ),
    ],
)
def test_a_convolution_moves_its_input_weights_and_output(
    rows: Rows, layer: nn.Module, sizes: list[int], weights: int, outputs: int
) -> None:
    x = torch.randn(sizes)
    assert layer(x).numel() == outputs
    (row,) = (row for row in rows(lambda: layer(x)) if row.type == "Conv2D" and row.shapes)
    assert row.bytes == 4 * (x.numel() + weights + outputs)


def weights_with_gradients() -> list[nn.Parameter]:
    """Thirty elements in two tensors."""
    weights = [nn.Parameter(torch.randn(10)), nn.Parameter(torch.randn(4, 5))]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return weights


@pytest.mark.parametrize(
    ("kind", "options", "each", "read", "written"),
    [
        # FLOP per element by hand; lists of weights read and written per element
        (SGD, {}, 2, 2, 1),  # w -= rate * g
        (SGD, {"weight_decay": 0.1}, 4, 2, 1),  # g += decay * w
        (SGD, {"momentum": 0.9}, 5, 3, 2),  # m = 0.9 * m + (1 - dampening) * g
        (SGD, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}, 9, 3, 2),  # g += 0.9 * m
        (Adam, {}, 13, 4, 3),  # mean 3, square 4, root 3, step 3
        (Adam, {"weight_decay": 0.1}, 15, 4, 3),
        (Adam, {"amsgrad": True}, 14, 5, 4),
        (AdamW, {"weight_decay": 0.1}, 14, 4, 3),
        (AdamW, {"weight_decay": 0.0}, 13, 4, 3),
        (Adagrad, {}, 7, 3, 2),  # square, add; root, add, divide, multiply, subtract
        (Adagrad, {"weight_decay": 0.1}, 9, 3, 2),
    ],
)
def test_a_fused_optimizers_arithmetic_is_counted_per_element(
    rows: Rows, kind: Callable[..., Optimizer], options: dict[str, float], each: int, read: int, written: int
) -> None:
    optimizer = kind(weights_with_gradients(), lr=0.1, fused=True, **options)
    optimizer.step()  # the first step makes the buffers
    (row,) = (row for row in rows(optimizer.step) if "_fused_" in row.op)
    step_numbers = 0 if kind is SGD else 2 * 4
    assert row.flop == 30 * each
    assert row.bytes == 4 * 30 * (read + written) + step_numbers
    assert row.group == "F"


def test_the_first_step_with_momentum_takes_the_gradient_as_it_is(rows: Rows) -> None:
    optimizer = SGD(weights_with_gradients(), lr=0.1, momentum=0.9, fused=True)
    (row,) = (row for row in rows(optimizer.step) if "_fused_" in row.op)
    assert row.flop == 30 * 2


def test_all_tensors_of_a_list_are_counted(rows: Rows) -> None:
    a, b = ([torch.ones(10), torch.ones(4, 5), torch.ones(30)] for _ in range(2))
    found = rows(lambda: (torch._foreach_add_(a, b), torch._foreach_sqrt(a), torch._foreach_mul(a, 2.0)))
    assert {row.op: (row.flop, row.bytes) for row in found if "_foreach_" in row.op} == {
        "aten::_foreach_add_": (60, 4 * (60 + 60 + 60)),
        "aten::_foreach_sqrt": (60, 4 * (60 + 60)),
        "aten::_foreach_mul": (60, 4 * (60 + 60)),
    }


def test_an_optimizer_that_goes_over_lists_counts_every_weight(rows: Rows) -> None:
    optimizer = SGD(weights_with_gradients(), lr=0.1, momentum=0.9, foreach=True)
    optimizer.step()
    found = rows(optimizer.step)
    # momentum x buffer; plus gradient; weight minus rate x buffer: three ops of one per element
    assert sum(row.flop or 0 for row in found if row.group == "F") == 3 * 30


TABLE, WIDE = 1000, 16  # rows, and elements of each
ROW = 4 * WIDE  # bytes


def test_a_look_up_moves_the_rows_it_touches(rows: Rows) -> None:
    table, index = torch.randn(TABLE, WIDE), torch.randint(0, WIDE, (3, 5))
    found = rows(
        lambda: (
            nn.functional.embedding(index, table),
            torch.index_select(table, 0, index[0]),
            torch.gather(table, 1, index),
            torch.take(table, index),
        )
    )
    assert bytes_of(found, "embedding") == 15 * 8 + 2 * 15 * ROW
    assert bytes_of(found, "index_select") == 5 * 8 + 2 * 5 * ROW
    assert bytes_of(found, "gather") == 15 * 8 + 2 * 15 * 4
    assert bytes_of(found, "take") == 15 * 8 + 2 * 15 * 4


def test_columns_looked_up_are_counted_along_all_rows(rows: Rows) -> None:
    table, index = torch.randn(TABLE, WIDE), torch.tensor([1, 2, 3])
    assert bytes_of(rows(lambda: table.index_select(-1, index)), "index_select") == 3 * 8 + 2 * TABLE * 3 * 4


def test_the_gradient_of_a_look_up_is_written_whole_and_reads_no_table(rows: Rows) -> None:
    table, index = torch.randn(TABLE, WIDE, requires_grad=True), torch.randint(0, WIDE, (3, 5))

    def backward_of(look_up: Callable[[], torch.Tensor]) -> list[OpRow]:
        return rows(lambda: look_up().square().sum().backward())  # type: ignore[no-untyped-call]

    found = backward_of(lambda: nn.functional.embedding(index, table))
    assert bytes_of(found, "embedding_backward") == 15 * ROW + 15 * 8 + TABLE * ROW
    found = backward_of(lambda: torch.index_select(table, 0, index[0]))
    assert bytes_of(found, "index_select_backward") == 5 * ROW + 5 * 8 + TABLE * ROW
    found = backward_of(lambda: torch.gather(table, 1, index))
    assert bytes_of(found, "gather_backward") == 15 * 4 + 15 * 8 + TABLE * ROW


def test_a_sparse_gradient_of_an_embedding_has_a_row_for_each_index(rows: Rows) -> None:
    layer, index = nn.Embedding(TABLE, WIDE, sparse=True), torch.randint(0, TABLE, (3, 5))
    found = rows(lambda: layer(index).square().sum().backward())
    assert bytes_of(found, "embedding_backward") == 2 * 15 * ROW + 15 * 8


def test_an_index_whose_size_is_not_in_the_trace_leaves_the_bytes_not_known(rows: Rows) -> None:
    table, index = torch.randn(TABLE, WIDE), torch.tensor([1, 2, 3])
    assert bytes_of(rows(lambda: table[index]), "index") is None


def test_a_gradient_that_is_expanded_is_one_number_in_memory(rows: Rows) -> None:
    layer, index = nn.Embedding(TABLE, WIDE), torch.randint(0, TABLE, (3, 5))
    found = rows(lambda: layer(index).sum().backward())
    assert bytes_of(found, "embedding_backward") == 4 + 15 * 8 + TABLE * ROW


def test_a_reshape_that_copies_moves_what_it_copies(rows: Rows) -> None:
    x = torch.randn(4, 8)
    assert bytes_of(rows(lambda: x.reshape(-1)), "reshape") == 0
    assert bytes_of(rows(lambda: x.t().reshape(-1)), "reshape") == 2 * 32 * 4


BYTE, FLOAT, HALF = torch.ones(4, 8, dtype=torch.uint8), torch.ones(4, 8), torch.ones(4, 8, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("op", "work", "by_hand"),
    [
        ("div", lambda: BYTE / torch.tensor(2.0), 32 + 4 + 32 * 4),
        ("div", lambda: BYTE / 255.0, 32 + 8 + 32 * 4),  # the trace gives a Python number as a double
        ("div", lambda: BYTE / 2, 32 + 8 + 32 * 4),  # whole numbers divide into floats
        ("mul", lambda: BYTE * 2, 32 + 8 + 32),
        ("mul", lambda: BYTE * FLOAT, 32 + 32 * 4 + 32 * 4),
        ("add", lambda: HALF + FLOAT, 32 * 2 + 32 * 4 + 32 * 4),
        ("add", lambda: HALF + torch.tensor(1.0), 32 * 2 + 4 + 32 * 2),  # a lone number does not widen
        ("add_", lambda: HALF.clone().add_(FLOAT), 32 * 2 + 32 * 4 + 32 * 2),
        ("gt", lambda: FLOAT.gt(0), 32 * 4 + 32),
        ("where", lambda: torch.where(FLOAT.bool(), FLOAT, FLOAT), 32 + 2 * 32 * 4 + 32 * 4),
        ("_to_copy", BYTE.float, 32 + 32 * 4),
        ("_to_copy", FLOAT.bfloat16, 32 * 4 + 32 * 2),
        ("softmax", lambda: HALF.softmax(1, dtype=torch.float32), 32 * 2 + 32 * 4),
        ("copy_", lambda: FLOAT.copy_(BYTE), 32 + 32 * 4),
        ("cat", lambda: torch.cat([torch.ones(2, 8), FLOAT, FLOAT]), 2 * (16 + 32 + 32) * 4),
        ("stack", lambda: torch.stack([FLOAT, FLOAT, FLOAT]), 2 * 3 * 32 * 4),
        ("transpose", lambda: FLOAT.transpose(0, 1), 0),
        ("view", lambda: FLOAT.view(-1), 0),
        ("empty", lambda: torch.empty(100), 0),
    ],
)
def test_the_output_is_counted_in_its_own_dtype(rows: Rows, op: str, work: Callable[[], object], by_hand: int) -> None:
    assert bytes_of(rows(work), op) == by_hand


@pytest.mark.parametrize(
    "op", ["conv2d", "convolution", "embedding", "index_select", "cat", "_fused_adam_", "mm", "div"]
)
def test_a_trace_without_shapes_leaves_the_count_not_known(op: str) -> None:
    assert bytes_moved(TracedCall.from_args(f"aten::{op}", OpArgs())) is None
    assert flop(TracedCall.from_args(f"aten::{op}", OpArgs())) == (
        0 if op in {"embedding", "index_select", "cat"} else None
    )


def test_a_look_up_without_its_dimension_is_not_known() -> None:
    dims, types = [[TABLE, WIDE], [], [5]], ["float", "Scalar", "long int"]
    call = TracedCall.from_args("aten::index_select", OpArgs.of({"Input Dims": dims, "Input type": types}))
    assert bytes_moved(call) is None


@pytest.mark.parametrize(("padding", "outputs"), [("same", 8 * 8), ("valid", 6 * 6)])
def test_padding_given_as_a_word_is_counted_by_what_it_came_to(rows: Rows, padding: str, outputs: int) -> None:
    layer, x = nn.Conv2d(4, 6, 3, padding=padding), torch.randn(2, 4, 8, 8)
    (row,) = (row for row in rows(lambda: layer(x)) if row.type == "Conv2D" and row.shapes)
    assert row.flop == 2 * (2 * 6 * outputs) * (4 * 9)


def test_calls_of_one_row_are_counted_each_by_its_own_arguments(rows: Rows) -> None:
    """Equal shapes, but another dimension is reduced, or another gradient asked for."""
    x = torch.randn(2, 30)
    (row,) = (row for row in rows(lambda: (x.sum(0), x.sum(1))) if row.op == "aten::sum")
    assert row.calls == 2
    assert row.flop == 2 * 60
    assert row.bytes == 4 * (60 + 30) + 4 * (60 + 2)


def test_calls_of_different_dtypes_are_different_rows(rows: Rows) -> None:
    a, b = torch.ones(4, 8), torch.ones(8, 4)
    found = rows(lambda: (a @ b, a.bfloat16() @ b.bfloat16()))
    moved = {row.dtypes: row.bytes for row in found if row.op == "aten::mm"}
    assert moved == {"float float": 4 * (32 + 32 + 16), "BFloat16 BFloat16": 2 * (32 + 32 + 16)}


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float64, 8)])
def test_tensors_in_a_list_have_the_dtype_of_the_trace(rows: Rows, dtype: torch.dtype, width: int) -> None:
    x = torch.ones(4, 8, dtype=dtype)
    assert bytes_of(rows(lambda: torch.cat([x + x, x])), "cat") == 2 * 64 * width


def test_tensors_in_a_list_of_a_mixed_trace_have_no_known_dtype(rows: Rows) -> None:
    x = torch.ones(4, 8)
    assert bytes_of(rows(lambda: torch.cat([(x + x).bfloat16(), x.bfloat16() * 2])), "cat") is None


def test_a_list_too_long_for_the_trace_is_not_known(rows: Rows) -> None:
    many = [torch.ones(3) for _ in range(31)]
    (row,) = (row for row in rows(lambda: torch._foreach_sqrt(many)) if "_foreach_" in row.op)
    assert (row.flop, row.bytes) == (None, None)


def test_a_sparse_product_is_not_known_and_never_dense(rows: Rows) -> None:
    sparse, dense = torch.eye(8).to_sparse_csr(), torch.ones(8, 4)
    found = rows(lambda: (torch.sparse.mm(sparse, dense), sparse @ dense))
    products = [row for row in found if row.type == "SparseMatMul"]
    assert products
    assert all(row.flop is None and row.bytes is None for row in products)


MALFORMED: list[Any] = [
    None,
    "text",
    7,
    {"a": 1},
    [],
    [None],
    ["x"],
    [[None]],
    [[[1], 2]],
    [[1.5]],
    [[True]],
    [[-1, 2]],
    [{}],
]


@pytest.mark.parametrize("entry", MALFORMED, ids=repr)
@pytest.mark.parametrize("field", ["Input Dims", "Input type", "Concrete Inputs", "Input Strides"])
def test_malformed_arguments_of_a_foreign_trace_are_not_known_and_never_an_error(field: str, entry: object) -> None:
    """Every op with a rule, once with nothing else and once with the rest of the arguments of a real call."""
    for name in RULES:
        for rest in ({}, trace_args("mm", {"self": f32(2, 3), "mat2": f32(3, 5)})):
            call = TracedCall.from_args(f"aten::{name}", OpArgs.of({**rest, field: entry}))
            assert isinstance(flop(call), float | None)
            assert isinstance(bytes_moved(call), float | None)
            assert all(isinstance(shown, str) for shown in call.shown())


@pytest.mark.parametrize("entry", MALFORMED, ids=repr)
@pytest.mark.parametrize("field", ["Input Dims", "Input type", "Concrete Inputs", "Input Strides"])
def test_malformed_arguments_leave_rows_and_the_split_of_a_convolution(field: str, entry: object) -> None:
    given: dict[str, Any] = {
        "grad_output": f32(1, 2, 3, 3),
        "input": f32(1, 2, 3, 3),
        "weight": f32(2, 2, 1, 1),
        "bias_sizes": [2],
    }
    given |= {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": False, "output_padding": [0, 0]}
    args = trace_args("convolution_backward", {**given, "groups": 1, "output_mask": [True, True, True]})
    found = walk.breakdown([event("aten::convolution_backward", 0.0, 5.0, **{**args, field: entry})])
    split_convolution_backward(found, torch.device("cpu"))
    assert sum(row.cpu_s for row in found.rows()) == pytest.approx(5e-6)


def test_a_call_that_repeats_another_in_a_different_dtype_is_split_on_its_own() -> None:
    """The key of equal calls has the dtype: two dtypes are two measurements."""
    given: dict[str, Any] = {
        "grad_output": f32(1, 2, 3, 3),
        "input": f32(1, 2, 3, 3),
        "weight": f32(2, 2, 1, 1),
        "bias_sizes": None,
    }
    given |= {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": False, "output_padding": [0, 0]}
    args = trace_args("convolution_backward", {**given, "groups": 1, "output_mask": [True, True, False]})
    other = {**args, "Input type": [kind.replace("float", "c10::BFloat16") for kind in args["Input type"]]}
    events = [event("aten::convolution_backward", 10.0 * at, 5.0, **each) for at, each in enumerate((args, other))]
    found = walk.breakdown(events)
    (note,) = split_backward(found)
    assert "2 distinct calls" in note
    moved = {(row.type, row.dtypes.split()[0]): row.bytes for row in found.rows()}
    # 18 elements of the gradient, 18 of the input, 4 of the weight
    assert moved == {
        ("Conv2DBackFilter", "float"): 4 * (18 + 18 + 4),
        ("Conv2DBackInput", "float"): 4 * (18 + 4 + 18),
        ("Conv2DBackFilter", "BFloat16"): 2 * (18 + 18 + 4),
        ("Conv2DBackInput", "BFloat16"): 2 * (18 + 4 + 18),
    }


def test_the_matrix_grows_until_its_product_takes_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([0.0001, 0.002, 0.02, 0.016])  # of 128, 256 and 512 rows; then the best of 512
    monkeypatch.setattr(peaks, "fastest", lambda *_: next(taken))
    assert peaks._product(torch.device("cpu"), torch.float32) == 2 * 512**3 / 0.016


def test_the_matrix_grows_no_further_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "MAX_ROWS", 256)
    monkeypatch.setattr(peaks, "fastest", lambda *_: 0.001)
    assert peaks._product(torch.device("cpu"), torch.float32) == 2 * 256**3 / 0.001


def cache_of(folder: Path, level: int, shared: str, size: str) -> None:
    folder.mkdir(parents=True)
    for name, text in (("level", str(level)), ("shared_cpu_list", shared), ("size", size)):
        (folder / name).write_text(f"{text}\n")


def test_last_level_caches_of_the_usable_cores_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, shared in enumerate(["0-1", "0-1", "2-3", "2-3", "4-5"]):
        cache_of(tmp_path / f"cpu{number}" / "cache" / "index2", 2, str(number), "1024K")
        cache_of(tmp_path / f"cpu{number}" / "cache" / "index3", 3, shared, "32768K")
    monkeypatch.setattr(peaks, "affinity", lambda: [0, 1, 2, 3])
    assert peaks.last_level_cache_bytes(tmp_path) == 2 * 32 * 2**20
    assert peaks.last_level_cache_bytes(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("cache_mib", "free_mib", "by_hand"),
    [(32, 10**6, 64), (96, 10**6, 192), (1, 10**6, 64), (1152, 10**6, 1024), (None, 10**6, 128), (256, 1024, 128)],
)
def test_a_copy_is_past_the_cache_and_within_memory(
    monkeypatch: pytest.MonkeyPatch, cache_mib: int | None, free_mib: int, by_hand: int
) -> None:
    monkeypatch.setattr(peaks, "last_level_cache_bytes", lambda: cache_mib and cache_mib << 20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free_mib << 20))
    assert peaks._bytes_past_cache() == by_hand << 20


def test_casts_of_autocast_are_copies_and_products_have_the_dtype_they_compute_in(rows: Rows) -> None:
    bias, left, right = torch.randn(64), torch.randn(32, 128), torch.randn(128, 64)
    with torch.autocast("cpu", torch.bfloat16):
        found = rows(lambda: torch.addmm(bias, left, right))
    products = [row for row in found if row.type == "MatMul" and row.flop]
    assert [(row.dtypes.split()[0], row.flop) for row in products] == [("BFloat16", 2 * 32 * 64 * 128)]
    assert products[0].bytes == 2 * (64 + 32 * 128 + 128 * 64 + 32 * 64)
    copied = [row for row in found if row.type == "Copy"]
    assert sum(row.bytes or 0 for row in copied) == 6 * (64 + 32 * 128 + 128 * 64)


def test_max_pooling_in_training_writes_its_indices(rows: Rows) -> None:
    images = torch.randn(2, 8, 16, 16, requires_grad=True)
    assert bytes_of(rows(lambda: torch.max_pool2d(images, 2)), "max_pool2d") == 16384 + 4096 + 8192


def test_a_cast_in_an_update_moves_what_it_casts(rows: Rows) -> None:
    weight = nn.Parameter(torch.randn(64, 64))
    weight.grad = torch.randn(64, 64)
    optimizer = torch.optim.Muon([weight])
    casts = [row for row in rows(optimizer.step) if row.op == "aten::to" and row.bytes]
    assert sum(row.bytes or 0 for row in casts) >= 64 * 64 * 6


def test_gradients_that_are_set_to_zero_are_not_clipped(rows: Rows) -> None:
    weight = nn.Parameter(torch.randn(64, 64))
    weight.grad = torch.randn(64, 64)
    optimizer = SGD([weight], lr=0.1)
    assert {row.type for row in rows(lambda: optimizer.zero_grad(set_to_none=False))} == {"ApplySGD"}


def test_an_op_of_another_library_that_only_allocates_costs_what_nobody_knows(rows: Rows) -> None:
    @torch.library.custom_op("fathom_test::fused_gemm", mutates_args=())
    def fused_gemm(left: torch.Tensor) -> torch.Tensor:
        return torch.empty(4, 4)

    found = rows(lambda: fused_gemm(torch.randn(4, 4)))
    (row,) = (row for row in found if row.op == "fathom_test::fused_gemm")
    assert (row.type, row.flop, row.bytes) == ("MatMul", None, None)


@pytest.mark.parametrize(
    ("op", "work", "by_hand"),
    [
        ("max", lambda: torch.max(torch.ones(1, 4), torch.ones(400, 4)), (1600, 4 * (4 + 1600 + 1600))),
        (
            "repeat_interleave",
            lambda: torch.repeat_interleave(torch.tensor([1, 2, 3]), output_size=6),
            (0, 8 * (3 + 6)),
        ),
    ],
)
def test_operands_that_are_broadcast_and_places_to_repeat(
    rows: Rows, op: str, work: Callable[[], object], by_hand: tuple[int, int]
) -> None:
    (row,) = (row for row in rows(work) if row.op == f"aten::{op}")
    assert (row.flop or 0, row.bytes) == by_hand


@pytest.mark.parametrize(
    ("op", "view"),
    [
        ("_conj", lambda: torch.ones(4, dtype=torch.cfloat).conj()),
        ("_neg_view", lambda: torch._neg_view(torch.ones(4))),
    ],
)
def test_a_conjugate_is_a_view(rows: Rows, op: str, view: Callable[[], object]) -> None:
    """Whoever reads it changes the signs."""
    (row,) = (row for row in rows(view) if row.op == f"aten::{op}")
    assert (row.flop, row.bytes) == (0, 0)
