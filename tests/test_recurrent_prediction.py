"""Recurrent layers of cuDNN: calls that were never timed are predicted from the time steps of those that were."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fathom.engine.step_work import StepWorks
from fathom.measure.calibration.networks import random_network
from fathom.predict.campaign import TimedCall, launches_of
from fathom.predict.predictors.names import NEIGHBOURS, SVR
from fathom.predict.predictors.neighbours import Neighbours
from fathom.predict.predictors.op_by_op import OpByOp
from fathom.predict.predictors.regression import Regression
from fathom.predict.recurrent import BACKWARD, FORWARD, cells_of, with_backward
from fathom.predict.target import Target
from fathom.trace.step_work import OpWork, StepWork

GPU = Target(name="gpu", gpu=True, flop_per_s={"fp32": 5e13}, bytes_per_s=4e12)
LOOP_S = 1e-4
RECURRENT = (2, 9, 16)  # random networks with a recurrent layer that cuDNN runs as one call


@pytest.fixture(scope="module")
def steps() -> list[StepWork]:
    """Training steps of networks with 18, 16 and 4 time steps."""
    return [StepWorks(random_network(seed, 8.0), "train", gpu=True).at("fp32") for seed in RECURRENT]


def of(step: StepWork, name: str) -> OpWork:
    (found,) = (op for op in step.ops if op.op == name)
    return found


def timed(step: StepWork, seconds: float = 1e-5) -> list[TimedCall]:
    """All but the backward pass, as a calibration leaves it; a forward call takes 0.2 loops for each time step."""
    return [
        TimedCall(
            work=op,
            seconds=seconds,
            host_s=LOOP_S * (0.2 * cells_of(op) if op.op == FORWARD else 0.05),
            loop_s=LOOP_S,
            sources=(step.workload,),
        )
        for op in step.ops
        if op.op != BACKWARD
    ]


def test_cells_are_time_steps_times_weights(steps: list[StepWork]) -> None:
    """The random networks have one layer of four weights each."""
    assert [cells_of(of(step, FORWARD)) for step in steps] == [18 * 4, 16 * 4, 4 * 4]
    assert [cells_of(of(step, BACKWARD)) for step in steps] == [18 * 4, 16 * 4, 4 * 4]
    assert cells_of(replace(of(steps[0], FORWARD), shapes="[100, 16] [[64, 16], [64, 16]]")) == 0, "a packed sequence"


def test_launches_of_a_recurrent_layer_grow_with_its_time_steps(steps: list[StepWork]) -> None:
    """What was timed is as it was; other sequences in proportion, and gradients twice as many."""
    launches = launches_of(timed(steps[0]))
    assert launches.loops(of(steps[0], FORWARD)) == pytest.approx(0.2 * 72)
    assert launches.loops(of(steps[0], BACKWARD)) == pytest.approx(2 * 0.2 * 72)
    assert launches.loops(of(steps[2], FORWARD)) == pytest.approx(0.2 * 16)
    assert launches.loops(of(steps[2], BACKWARD)) == pytest.approx(2 * 0.2 * 16)
    packed = replace(of(steps[2], FORWARD), shapes="[100, 16] [[64, 16], [64, 16]]", spec="packed")
    assert launches.loops(packed) == pytest.approx(0.2 * 72), "the median of its op"


@pytest.mark.parametrize("name", [NEIGHBOURS, SVR])
def test_a_backward_pass_takes_its_forward_time_in_proportion_to_flop(name: str, steps: list[StepWork]) -> None:
    calls = [call for step in steps for call in timed(step)]
    pairs = [(call.work, call.seconds) for call in calls]

    class Constant:
        def fit(self, *_: object) -> None: ...

        def predict(self, rows: list[object]) -> list[float]:
            return [0.0] * len(rows)

    predictor = Neighbours(calls, GPU) if name == NEIGHBOURS else Regression(name, Constant, pairs, GPU)
    for step in steps:
        found = dict(zip([op.op for op in step.ops], predictor.seconds(step, GPU), strict=True))
        ratio = (of(step, BACKWARD).flop or math.nan) / (of(step, FORWARD).flop or math.nan)
        assert ratio == pytest.approx(2, rel=0.1)
        assert found[BACKWARD] == pytest.approx(ratio * found[FORWARD])


def test_a_forward_time_that_was_measured_counts_before_one_that_was_predicted(steps: list[StepWork]) -> None:
    step, *others = steps
    predicted = Neighbours([call for other in others for call in timed(other)], GPU)
    found = OpByOp(timed(step, seconds=0.5), predicted).seconds(step, GPU)
    seconds = dict(zip([op.op for op in step.ops], found, strict=True))
    assert seconds[FORWARD] == 0.5
    assert seconds[BACKWARD] == pytest.approx(1.0, rel=0.1)


def test_a_step_without_recurrent_layers_is_as_it_was(steps: list[StepWork]) -> None:
    ops = tuple(op for op in steps[0].ops if op.op not in (FORWARD, BACKWARD))
    step = replace(steps[0], ops=ops, sequence=tuple(range(len(ops))))
    assert with_backward(step, [float(at) for at in range(len(ops))]) == [float(at) for at in range(len(ops))]
