"""Published times and throughputs beside predictions for the machines that they were measured on.

Networks, frameworks and clocks differ from ours in ways that the papers do not tell; the error is of all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fathom import published
from fathom.predict import catalogue
from fathom.predict.choice import elsewhere
from fathom.predict.communication import Link
from fathom.predict.estimate import Estimate, estimate
from fathom.predict.predictors.names import AUTO
from fathom.published import COOKBOOK, GUIDE, MINSKY
from fathom.trace.step_work import StepWork

COLUMNS = ["what", "published", "predicted", "low", "high", "error (%)", "roofline", "source"]
Row = list[object]
Steps = Callable[[str, str, int, bool], StepWork]  # workload, phase, batch, whether on a GPU
HOUR_S = 3600
FORM_ITEMS, FORM_EPOCHS, FORM_BATCH, FORM_COUNT, FORM_HOURS = 1e8, 10, 32, 8, 120.2  # the form of the Cookbook's slides
GUIDE_BATCH, GUIDE_THREADS = 64, 4
GUIDE_NETWORK = "fcn5"
MINSKY_GPU, MINSKY_CPU, GUIDE_CPU = "P100", "POWER8", "Core i7-3820"


def rows(steps: Steps) -> list[Row]:
    return [_form(steps), *_minsky(steps), *_guide(steps)]


def _form(steps: Steps) -> Row:
    """Hours of training on 8 P100 with InfiniBand, weak scaling; which InfiniBand is not said: EDR is taken."""
    step = steps("resnet-101", "train", FORM_BATCH, True)
    found = _on(catalogue.device(MINSKY_GPU), step, FORM_COUNT, "InfiniBand EDR")
    hours = FORM_ITEMS * FORM_EPOCHS / (FORM_COUNT * FORM_BATCH) / HOUR_S
    data = f"{FORM_EPOCHS} epochs of {FORM_ITEMS:,.0f}"
    what = f"hours, ResNet-101, {FORM_COUNT} x {MINSKY_GPU}, {FORM_BATCH} images each, {data}"
    times = [hours * each for each in (found.step_s, found.low_s, found.high_s, found.roofline_s)]
    return _row(what, FORM_HOURS, times, COOKBOOK)


def _minsky(steps: Steps) -> list[Row]:
    """The run section with a GPU over that without one: of the same steps, so that their number does not matter.

    Without a GPU it had both processors, whose memory each has for itself.
    """
    one = catalogue.device(MINSKY_CPU)
    assert one.fp32_flop_per_s is not None
    assert one.memory_bytes_per_s is not None
    both = replace(
        one, fp32_flop_per_s=2 * one.fp32_flop_per_s, memory_bytes_per_s=2 * one.memory_bytes_per_s, name="2 POWER8"
    )
    found: list[Row] = []
    for workload in ("alexnet", "residual", "vgg"):
        ratio = _ratio(workload)
        what = f"run on a {MINSKY_GPU} over run on two {MINSKY_CPU}, {workload}"
        gpu, cpu = (
            _on(device, steps(workload, "train", 32, device is not both))
            for device in (catalogue.device(MINSKY_GPU), both)
        )
        values = [gpu.step_s / cpu.step_s, gpu.low_s / cpu.high_s, gpu.high_s / cpu.low_s]
        found.append(_row(what, ratio, [*values, gpu.roofline_s / cpu.roofline_s], MINSKY))
    return found


def _ratio(workload: str) -> float | None:
    both = [published.sections().get((workload, mode)) for mode in ("CPU+GPU", "CPU")]
    runs = [None if each is None else each.run for each in both]
    return None if None in runs else runs[0] / runs[1]  # type: ignore[operator]


def _guide(steps: Steps) -> list[Row]:
    """A step on all four cores, in each framework: the prediction knows of none."""
    found = _on(catalogue.device(GUIDE_CPU), steps(GUIDE_NETWORK, "train", GUIDE_BATCH, False))
    times = [found.step_s, found.low_s, found.high_s, found.roofline_s]
    what = f"seconds of a step, FCN-5, batch {GUIDE_BATCH}, {GUIDE_THREADS} threads of a {GUIDE_CPU}"
    return [
        _row(f"{what}, {framework}", seconds.get(GUIDE_THREADS), times, GUIDE)
        for framework, seconds in published.thread_seconds().items()
    ]


def _on(device: catalogue.Device, step: StepWork, count: int = 1, interconnect: str | None = None) -> Estimate:
    choice = elsewhere(device, AUTO, step.precision)
    link = None if interconnect is None else Link.of(catalogue.interconnect(interconnect))
    return estimate(step, choice.target, count=count, link=link, **choice.how(step))


def _row(what: str, published_value: float | None, times: list[float], source: str) -> Row:
    error = None if published_value is None else 100 * (times[0] / published_value - 1)
    return [what, published_value, times[0], times[1], times[2], error, times[3], source]
