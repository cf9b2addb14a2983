"""Which errors an interval rests on: those of this machine, else of one of its kind that comes with Fathom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fathom.predict.campaign import Campaign, TimedCall, write
from fathom.predict.choice import calibrated
from fathom.predict.errors import errors_file, errors_of_its_kind, made_from, shipped
from fathom.predict.evaluation import OP_BY_OP, UNSEEN_WORKLOAD, Summary
from fathom.predict.predictors.names import NEIGHBOURS
from fathom.predict.predictors.op_by_op import OpByOp
from fathom.predict.target import CUDAGRAPH
from fathom.trace.step_work import OpWork

RESULTS = Path(__file__).parents[1] / "results"
FOUND = Summary(UNSEEN_WORKLOAD, NEIGHBOURS, 16, 0.1, 0.1, 0.2, 1.5, 0.9)


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    work = OpWork(
        op="aten::add", type="Add", part="forward", shapes="[8]", dtypes="float", flop=8.0, bytes=96.0, spec="add"
    )
    made = Campaign(
        machine="Test GPU", device="cuda:0", threads=None, torch="2.13", started="2026",
        flop_per_s={"fp32": 1e13, "bf16": 1e14}, bytes_per_s=1e12, memory_bytes=8e9,
        calls=[TimedCall(work=work, seconds=1e-5)],
    )  # fmt: skip
    path = tmp_path / "test-gpu.calibration.json.gz"
    write(path, made)
    return path


def test_what_is_shipped_is_what_the_calibrations_in_results_have_beside_them() -> None:
    """If not: python -m fathom.predict.errors results/h200-calibration results/neoverse-n1-calibration."""
    assert shipped() == list(made_from([RESULTS / "h200-calibration", RESULTS / "neoverse-n1-calibration"]))
    assert [(each.machine, each.engine) for each in shipped()] == [
        ("NVIDIA H200", "eager"),
        ("NVIDIA H200", "cudagraph"),
        ("Neoverse-N1, 2 cores", "eager"),
    ]


@pytest.mark.parametrize("engine", ["eager", CUDAGRAPH])
def test_a_calibration_that_nobody_evaluated_has_the_interval_of_its_kind(calibration: Path, engine: str) -> None:
    found = calibrated(calibration, "auto", "fp32", engine)
    errors = errors_of_its_kind(True, engine)
    assert isinstance(found.predictor, OpByOp)
    assert found.interval == errors.interval(OP_BY_OP, OP_BY_OP)
    assert found.partly == errors.interval(NEIGHBOURS, UNSEEN_WORKLOAD)
    assert found.partly is not None
    assert (found.partly.measured_on, found.partly.coverage is None) == ("NVIDIA H200", False)
    assert any("interval as on NVIDIA H200" in note for note in found.notes)


def test_the_errors_of_the_machine_itself_come_first(calibration: Path) -> None:
    errors_file(calibration).write_bytes(msgspec.json.encode([FOUND]))
    found = calibrated(calibration, NEIGHBOURS, "fp32")
    assert (found.interval, found.interval.measured_on) == (FOUND.interval, "")
    assert not any("interval as on" in note for note in found.notes)
    in_graphs = calibrated(calibration, NEIGHBOURS, "fp32", CUDAGRAPH)
    assert in_graphs.interval.measured_on == "NVIDIA H200", "these were measured on eager steps"


def test_errors_that_were_measured_in_fp32_say_nothing_of_bf16(calibration: Path) -> None:
    found = calibrated(calibration, NEIGHBOURS, "bf16").interval
    assert (found.coverage, found.measured_on) == (None, "")
    assert found.high > replace(FOUND).factor
