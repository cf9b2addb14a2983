"""A workload measured where no reference workload was is clustered with those of another machine, and says so."""

from __future__ import annotations

import pytest
from sample_records import GPU, LAPTOP, op_row, record_of

from fathom import published
from fathom.analysis.questions import similarity
from fathom.analysis.relatives import nearest_measured
from fathom.analysis.selection import select
from fathom.core.fingerprint import Cpu, Gpu, Machine
from fathom.core.record import Record

OTHER_GPU = Machine(cpu=Cpu(name="Server CPU", logical_cores=16), gpus=[Gpu(name="NVIDIA A10")])


def references(place: str) -> list[Record]:
    return [
        record_of(name, [op_row(kind, percent, place=place) for kind, percent in row.items() if percent], place=place)
        for name, row in published.op_percent().items()
    ]


def test_another_workload_is_clustered_with_references_on_the_same_kind_of_device() -> None:
    mine = record_of("mine:make", [op_row("MatMul", 1.0, place=GPU)], place=GPU, machine=OTHER_GPU)
    finding = similarity.analyse([mine, *references(GPU), *references(LAPTOP)])
    tree = next(chart for chart in finding.charts if chart.title == "Training on NVIDIA H200")
    assert "mine:make" in {text for series in tree.series for text in series.text}
    assert tree.note == "mine:make was measured on NVIDIA A10, where no reference workload was."
    assert "mine:make, measured on NVIDIA A10 without reference workloads: " in finding.summary
    assert "Only" not in finding.summary
    laptop = next(chart for chart in finding.charts if chart.title == "Training on Laptop CPU, 4 cores")
    assert "mine:make" not in {text for series in laptop.series for text in series.text}
    table = finding.tables[0]
    row = next(dict(zip(table.columns, row, strict=True)) for row in table.rows if row[0] == "mine:make")
    assert (row["machine"], row["nearest measured"], row["measured on"]) == ("NVIDIA A10", "speech", "NVIDIA H200")


def test_another_workload_whose_name_is_taken_names_its_machine() -> None:
    here = record_of("mine", [op_row("MatMul", 1.0, place=GPU)], place=GPU)
    there = record_of("mine", [op_row("Add", 1.0, place=GPU)], place=GPU, machine=OTHER_GPU)
    tree = similarity.analyse([here, there, *references(GPU)]).charts[0]
    assert {"mine", "mine (NVIDIA A10)"} <= {text for series in tree.series for text in series.text}


def test_a_machine_with_some_references_keeps_its_own_dendrogram() -> None:
    mine = record_of("mine", [op_row("MatMul", 1.0, place=GPU)], place=GPU, machine=OTHER_GPU)
    speech = record_of("speech", [op_row("MatMul", 1.0, place=GPU)], place=GPU, machine=OTHER_GPU)
    titles = [chart.title for chart in similarity.analyse([mine, speech, *references(GPU)]).charts]
    assert titles == ["Training on NVIDIA A10", "Training on NVIDIA H200", "Published in 2016"]


def test_a_workload_that_mostly_waits_weighs_no_less_in_a_cluster() -> None:
    """memnet on a GPU has 5 % of its step in ops."""
    mixes = {
        "vgg": {"Conv2D": 60, "MatMul": 40},
        "memnet": {"Conv2D": 40, "MatMul": 60},
        "speech": {"Add": 50, "MatMul": 50},
    }

    def farthest(outside_s: float) -> float:
        rows = {name: [op_row(kind, percent) for kind, percent in mix.items()] for name, mix in mixes.items()}
        records = [record_of(name, rows[name], outside_s=outside_s if name == "memnet" else 0.0) for name in mixes]
        return similarity.linkage(similarity._percentages(select(records, profiled=True).groups))[-1].distance

    assert farthest(1900.0) == pytest.approx(farthest(0.0))


def test_a_distance_to_a_published_row_counts_fused_ops_as_in_2016() -> None:
    row = published.op_percent()["speech"]
    fused = [op_row("LSTM" if kind == "MatMul" else kind, percent) for kind, percent in row.items() if percent]
    finding = similarity.analyse([record_of("speech", fused)])
    assert finding.tables[0].rows[0][-1] == 0
    assert any("counted as MatMul" in note for note in finding.notes)


def test_without_references_of_its_kind_a_workload_is_drawn_on_another_kind_but_has_no_nearest() -> None:
    mine = record_of("mine", [op_row("MatMul", 1.0)])
    tree = similarity.analyse([mine, *references(GPU)]).charts[0]
    assert (tree.title, tree.note) == (
        "Training on NVIDIA H200",
        "mine was measured on Laptop CPU, 4 cores, where no reference workload was.",
    )
    assert nearest_measured(mine, references(GPU)) is None
