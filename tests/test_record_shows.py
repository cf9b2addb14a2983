"""A record shows itself: as a few lines, a table in a notebook, a data frame; and says nothing that is not known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_records import GPU, failed_record, op_row, record_of

import fathom
from fathom.analysis.frame import frame, op_frame
from fathom.analysis.questions import variance
from fathom.core import tables
from fathom.core.errors import BadOption, UnknownName
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.report.method import method

OWN: dict[str, Any] = {"source": "model", "preset": "own", "seed": None, "precision": "bf16", "kind": "profiled"}


def shown(record: Record) -> dict[str, str]:
    """The lines below the title, by what stands before the first two spaces."""
    lines = [line.strip().split("  ", 1) for line in str(record).splitlines()[1:]]
    return {name: value.strip() for name, value in lines}


def test_a_record_is_printed_in_a_few_lines() -> None:
    rows = [op_row("MatMul", 0.6, flop=3e9), op_row("MatMul", 0.1, flop=1e9), op_row("Add", 0.1, flop=None)]
    record = record_of("mine", rows, spec=OWN, outside_s=0.2, parameters=1234, step_s=[0.002, 0.001, 0.004])
    assert str(record).splitlines()[0] == "mine training, bf16"
    assert shown(record) == {
        "device": "Laptop CPU, 4 cores (cpu, 4 threads)",
        "step time": "2 ms (median of 3 steps)",
        "throughput": "5e+04 items/s at 100 per step",
        "parameters": "1,234",
        "work": "4 GFLOP per step",
        "profiled step": "MatMul 70 %, Add 10 %, outside ops 20 %",
    }


def test_what_is_not_known_is_not_shown() -> None:
    assert list(shown(failed_record())) == ["device", "failed"]
    bare = record_of("mine", spec=OWN | {"precision": None}, step_s=[], items_per_step=None)
    assert str(bare).splitlines() == ["mine training", "  device  Laptop CPU, 4 cores (cpu, 4 threads)"]
    gpu = record_of("mine", [op_row("MatMul", 0.5, place=GPU)], place=GPU)
    assert shown(gpu)["device"] == "NVIDIA H200 (cuda:0)"
    noted = replace(bare, notes=["the loss is nan in the warm-up"])
    assert shown(noted)["note"] == "the loss is nan in the warm-up"


def test_a_notebook_shows_the_same_and_nothing_of_a_users_text_is_markup() -> None:
    record = record_of("<script>x</script>", [op_row("<b>", 1.0)], notes=["<i>&"])
    page = record._repr_html_()
    for name, value in shown(record).items():
        assert f">{name}</th>" in page
        if "<" not in value:
            assert value in page
    for tag in ("<script>", "<b>", "<i>"):
        assert tag not in page
    assert "&lt;script&gt;" in page


def test_every_committed_record_can_be_shown() -> None:
    records = list(fathom.Store(Path(__file__).parents[1] / "results" / "h200").records())
    assert len(records) > 10
    for record in records:
        assert len(str(record).splitlines()) >= 2
        assert record._repr_html_().startswith("<table>")


def test_a_frame_has_the_op_rows() -> None:
    record = record_of("mine", [op_row("MatMul", 0.6, flop=3.0), op_row("Add", 0.1, flop=None)])
    table = record.frame()
    assert dict(table.dtypes.astype(str)) == tables.OP_COLUMNS
    assert list(table["seconds"]) == [0.6, 0.1]
    assert bool(table["flop"].isna()[1])
    assert table.equals(op_frame([record]))
    assert len(record_of("mine").frame()) == 0


def test_what_a_user_brought_has_no_seed_no_synthetic_data_and_no_name_to_repeat() -> None:
    own, vgg = record_of("mine", spec=OWN), record_of("vgg")
    assert "fathom repeat --runs" in variance.missing([own], [])[0]
    assert "fathom repeat vgg --runs" in variance.missing([own, vgg], [])[0]
    assert dict(method([own]))["Data"] == "1 run had batches of the user's own."
    both = dict(method([own, vgg]))["Data"]
    assert both.startswith("All data are synthetic")
    assert both.endswith("1 run had batches of the user's own.")
    row = frame([own]).iloc[0]
    assert (row["source"], row["preset"], row["precision"]) == ("model", "own", "bf16")
    assert {"seed", "data"} <= {name for name, missing in row.isna().items() if missing}


def test_only_what_a_user_brought_may_have_other_precisions_and_no_seed() -> None:
    for precision in ("fp64", "mixed", None):
        assert RunSpec(workload="mine", source="model", precision=precision, seed=None).precision == precision
        with pytest.raises(UnknownName, match=f"no precision '{precision}'"):
            RunSpec(workload="vgg", precision=precision)
    with pytest.raises(BadOption, match="a workload needs a seed"):
        RunSpec(workload="vgg", seed=None)
    with pytest.raises(UnknownName, match="no source of a run 'models'; did you mean model"):
        RunSpec(workload="vgg", source="models")
    assert RunSpec(workload="vgg").id == RunSpec(workload="vgg", source="workload").id
    assert "source" not in RunSpec(workload="vgg").non_defaults(), "an older Fathom does not know it"
