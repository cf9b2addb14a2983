"""Calls predicted from their neighbours: laws found again, faulty times outvoted, no network predicted by itself."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest

from fathom.predict.call_shape import Convolution, Product, layer_of, mapped_bytes, point_of
from fathom.predict.campaign import TimedCall
from fathom.predict.predictors.cost_terms import CostTerms
from fathom.predict.predictors.neighbours import Neighbours, Reach, Surroundings
from fathom.predict.target import Target
from fathom.trace.step_work import OpWork, StepWork

TARGET = Target(name="device", gpu=False, flop_per_s={"fp32": 1e11}, bytes_per_s=1e10)


def tensor(shape: list[int], strides: list[int] | None = None) -> list[object]:
    return ["T", "float", shape, strides or [math.prod(shape[at + 1 :]) for at in range(len(shape))]]


def product(m: int, n: int, k: int, turned: bool = False) -> OpWork:
    second = tensor([k, n], [1, k]) if turned else tensor([k, n])
    return OpWork(
        op="aten::mm", type="MatMul", part="forward", shapes=f"[{m}, {k}] [{k}, {n}]", dtypes="float float",
        flop=2.0 * m * n * k, bytes=4.0 * (m * n + n * k + m * k),
        spec=json.dumps(["aten::mm.default", tensor([m, k]), second]),
    )  # fmt: skip


def convolution(n: int, c: int, o: int, side: int, k: int, channels_last: bool = False) -> OpWork:
    out = side - k + 1
    weight = tensor([o, c, k, k], [c * k * k, 1, c * k, c] if channels_last else None)
    arguments = [tensor([n, c, side, side]), weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    return OpWork(
        op="aten::convolution", type="Conv2D", part="forward", shapes="",
        dtypes="float float", flop=2.0 * n * out * out * o * c * k * k, bytes=1e6,
        spec=json.dumps(["aten::convolution.default", *arguments]),
    )  # fmt: skip


def addition(size: int) -> OpWork:
    return OpWork(
        op="aten::add", type="Add", part="forward", shapes=f"[{size}]", dtypes="float", flop=float(size),
        bytes=12.0 * size, spec=json.dumps(["aten::add.Tensor", tensor([size]), tensor([size]), 1]),
    )  # fmt: skip


def step(ops: list[OpWork]) -> StepWork:
    return StepWork(
        workload="net", phase="train", precision="fp32", batch=8, item="item", ops=tuple(ops),
        sequence=tuple(range(len(ops))), gpu=False,
    )  # fmt: skip


def drawn(seed: int, count: int, turned: bool = False) -> list[OpWork]:
    draw = random.Random(seed)
    sizes = [[round(math.exp(draw.uniform(2, 7))) for _ in range(3)] for _ in range(count)]
    return [product(m, n, k, turned) for m, n, k in sizes]


def law(op: OpWork) -> float:
    """Arithmetic at half of the peak, the second factor packed at 1 GB/s; twice as long where it is transposed."""
    it = layer_of(op)
    assert isinstance(it, Product)
    return (5e-6 + it.stack * (4e-11 * it.rows * it.columns * it.inner + 4e-9 * it.inner * it.columns)) * (
        2 if it.second_turned else 1
    )


def timed(ops: list[OpWork], source: str = "random 1") -> list[TimedCall]:
    return [TimedCall(work=op, seconds=law(op), sources=(f"{source}{at}",)) for at, op in enumerate(ops)]


def test_terms_that_times_are_made_of_are_found_again_beyond_the_sizes_timed() -> None:
    fitted = CostTerms((each.work, each.seconds) for each in timed(drawn(1, 80)))
    for op in (product(4000, 4000, 4000), product(2, 8000, 4000), product(3, 5, 7)):
        assert fitted.seconds(op) == pytest.approx(law(op), rel=0.02)
    assert fitted.seconds(addition(100)) is None


def test_another_layout_has_rates_of_its_own() -> None:
    fitted = CostTerms((each.work, each.seconds) for each in timed(drawn(1, 80) + drawn(2, 80, turned=True)))
    for op in (product(300, 300, 300), product(300, 300, 300, turned=True)):
        assert fitted.seconds(op) == pytest.approx(law(op), rel=0.05)


def test_few_products_of_a_layout_are_fitted_with_the_others() -> None:
    fitted = CostTerms((each.work, each.seconds) for each in timed(drawn(1, 80) + drawn(2, 3, turned=True)))
    assert fitted.seconds(product(300, 300, 300, turned=True)) == pytest.approx(law(product(300, 300, 300)), rel=0.1)
    assert CostTerms([]).seconds(product(3, 3, 3)) is None


def test_unseen_products_of_both_layouts_take_what_their_neighbours_say() -> None:
    fitted = Neighbours(timed(drawn(1, 150) + drawn(2, 150, turned=True)), TARGET)
    unseen = drawn(3, 30) + drawn(4, 30, turned=True)
    found = fitted.seconds(step(unseen), TARGET)
    errors = sorted(abs(math.log(seconds / law(op))) for op, seconds in zip(unseen, found, strict=True))
    assert errors[len(errors) // 2] < 0.03
    assert sum(found) == pytest.approx(sum(map(law, unseen)), rel=0.05)


def test_a_disturbed_time_is_outvoted_but_not_a_group_of_slow_calls() -> None:
    away = np.array([[float(at - 5), 0.0] for at in range(11)])
    values = np.zeros(11)
    assert Surroundings(away, values).value(Reach(4.0, 0.05)) == pytest.approx(0, abs=0.01)
    values[5] = 4.0  # the nearest one, e^4 times too long
    assert Surroundings(away, values).value(Reach(4.0, 0.05)) == pytest.approx(0, abs=0.2)
    slow = np.where(away[:, 0] > 0, 1.0, 0.0)
    assert Surroundings(away - [3.0, 0.0], slow).value(Reach(4.0, 0.05)) == pytest.approx(1, abs=0.1)


def test_calls_of_a_kind_that_was_never_timed_take_the_class_efficiency() -> None:
    calls = timed(drawn(1, 60))
    found = Neighbours(calls, TARGET).seconds(step([addition(1000)]), TARGET)
    assert math.isfinite(found[0])
    assert found[0] > 0
    assert Neighbours([], TARGET).seconds(step([addition(1000)]), TARGET)[0] == pytest.approx(12000 / 1e10)


def test_reach_is_chosen_without_the_calls_of_the_same_network() -> None:
    """Calls of one network agree with each other alone: a reach chosen with them would be the shortest."""
    draw = random.Random(0)
    calls = []
    for network in range(30):
        factor = math.exp(draw.gauss(0, 0.5))
        size = round(math.exp(draw.uniform(9, 15)))
        for at in range(4):
            op = addition(size + at)
            calls.append(TimedCall(work=op, seconds=factor * (op.bytes or 0) / 1e9, sources=(f"random {network}",)))
    together = [replace(each, sources=(f"own {at}",)) for at, each in enumerate(calls)]
    op = calls[0].work
    near = Neighbours(calls, TARGET)._near(op, frozenset({"random 0"}))
    assert near is not None
    assert len(near.values) == 48
    assert np.abs(near.away).sum(axis=1).min() > 0  # nothing of its own network, itself included
    fitted = [Neighbours(each, TARGET)._reaches["elementwise"] for each in (calls, together)]
    assert fitted[0].octaves > fitted[1].octaves or fitted[0].noise > fitted[1].noise


def test_shapes_of_a_product_and_a_convolution_are_read_from_their_arguments() -> None:
    it = layer_of(product(3, 5, 7, turned=True))
    assert it == Product(1, 3, 5, 7, False, True, False, False)
    found = layer_of(convolution(2, 4, 8, 10, 3))
    assert isinstance(found, Convolution)
    assert (found.items, found.channels, found.outputs, found.places, found.kernel, found.groups) == (2, 4, 8, 64, 9, 1)
    last = layer_of(convolution(2, 4, 8, 10, 3, channels_last=True))
    assert isinstance(last, Convolution)
    assert (found.turned, last.turned) == (False, True)
    assert layer_of(addition(3)) is None


def test_rows_that_begin_whole_pages_apart_are_another_place() -> None:
    """A transposed factor's rows are as long as the inner size, others as the number of columns."""
    aliased = [(8, 500, 2048, True), (8, 2048, 500, False)]
    not_so = [(8, 500, 2040, True), (8, 2048, 500, True), (8, 500, 2048, False), (8, 2040, 500, False)]
    for sizes, expected in [*((each, True) for each in aliased), *((each, False) for each in not_so)]:
        m, n, k, turned = sizes
        found = layer_of(product(m, n, k, turned=turned))
        assert isinstance(found, Product)
        assert found.is_aliased is expected, sizes


