"""Convolutions as products of spectra: counted by hand, used where a library for GPUs uses them, and only there."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest

from fathom.predict.call_shape import Convolution, layer_of, point_of
from fathom.predict.campaign import TimedCall
from fathom.predict.predictors.cost_terms import CostTerms
from fathom.predict.predictors.neighbours import Neighbours
from fathom.predict.spectra import NONE, Spectra, spectra_of
from fathom.predict.target import Target
from fathom.trace.step_work import OpWork, StepWork

GPU = Target(name="device", gpu=True, flop_per_s={"fp32": 5e13}, bytes_per_s=4e12)


def convolution(
    n: int, c: int, o: int, side: int, k: int, *, stride: int = 1, dtype: str = "float", dilation: int = 1,
    transposed: bool = False, backward: bool = False,
) -> OpWork:  # fmt: skip
    """Padded so that a stride of 1 keeps the size."""
    out = math.ceil(side / stride)
    shapes = [[n, c, side, side], [o, c, k, k]]
    tensors = [["T", dtype, each, [math.prod(each[at + 1 :]) for at in range(4)]] for each in shapes]
    how = [[stride] * 2, [k // 2] * 2, [dilation] * 2, transposed, [0, 0], 1]
    gradient = ["T", dtype, [n, o, out, out], [o * out * out, out * out, out, 1]]
    name, arguments = "aten::convolution", [*tensors, None, *how]
    if backward:
        name, arguments = "aten::convolution_backward", [gradient, *tensors, None, *how, [True, True, False]]
    return OpWork(
        op=name, type="Conv2D", part="forward", shapes="", dtypes="float float",
        flop=2.0 * (1 + backward) * n * out * out * o * c * k * k, bytes=1e6,
        spec=json.dumps([f"{name}.default", *arguments]),
    )  # fmt: skip


def layer(op: OpWork) -> Convolution:
    found = layer_of(op)
    assert isinstance(found, Convolution)
    return found


@pytest.mark.parametrize(
    ("side", "kernel", "expected"),
    [
        (28, 3, Spectra(28 * 28 * 9 / (4 * 32 * 17), 1, 32 * 17)),  # 30 places with their margins fit in 32
        (14, 3, Spectra(14 * 14 * 9 / (4 * 16 * 9), 1, 16 * 9)),
        (27, 5, Spectra(27 * 27 * 25 / (4 * 32 * 17), 1, 32 * 17)),
        (56, 3, Spectra(56 * 56 * 9 / (4 * 4 * 32 * 17), 4, 4 * 32 * 17)),  # two tiles of 30 places along each side
        (7, 3, Spectra(7 * 7 * 9 / (4 * 16 * 9), 1, 16 * 9)),
    ],
)
def test_multiplications_are_counted_by_hand(side: int, kernel: int, expected: Spectra) -> None:
    assert spectra_of([side, side], [kernel, kernel], [1, 1], [kernel // 2]) == expected
    for backward in (False, True):
        assert layer(convolution(2, 4, 8, side, kernel, backward=backward)).spectra == expected


def test_they_are_used_where_they_take_fewer_multiplications_and_forward_with_one_tile() -> None:
    used = {
        (side, backward): layer(convolution(2, 4, 8, side, 3, backward=backward)).by_spectra
        for side in (7, 28, 56)
        for backward in (False, True)
    }
    assert [each for each, is_used in used.items() if is_used] == [(28, False), (28, True), (56, True)]


def test_strides_points_dilation_transposition_and_other_precisions_have_none() -> None:
    others = [
        convolution(2, 4, 8, 28, 3, stride=2),
        convolution(2, 4, 8, 28, 1),
        convolution(2, 4, 8, 28, 3, dilation=2),
        convolution(2, 4, 8, 28, 3, transposed=True),
        convolution(2, 4, 8, 28, 3, dtype="c10::BFloat16"),
    ]
    assert {layer(each).spectra for each in others} == {NONE}
    row = replace(others[0], spec="a row", shapes="[2, 4, 28, 28] [8, 4, 3, 3]")
    assert layer(row).spectra == NONE


def test_only_a_gpu_has_coordinates_for_them() -> None:
    op = convolution(2, 4, 8, 28, 3)
    assert len(point_of(op, gpu=True)[1]) == len(point_of(op)[1]) + 2


def law(op: OpWork) -> float:
    """Direct sums at 50 TFLOP/s; products of spectra at the same rate of multiplications."""
    it = layer(op)
    return 4e-6 + it.flop / (it.spectra.gain if it.by_spectra else 1) / 5e13


def drawn(seed: int, count: int) -> list[OpWork]:
    draw = random.Random(seed)
    sides = (7, 13, 14, 20, 27, 28, 40, 56, 80)
    return [
        convolution(2 ** draw.randint(3, 8), 8 * draw.randint(2, 64), 8 * draw.randint(2, 64), draw.choice(sides), 3)
        for _ in range(count)
    ]


def test_times_of_both_ways_are_found_again_on_a_gpu_alone() -> None:
    timed = [(op, law(op)) for op in drawn(1, 200)]
    on_gpu, on_cpu = CostTerms(timed, gpu=True), CostTerms(timed)
    unseen = drawn(2, 60)
    errors = [[abs(math.log((each.seconds(op) or 0) / law(op))) for op in unseen] for each in (on_gpu, on_cpu)]
    assert max(errors[0]) < 0.05
    assert sorted(errors[1])[30] > 0.1


def test_an_op_is_expected_to_take_what_its_own_kernels_take_at_least() -> None:
    """Views launch no kernel: what calls take in general says nothing of a small addition, nor of how it grows."""

    def op(name: str, size: int) -> OpWork:
        tensor = ["T", "float", [size], [1]]
        return OpWork(
            op=f"aten::{name}", type="Add", part="forward", shapes=f"[{size}]", dtypes="float", flop=float(size),
            bytes=12.0 * size, spec=json.dumps([f"aten::{name}.Tensor", tensor, tensor, 1]),
        )  # fmt: skip

    def took_s(size: int) -> float:
        return 2e-6 + 12 * size / 4e12

    small = [1 << at for at in range(4, 19)]
    calls = [TimedCall(work=op("add", size), seconds=took_s(size), sources=(f"random {size}",)) for size in small]
    views = [TimedCall(work=op("view", size), seconds=1e-7, sources=(f"random {size}",)) for size in small]
    large = op("add", 1 << 25)
    step = StepWork(
        workload="net", phase="train", precision="fp32", batch=8, item="item", ops=(large,), sequence=(0,), gpu=True
    )
    assert Neighbours(calls + views, GPU).seconds(step, GPU)[0] == pytest.approx(took_s(1 << 25), rel=0.1)
