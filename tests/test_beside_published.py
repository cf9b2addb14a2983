"""Published results beside predictions: every one is predicted, from the peaks of the machines that they are of."""

from __future__ import annotations

from functools import cache

import pytest

from fathom.engine.step_work import step_work
from fathom.predict import beside_published, catalogue
from fathom.predict.beside_published import COLUMNS, GUIDE_NETWORK, rows
from fathom.trace.step_work import StepWork
from fathom.workloads.base import workload_class


@cache
def small_step(workload: str, phase: str, batch: int, gpu: bool) -> StepWork:
    """A step of one small network, whatever was asked for: what is tested is what becomes of it."""
    return step_work(workload_class("deep_mnist").configured("tiny"), phase, gpu=gpu)


def test_every_published_result_has_a_prediction_with_its_interval_and_error() -> None:
    found = [dict(zip(COLUMNS, row, strict=True)) for row in rows(small_step)]
    assert [row["published"] for row in found] == [
        pytest.approx(value, rel=1e-3) for value in (120.2, 0.2880 / 0.8651, 0.0428 / 0.9635, 0.0976 / 0.9288)
    ] + [0.578, 2.648, 0.423]
    for row in found:
        low, predicted, high = (float(str(row[name])) for name in ("low", "predicted", "high"))
        assert 0 < low < predicted < high
        assert row["error (%)"] == pytest.approx(100 * (predicted / float(str(row["published"])) - 1))


def test_the_guides_network_is_a_step_of_its_64_items() -> None:
    from fathom.cli.commands._evaluate import _step

    step = _step(GUIDE_NETWORK, "train", beside_published.GUIDE_BATCH, False)
    assert (step.batch, step.parameters) == (64, 117_997_696)


def test_peaks_of_old_processors_are_cores_times_clock_times_flop_a_cycle() -> None:
    peaks = {name: catalogue.device(name).fp32_flop_per_s for name in ("Core i7-3820", "Core i7-6700K", "POWER8")}
    assert peaks == {
        "Core i7-3820": pytest.approx(4 * 3.6e9 * 16),
        "Core i7-6700K": pytest.approx(4 * 4.0e9 * 32),
        "POWER8": pytest.approx(10 * 4.0e9 * 16),
    }