@pytest.mark.parametrize(("outputs", "groups", "ragged"), [(382, 2, True), (384, 2, False), (382, 1, False)])
def test_outputs_of_a_group_that_do_not_fill_vectors_are_another_place(outputs: int, groups: int, ragged: bool) -> None:
    found = layer_of(convolution(4, 64, outputs, 13, 3))
    assert isinstance(found, Convolution)
    assert replace(found, groups=groups).is_ragged is ragged


def test_a_doubled_batch_is_one_octave_away() -> None:
    for small, large in ((product(64, 5, 7), product(128, 5, 7)), (addition(1 << 12), addition(1 << 13))):
        (kind, a), (other, b) = point_of(small), point_of(large)
        assert kind == other
        assert max(abs(x - y) for x, y in zip(a, b, strict=True)) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("shapes", ["", "[]", "[3, 4] [4, 5]", "[[2, 3], [4]] [] [5]", "{"])
def test_op_rows_without_arguments_have_points_too(shapes: str) -> None:
    for name in ("aten::mm", "aten::convolution_backward", "aten::add"):
        op = OpWork(op=name, type="Add", part="forward", shapes=shapes, dtypes="", flop=None, bytes=None, spec="a row")
        kind, place = point_of(op)
        assert kind
        assert all(map(math.isfinite, place))


