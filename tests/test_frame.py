"""Records as pandas tables: exact values and counts, and what was not measured stays missing."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
from sample_records import GPU, failed_record, op_row, record_of, study

from fathom.analysis.frame import RUN_COLUMNS, frame, op_frame
from fathom.core.disturbance import Disturbance
from fathom.core.record import Learning, OpRow, Point, Sections
from fathom.core.store import Store
from fathom.core.tables import OP_COLUMNS

RESULTS = Path(__file__).parents[1] / "results"


def only(table: pandas.DataFrame) -> dict[str, Any]:
    (row,) = table.to_dict("records")
    return {str(name): value for name, value in row.items()}


def test_one_row_per_run_with_the_values_of_its_record() -> None:
    record = record_of(
        "vgg",
        [op_row("MatMul", 0.5)],
        place=GPU,
        spec={"batch": 4, "threads": 8, "cores": (0, 2), "seed": 3, "options": {"b": 1, "a": True}},
        step_s=[0.4, 0.5, 0.6],
        items_per_step=100,
        parameters=7,
        peak_device_bytes=2**40,
        losses=[2.0, 1.5],
        sections=Sections(init_s=1.0, wall_s=9.0),
        disturbance=Disturbance(gpu_shared=True),
        started="2026-11-15T01:22:00.500+00:00",
    )
    row = only(frame([record]))
    expected = {
        **{"workload": "vgg", "phase": "train", "kind": "timed", "preset": "small", "device": "cuda:0"},
        **{"machine": "NVIDIA H200", "precision": "fp32", "engine": "eager", "batch": 4, "threads": 8, "cores": 2},
        **{"seed": 3, "options": '{"a": true, "b": 1}', "outcome": "ok", "steps": 3, "step_median_s": 0.5},
        **{"items_per_step": 100, "items_per_s": 200.0, "parameters": 7, "peak_device_bytes": 2**40, "last_loss": 1.5},
        **{"init_s": 1.0, "wall_s": 9.0, "profiled": True, "profiler_slowdown": 1.0, "gpu_shared": True},
        **{"started": pandas.Timestamp("2026-11-15T01:22:00.500Z"), "id": record.id, "spec": record.spec.id},
    }
    assert {name: row[name] for name in expected} == expected
    missing = {name for name, value in row.items() if pandas.isna(value)}
    assert {"data", "reason", "setup_s", "peak_host_bytes", "quality", "energy_j", "commit", "torch"} <= missing
    assert not missing & expected.keys()


def test_what_was_not_measured_is_missing_and_types_do_not_depend_on_it() -> None:
    full, failed = frame([record_of("vgg")]), frame([failed_record()])
    assert only(failed)["outcome"] == "failed"
    assert only(failed)["steps"] == 0
    assert pandas.isna(only(failed)["step_median_s"])
    assert pandas.isna(only(failed)["gpu_shared"]), "nobody looked, which is not no"
    for table in (full, failed, frame([])):
        assert {name: str(kind) for name, kind in table.dtypes.items()} == RUN_COLUMNS
    assert {name: str(kind) for name, kind in op_frame([]).dtypes.items()} == OP_COLUMNS


def test_a_training_run_has_its_quality() -> None:
    point = Point(items=9, seconds=60.0, loss=0.1, quality=31.0)
    fields: dict[str, Any] = {
        **{"metric": "BLEU", "unit": "points", "target": 30.0, "better": "higher", "protocol": "", "quality": 31.0},
        **{"reached": True, "seconds": 60.0, "items": 9, "energy_j": None, "metered": None, "curve": [point]},
    }
    learning = Learning(**fields)
    row = only(frame([record_of("vgg", spec={"kind": "training"}, step_s=[], learning=learning)]))
    assert (row["quality"], row["target_reached"], row["training_s"]) == (31.0, True, 60.0)
    assert pandas.isna(row["energy_j"])


def test_one_row_per_op_row_with_all_its_fields_and_the_time_that_counts() -> None:
    on_gpu = record_of("vgg", [op_row("Conv2D", 0.3, place=GPU), op_row("Add", 0.1, place=GPU)], place=GPU)
    on_cpu = record_of("memnet", [op_row("MatMul", 0.7)])
    table = op_frame([on_gpu, record_of("speech"), on_cpu])
    assert list(table["id"]) == [on_gpu.id, on_gpu.id, on_cpu.id], "a run without a profile has no ops"
    assert list(table["seconds"]) == [0.3, 0.1, 0.7]
    assert list(table["device_s"].isna()) == [False, False, True]
    assert (table["phase"] == "train").all()
    assert set(table["op_phase"]) == {"forward"}
    fields = {field.name for field in dataclasses.fields(OpRow)}
    assert fields - {"phase"} | {"phase", "op_phase", "seconds", "id", "workload", "machine"} == set(OP_COLUMNS)


def test_the_rows_of_a_study_add_up_to_its_records() -> None:
    records = study()
    runs, ops = frame(records), op_frame(records)
    assert len(runs) == len(records)
    assert len(ops) == sum(len(record.profile.rows) for record in records if record.profile)
    assert (runs["outcome"] == "failed").sum() == 1
    per_run = ops.groupby("id")["seconds"].sum()
    profiled = next(record for record in records if record.profile)
    assert profiled.profile is not None
    assert per_run[profiled.id] == pytest.approx(sum(map(profiled.profile.seconds, profiled.profile.rows)))


def test_committed_records_have_the_counts_that_they_have() -> None:
    records = list(Store(RESULTS / "neoverse-n1").records())
    runs, ops = frame(records), op_frame(records)
    assert (len(runs), runs["workload"].nunique(), int(runs["profiled"].sum())) == (293, 8, 22)
    assert len(ops) == sum(len(record.profile.rows) for record in records if record.profile)
    assert not ops["seconds"].isna().any()


def test_pandas_is_not_loaded_for_a_report() -> None:
    code = (
        "import sys, fathom.analysis.frame, fathom.report; from fathom.analysis.finding import analyse, questions; "
        "[analyse(name, []) for name in questions()]; print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
