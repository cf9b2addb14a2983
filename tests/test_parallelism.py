"""Threads, phases and layers where records are awkward: runs by default, items of two kinds, wrapped networks."""

from __future__ import annotations

from typing import Any

import pytest
from sample_records import op_row, record_of

from fathom.analysis.finding import Table
from fathom.analysis.questions import layers, parallelism, phases
from fathom.core.record import Record


def test_training_runs_with_fewer_evaluations_are_no_sweep_of_threads() -> None:
    trained = record_of("vgg", spec={"kind": "training", "evaluations": 3}, step_s=[])
    assert not parallelism.analyse([trained]).answered


def at_threads(workload: str, threads: int | None, **types: float) -> Record:
    rows = [op_row(kind, seconds) for kind, seconds in types.items()]
    return record_of(workload, rows, spec={"threads": threads})


def cells(table: Table, **wanted: Any) -> dict[str, Any]:
    rows = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    return next(row for row in rows if all(row[name] == value for name, value in wanted.items()))


def test_a_sweep_is_of_its_own_runs() -> None:
    """The default run of a machine of four threads is no run of the sweep that asked for four."""
    sweep = [at_threads("memnet", threads, MatMul=seconds) for threads, seconds in ((1, 0.78), (2, 0.8), (4, 1.0))]
    default = at_threads("memnet", None, MatMul=0.5)
    finding = parallelism.analyse([*sweep, default])
    assert "a step is 0.780 times as fast (memnet train" in finding.summary
    assert [series.name for series in finding.charts[0].series] == ["1 thread", "2 threads", "4 threads"]
    assert finding.charts[0].series[-1].y == [1000]


def test_the_worst_scaling_op_is_drawn_however_light_it_was() -> None:
    names = ("MatMul", "Conv2D", "Add", "Sub", "Mul", "Div", "Pow", "Softmax", "Tile", "Select", "Pad", "Sum", "Tanh")
    runs = [at_threads("vgg", n, **dict.fromkeys(names, 1.0 / n), Gather=0.2) for n in (1, 8)]
    finding = parallelism.analyse(runs)
    assert "The share of Gather grows most: from 2 % to 11 % (1 thread to 8" in finding.summary
    chart = finding.charts[0]
    assert len(chart.series[0].x) == parallelism.DRAWN + 1
    assert any(name.startswith("Gather,") for name in chart.series[0].x)
    assert chart.note == "13 of 14 ops: the slowest single-threaded and the worst-scaling."


def test_a_published_share_of_the_optimizer_is_beside_the_measured_one() -> None:
    finding = parallelism.analyse([at_threads("deepq", n, Conv2D=0.8 / n, ApplyRMSProp=0.2) for n in (1, 4)])
    table = next(table for table in finding.tables if table.title == "The optimizer in a training step of deepq")
    assert cells(table, threads=4)["measured (% of step)"] == pytest.approx(50)
    assert cells(table, threads=8)["published (%)"] == 7
    assert cells(table, threads=8)["measured (% of step)"] is None
    without = parallelism.analyse([at_threads("vgg", n, Conv2D=1 / n) for n in (1, 4)])
    assert not any("optimizer" in table.title for table in without.tables)


def test_items_of_different_kinds_are_not_divided() -> None:
    def timed(workload: str, phase: str, step_s: float, item: str | None) -> Record:
        steps: dict[str, Any] = {"step_s": [step_s] * 10, "warmup_s": [step_s] * 2}
        return record_of(workload, None, spec={"phase": phase}, item=item, **steps)

    alike = [timed("vgg", "train", 4.0, None), timed("vgg", "infer", 1.0, "image")]
    other = [timed("deepq", "train", 400.0, "transition"), timed("deepq", "infer", 1.0, "action")]
    finding = phases.analyse([*alike, *other])
    assert finding.summary.endswith("training takes 4 times as long as inference (vgg).")
    assert [row[0] for row in finding.tables[1].rows] == ["vgg"]
    over = finding.tables[0].columns[-1]
    assert cells(finding.tables[0], workload="deepq", phase="infer")["items/s"] == 100, "its row stays"
    assert cells(finding.tables[0], workload="deepq", phase="infer")[over] is None
    bars = {
        series.name.split(",")[0]: dict(zip(series.x, series.y, strict=True)) for series in finding.charts[0].series
    }
    assert bars == {"train": {"vgg": 1, "deepq": 1}, "infer": {"vgg": 0.25, "deepq": None}}
    assert finding.charts[0].note == "deepq has no bar for inference: its items differ from those of training."
    assert phases.analyse(alike).charts[0].note == ""
    said = "deepq: an item is one transition in training and one action in inference, so their times are not compared."
    assert said in finding.notes
    assert not any("deepq" in note for note in phases.analyse(alike).notes)


def test_the_blocks_of_a_wrapped_network_stand_apart() -> None:
    paths = [f"model.layers.{block}.{part}" for block in range(4) for part in ("attention", "dense")]
    rows = [op_row("MatMul", 0.1, layer=path) for path in paths]
    rows += [op_row("Gather", 0.1, layer="model.embed"), op_row("MatMul", 0.1, layer="head")]
    table = layers.analyse([record_of("mine:make", rows)]).tables[1]
    named = {row[2]: row[3] for row in table.rows}
    assert {f"model.layers.{block}" for block in range(4)} <= set(named)
    assert named["model.layers.0"] == pytest.approx(20)
    assert {"model.embed", "head"} <= set(named)


def test_layers_lie_below_what_wraps_the_whole_network() -> None:
    paths = ["module.encoder.first", "module.encoder.second", "module.decoder.first", "module.decoder.second"]
    table = layers.analyse([record_of("mine", [op_row("MatMul", 0.1, layer=path) for path in paths])]).tables[1]
    assert set(paths) <= {row[2] for row in table.rows}
