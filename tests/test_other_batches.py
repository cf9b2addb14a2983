"""A step beyond its calls timed alone: costs of the host, cold operands, data, and measured steps at other batches."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import pytest
from sample_records import GPU, op_row, record_of

from fathom.cli.commands import _evaluate
from fathom.core.errors import BadOption
from fathom.predict.call_shape import Convolution, layer_of, point_of
from fathom.predict.campaign import Campaign, TimedCall, source_of
from fathom.predict.choice import Choice
from fathom.predict.cold_operands import FORGOTTEN_BYTES, KEPT_BYTES, cold_bytes
from fathom.predict.estimate import Interval, estimate
from fathom.predict.evaluation import OP_BY_OP, OP_BY_OP_OTHERS_RUN, Score, evaluate, summaries
from fathom.predict.from_records import measured_s
from fathom.predict.host_costs import fit_host
from fathom.predict.other_batches import Case, corrected, factor_at
from fathom.predict.predictors.names import NEIGHBOURS
from fathom.predict.predictors.op_by_op import OpByOp
from fathom.predict.predictors.roofline import Roofline
from fathom.predict.probe import Probe
from fathom.predict.target import HostCosts, Target
from fathom.trace.step_work import OpWork, StepWork

TARGET = Target(name="device", gpu=False, flop_per_s={"fp32": 1e11}, bytes_per_s=1e10)


def copy(size: float, part: str = "forward") -> OpWork:
    return OpWork(
        op="aten::add", type="Add", part=part, shapes=f"[{size:.0f}]", dtypes="float", flop=0.0, bytes=size,
        spec=f"add {size:.0f}",
    )  # fmt: skip


def step(ops: list[OpWork], sequence: list[int] | None = None, batch: int = 8) -> StepWork:
    order = tuple(range(len(ops)) if sequence is None else sequence)
    return StepWork(
        workload="net", phase="train", precision="fp32", batch=batch, item="item", ops=tuple(ops), sequence=order,
        gpu=False,
    )  # fmt: skip


def probe(draw: random.Random, at: int) -> Probe:
    """A call costs 1 to 3 us, a step 100, training 400 more, a byte from memory 20 ps."""
    calls = {part: draw.randint(5, 200) for part in ("forward", "backward", "optimizer")}
    train, cold = at % 2, draw.uniform(1e6, 5e7)
    if not train:
        calls = {"forward": calls["forward"]}
    around = 3e-6 * calls["forward"] + 2e-6 * calls.get("backward", 0) + 1e-6 * calls.get("optimizer", 0)
    host = around + 1e-4 + 4e-4 * train + 2e-11 * cold
    phase = "train" if train else "infer"
    return Probe(name=f"random {at}", phase=phase, calls=calls, ops_s=0.01, step_s=0.01 + host, cold_bytes=cold)


def test_host_costs_are_found_where_calls_were_timed_alone_and_layers_ran_as_one_call() -> None:
    draw = random.Random(0)
    probes = [probe(draw, at) for at in range(30)]
    fused = [replace(each, name=f"lstm {at}", ops_s=5 * each.step_s) for at, each in enumerate(probes[:6])]
    found = fit_host(probes + fused, gpu=False)
    assert [found.forward_s, found.backward_s, found.optimizer_s] == pytest.approx([3e-6, 2e-6, 1e-6], rel=0.05)
    assert [found.step_s, found.training_s] == pytest.approx([1e-4, 4e-4], rel=0.05)
    assert found.cold_s_per_byte == pytest.approx(2e-11, rel=0.05)


def test_probes_that_all_have_one_phase_and_no_cold_bytes_can_be_fitted() -> None:
    draw = random.Random(1)
    found = fit_host([replace(probe(draw, 2 * at), cold_bytes=0.0) for at in range(20)], gpu=False)
    assert (found.training_s, found.cold_s_per_byte) == (0, 0)
    assert found.forward_s > 0


def test_campaigns_without_cold_bytes_are_fitted_as_before() -> None:
    draw = random.Random(0)
    old = [replace(probe(draw, at), cold_bytes=None) for at in range(30)]
    found = fit_host(old, gpu=False)
    assert (found.training_s, found.cold_s_per_byte) == (0, 0)


def test_on_a_gpu_a_training_step_has_costs_of_its_own() -> None:
    """Steps of small networks, paced by the host; then one with fifty times as many calls."""
    draw = random.Random(2)
    small = [probe(draw, at) for at in range(30)]
    paced = [replace(each, step_s=each.step_s - 0.01, ops_s=1e-5, cold_bytes=0.0) for each in small]
    cold_s = {each.name: 2e-11 * (each.cold_bytes or 0.0) for each in small}
    probes = [replace(each, step_s=each.step_s - cold_s[each.name]) for each in paced]
    found = fit_host(probes, gpu=True)
    assert [found.step_s, found.training_s, found.cold_s_per_byte] == pytest.approx([1e-4, 4e-4, 0], rel=0.01)
    large = 5000 * (found.forward_s + found.backward_s + found.optimizer_s) + found.step_s + found.training_s
    assert large == pytest.approx(5000 * 6e-6 + 5e-4, rel=0.01)


def test_bytes_are_cold_once_until_the_caches_have_forgotten_them() -> None:
    small, large = copy(1e6), copy(2 * KEPT_BYTES)
    assert cold_bytes(step([small], [0] * 20)) == 1e6
    assert cold_bytes(step([large])) == KEPT_BYTES
    between = math.ceil(FORGOTTEN_BYTES / (2 * KEPT_BYTES)) + 1
    assert cold_bytes(step([small, large], [0, *[1] * between, 0])) == 2e6 + KEPT_BYTES
    assert cold_bytes(step([small, large], [0, 1, 0])) == 1e6 + KEPT_BYTES


def test_a_training_step_and_cold_operands_cost_what_the_host_says() -> None:
    host = HostCosts(backward_s=3e-6, step_s=1e-5, training_s=2e-5, cold_s_per_byte=1e-11)
    two = step([copy(1e6), copy(1e6, "backward")])
    around_s = 3e-6 + 1e-5 + 2e6 * 1e-11
    assert estimate(two, replace(TARGET, host=host)).host_s == pytest.approx(around_s + 2e-5)
    assert estimate(replace(two, updates=8), replace(TARGET, host=host)).host_s == pytest.approx(around_s + 16e-5)
    assert estimate(replace(two, phase="infer"), replace(TARGET, host=host)).host_s == pytest.approx(around_s)


def test_data_prepared_under_the_profiler_is_not_taken_from_the_step_in_full() -> None:
    """Profiled steps take 2 s, plain ones 1; half of the ops are those of data, which took 0.9 s under the profiler."""
    rows = [op_row("Add", 0.8, phase="data"), op_row("Add", 0.8)]
    record = record_of(rows=rows, outside_s=0.4)
    assert record.profile is not None
    slowed = replace(record.profile, plain_step_s=[1.0] * 5, data_s=0.9)
    assert 0.4 < measured_s(replace(record, profile=slowed)) < 0.9


@pytest.mark.parametrize(
    ("kernels_s", "profiled_s", "expected_s"), [(0.2, 1, 0.7), (0.2, 2, 0.85), (0.9, 1, 0.9), (1.2, 1.2, 1)]
)
def test_on_a_gpu_data_is_part_of_the_step_only_where_kernels_do_not_run(
    kernels_s: float, profiled_s: float, expected_s: float
) -> None:
    """Steps of 1 s, of which 0.3 prepare data: half of that where the profiler made them twice as long."""
    rows = [op_row("Add", kernels_s, place=GPU)]
    record = record_of(rows=rows, place=GPU, outside_s=profiled_s - kernels_s)
    assert record.profile is not None
    profile = replace(record.profile, step_s=[profiled_s] * 5, plain_step_s=[1.0] * 5, data_s=0.3)
    assert measured_s(replace(record, profile=profile)) == pytest.approx(expected_s)


def test_nearer_batches_count_more() -> None:
    assert factor_at(8, [(4, math.log(2)), (16, math.log(8))]) == pytest.approx(4)
    assert factor_at(4, [(8, math.log(2)), (16, math.log(16))]) == pytest.approx(4)  # weights 1 and 1/2
    assert factor_at(4, [(64, 0.3)]) == pytest.approx(math.exp(0.3))


def test_steps_at_other_batches_scale_ops_and_host_alike() -> None:
    target = replace(TARGET, host=HostCosts(step_s=1e-5))
    cases = [Case(step([copy(1e5 * batch)], batch=batch), 1.3 * (1e-5 * batch + 1e-5)) for batch in (4, 16)]
    wanted = step([copy(8e5)])
    found = corrected(wanted, cases, target, Roofline())
    assert found is not None
    assert found.factor == pytest.approx(1.3)
    got = estimate(wanted, found.target(target), predictor=found)
    assert got.step_s == pytest.approx(1.3 * 9e-5)
    others = [replace(cases[0], step=replace(cases[0].step, **change)) for change in ({"phase": "infer"}, {"batch": 8})]
    assert corrected(wanted, others, target, Roofline()) is None


def test_a_corrected_choice_has_the_interval_of_its_situation_or_refuses_in_one_line() -> None:
    timed, unknown = copy(8e5), step([copy(9e5)])
    predictor = OpByOp([TimedCall(work=timed, seconds=1e-4)], Roofline())
    choice = Choice(
        TARGET, predictor, Interval(0.5, 2.0), partly=Interval(0.2, 5.0), others_run=Interval(0.9, 1.1),
        others_run_partly=Interval(0.8, 1.25),
    )  # fmt: skip
    cases = [Case(step([copy(4e5)], batch=4), 8e-5)]
    assert choice.corrected_by(cases, step([timed])).interval_of(step([timed])).high == 1.1
    assert choice.corrected_by(cases, unknown).interval_of(unknown).high == 1.25
    assert "times 2.000" in choice.corrected_by(cases, step([timed])).notes[-1]
    with pytest.raises(BadOption, match="another batch than 8"):
        choice.corrected_by([], step([timed]))


def test_steps_timed_op_by_op_are_corrected_by_their_other_batches() -> None:
    sizes = {batch: [copy(1e4 * batch * at) for at in range(1, 20)] for batch in (4, 8, 16)}
    calls = [
        TimedCall(work=op, seconds=2 * (op.bytes or 0) / 1e10, sources=(source_of("net", batch, "train"),))
        for batch, ops in sizes.items()
        for op in ops
    ]
    calls += [TimedCall(work=copy(777.0 * at), seconds=1e-6 * at, sources=("random 1",)) for at in range(1, 50)]
    campaign = Campaign(
        machine="device", device="cpu", threads=2, torch="2.13", started="2026", flop_per_s={"fp32": 1e11},
        bytes_per_s=1e10, calls=calls,
    )  # fmt: skip
    cases = [Case(step(ops, batch=b), 1.2 * sum(2 * (op.bytes or 0) / 1e10 for op in ops)) for b, ops in sizes.items()]
    errors = {each.situation: each for each in summaries(evaluate(campaign, cases, [NEIGHBOURS]))}
    assert errors[OP_BY_OP].mean_error == pytest.approx(1 - 1 / 1.2, abs=1e-6)
    assert errors[OP_BY_OP_OTHERS_RUN].mean_error == pytest.approx(0, abs=1e-6)
    assert errors[OP_BY_OP_OTHERS_RUN].cases == 3


def convolution(items: int, channels: int, side: int, kernel: int) -> OpWork:
    def tensor(shape: list[int]) -> list[object]:
        return ["T", "float", shape, [math.prod(shape[at + 1 :]) for at in range(len(shape))]]

    data, weight = tensor([items, channels, side, side]), tensor([8, channels, kernel, kernel])
    arguments = [data, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    return OpWork(
        op="aten::convolution", type="Conv2D", part="forward", shapes="", dtypes="float float",
        flop=2.0 * items * 8 * channels * (side - kernel + 1) ** 2 * kernel**2, bytes=1e6,
        spec=json.dumps(["aten::convolution.default", *arguments]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("items", "channels", "side", "kernel", "small"),
    [(1, 20, 32, 3, True), (1, 21, 32, 3, False), (2, 3, 32, 3, False), (1, 3, 32, 5, False), (1, 3, 32, 1, True)],
)
def test_convolutions_that_torch_makes_by_its_own_loops_are_apart(
    items: int, channels: int, side: int, kernel: int, small: bool
) -> None:
    op = convolution(items, channels, side, kernel)
    layer = layer_of(op)
    assert isinstance(layer, Convolution)
    assert layer.is_small == small
    assert (point_of(op)[1][-1] > 0) == small


def test_a_step_that_was_measured_twice_has_two_rows(capsys: pytest.CaptureFixture[str]) -> None:
    scores = [
        Score("net", "infer", 4, "unseen workload", name, took * (1 + error), took)
        for name, error in (("roofline", -0.5), (NEIGHBOURS, 0.25))
        for took in (1.0, 2.0)
    ]
    _evaluate._print("device", scores, [])
    printed = capsys.readouterr().out
    assert printed.count("25") == 2
    assert printed.count("-50") == 2