def outer(rows: int, columns: int) -> OpWork:
    return product(rows, columns, 2)


def mapped_law(op: OpWork) -> float:
    """As other products; a result of more than 32 MiB costs 0.4 ns more for each of its bytes."""
    return law(op) + 4e-10 * mapped_bytes(op)


def test_a_result_is_mapped_anew_where_it_is_larger_than_what_an_allocator_keeps() -> None:
    assert mapped_bytes(product(2048, 4096, 2)) == 0.0, "32 MiB"
    assert mapped_bytes(product(2049, 4096, 2)) == 4.0 * 2049 * 4096
    assert mapped_bytes(addition(1 << 24)) == 4.0 * (1 << 24)
    assert mapped_bytes(replace(addition(1 << 24), op="aten::add_")) == 0.0, "it writes where it reads"
    assert mapped_bytes(product(4, 4096, 1 << 14)) == 0.0, "only its operand is large"


def test_the_memory_of_a_large_result_is_predicted_from_other_ops() -> None:
    """A gradient of 151 MB, where all large results were of sums and of few products."""
    small = drawn(0, 300) + [outer(1 << at, 1 << (15 - at)) for at in range(4, 12)] * 4
    sums = [addition(round(2**at)) for at in np.linspace(20, 25, 11)]
    timed = [TimedCall(work=op, seconds=mapped_law(op), sources=(f"random {at}",)) for at, op in enumerate(small)]
    timed += [
        TimedCall(work=op, seconds=(op.bytes or 0) / 1e10 + 4e-10 * mapped_bytes(op), sources=("random 999",))
        for op in sums
    ]
    wanted = outer(4096, 9216)
    (found,) = Neighbours(timed, TARGET).seconds(step([wanted]), TARGET)
    assert found == pytest.approx(mapped_law(wanted), rel=0.15)
    (on_gpu,) = Neighbours(timed, replace(TARGET, gpu=True)).seconds(step([wanted]), TARGET)
    assert on_gpu < found / 2, "whose allocator keeps memory of any size"
