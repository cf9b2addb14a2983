"""Step times by hand: rooflines, host beside or before the device, communication exposed, intervals, refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fathom.core.errors import BadOption
from fathom.predict import catalogue
from fathom.predict.communication import Link
from fathom.predict.estimate import Interval, estimate
from fathom.predict.target import HostCosts, Target, precision_of
from fathom.trace.step_work import GradientReady, OpWork, StepWork


def op(name: str, part: str, flop: float, nbytes: float, dtypes: str = "float float", kind: str = "MatMul") -> OpWork:
    return OpWork(op=name, type=kind, part=part, shapes="[1]", dtypes=dtypes, flop=flop, bytes=nbytes, spec=name + part)


OPS = (
    op("aten::mm", "forward", 4e9, 1e6),  # 4 ms of compute
    op("aten::relu", "forward", 1e6, 2e9, kind="Relu"),  # 2 ms of memory
    op("aten::mm", "backward", 8e9, 2e6),  # 8 ms
    op("aten::add_", "optimizer", 0.0, 1e9, kind="ApplySGD"),  # 1 ms
)
STEP = StepWork(
    workload="net",
    phase="train",
    precision="fp32",
    batch=10,
    item="image",
    ops=OPS,
    sequence=(0, 1, 2, 3),
    gradients=(GradientReady(3, 1 << 20),),
    peak_bytes=1000,
)
TARGET = Target(name="device", gpu=True, flop_per_s={"fp32": 1e12}, bytes_per_s=1e12, memory_bytes=2000)


def test_the_roofline_is_the_longer_of_compute_and_memory_op_by_op() -> None:
    found = estimate(STEP, TARGET)
    assert found.step_s == pytest.approx(15e-3)
    assert found.step_s == found.roofline_s == found.compute_s
    assert found.by_family == pytest.approx({"matrix product": 12e-3, "activation": 2e-3, "optimizer": 1e-3})
    assert (found.bound_by, found.fits) == ("compute", True)
    assert found.items_per_s == pytest.approx(10 / 15e-3)


def test_a_gpu_takes_the_longer_of_host_and_device_and_a_cpu_their_sum() -> None:
    slow = HostCosts(10e-3, 5e-3, 1e-3, 2e-3)  # 2 forward calls, 1 backward, 1 of the optimizer, and the step: 28 ms
    gpu = estimate(STEP, replace(TARGET, host=slow))
    assert gpu.step_s == pytest.approx(28e-3)
    assert gpu.bound_by == "host"
    slower = replace(TARGET, host=HostCosts(step_s=16e-3))  # by 1 ms than 15 ms of kernels, 12 of them compute
    assert estimate(STEP, slower).bound_by == "host", "with faster kernels, the step takes as long"
    assert estimate(STEP, replace(TARGET, host=HostCosts(step_s=14e-3))).bound_by == "compute"
    cpu = estimate(STEP, replace(TARGET, host=slow, gpu=False))
    assert cpu.step_s == pytest.approx(43e-3)
    assert cpu.bound_by == "host"
    assert estimate(STEP, replace(TARGET, host=HostCosts(step_s=11e-3), gpu=False)).bound_by == "compute"
    assert gpu.roofline_s == cpu.roofline_s == pytest.approx(15e-3)  # the baseline knows of no host


def test_only_communication_that_the_backward_pass_does_not_hide_is_added() -> None:
    link = Link(alpha_s=0.0, bytes_per_s=(1 << 20) / 10e-3)
    two = estimate(STEP, TARGET, count=2, link=link)
    assert two.communication_s == pytest.approx(10e-3)
    assert two.exposed_s == pytest.approx(10e-3)  # the only gradient is ready when the pass ends
    early = replace(STEP, sequence=(0, 1, 2, 2, 3), gradients=(GradientReady(3, 1 << 20), GradientReady(4, 0)))
    assert estimate(early, TARGET, count=2, link=link).exposed_s == pytest.approx(2e-3)  # 8 ms are behind the second
    assert two.step_s == pytest.approx(two.compute_s + two.exposed_s)
    assert estimate(replace(STEP, phase="infer", gradients=()), TARGET, count=2).exposed_s == 0


def test_an_interval_is_factors_of_the_time() -> None:
    found = estimate(STEP, TARGET, interval=Interval(0.5, 3.0, 0.9))
    assert [found.low_s, found.high_s, found.coverage] == pytest.approx([7.5e-3, 45e-3, 0.9])


def test_the_baseline_may_have_other_ceilings() -> None:
    found = estimate(STEP, TARGET, roof=replace(TARGET, flop_per_s={"fp32": 2e12}, bytes_per_s=2e12))
    assert [found.step_s, found.roofline_s] == pytest.approx([15e-3, 7.5e-3])


@pytest.mark.parametrize(
    ("given", "message"),
    [({"count": 0}, "at least 1"), ({"count": 2}, "interconnect")],
)
def test_what_cannot_be_estimated_is_refused(given: dict[str, int], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        estimate(STEP, TARGET, count=given["count"])


def test_ops_have_the_peak_of_what_they_compute_in() -> None:
    half = op("aten::mm", "forward", 1.0, 1.0, dtypes="BFloat16 BFloat16")
    assert precision_of(half, STEP) == "bf16"
    assert precision_of(OPS[0], replace(STEP, precision="tf32")) == "tf32"
    old = Target.of(catalogue.device("P100"))
    assert old.peak("bf16") == old.flop_per_s["fp32"]  # no bf16 units
    with pytest.raises(BadOption, match="fp64"):
        TARGET.peak("fp64")


def test_a_board_of_two_gpus_is_one_of_them() -> None:
    board, one = catalogue.device("K80"), Target.of(catalogue.device("K80"))
    assert board.fp32_flop_per_s is not None
    assert one.flop_per_s["fp32"] == board.fp32_flop_per_s / 2


def test_a_device_without_peaks_is_refused_with_what_to_give() -> None:
    with pytest.raises(BadOption, match="fathom calibrate"):
        Target.of(catalogue.device("Neoverse-N1"))
