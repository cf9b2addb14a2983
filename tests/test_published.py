"""The published tables are read whole, add up as printed, and none is without a source."""

from __future__ import annotations

from importlib.resources import files

import pytest

from fathom import published
from fathom.trace.taxonomy import group_of


def test_every_table_has_a_source_and_every_source_a_table() -> None:
    names = [entry.name for entry in (files("fathom") / "published").iterdir()]
    tables = {name.removesuffix(".csv") for name in names if name.endswith(".csv")}
    assert tables == set(published.SOURCES)


def test_row_sums_of_figure_3() -> None:
    sums = {workload: sum(row.values()) for workload, row in published.op_percent().items()}
    assert list(sums.values()) == [98, 93, 99, 96, 99, 98, 98, 98]
    assert sums["memnet"] == 93


def test_columns_of_figure_3_lie_in_classes_one_after_the_other() -> None:
    for row in published.op_percent().values():
        assert "".join(map(group_of, row)) == "AAAAAABCCCDDDEFFGGGGGG"


def test_the_eight_are_the_same_in_table_2_and_figure_3() -> None:
    facts = {each.name: each for each in published.workloads()}
    assert set(facts) == set(published.op_percent())
    assert (facts["residual"].year, facts["residual"].layers, facts["speech"].style) == (2015, 34, "Recurrent, Full")


def test_minsky_sections_add_up() -> None:
    """MAIN is at least INIT + SETUP + RUN and at most WALL, in all 14 rows."""
    rows = published.sections()
    assert len(rows) == 14
    for row in rows.values():
        assert 0 <= row.main - (row.init + row.setup + row.run) < 0.005
        assert row.main <= row.wall
    assert rows["residual", "CPU"].wall / rows["residual", "CPU+GPU"].wall == pytest.approx(12.36, abs=0.005)


def test_minsky_names_are_ours() -> None:
    assert set(published.gpu_efficiency()) == set(published.op_percent()) - {"speech"}  # which they could not run
    assert published.gpu_efficiency()["alexnet"].kernel_over_api_time == 0.4298


def test_a_thread_count_that_was_not_measured_is_absent() -> None:
    times = published.thread_seconds()
    assert list(times["Torch"]) == [1, 2, 4]
    assert times["Caffe"][8] == 15.444


def test_means_of_the_babi_errors_are_the_printed_ones() -> None:
    table = published.babi_error_percent()
    tasks = [table[str(task)] for task in range(1, 21)]
    for variant, printed in table["mean_1k"].items():
        assert sum(task[variant] for task in tasks) / 20 == pytest.approx(printed, abs=0.11), variant


def test_reference_models() -> None:
    sizes = {model.name: model.parameters for model in published.cookbook_models()}
    assert sizes["VGG-16"] == 138_357_544
    unknown = [model.name for model in published.dlbs_models() if model.parameters is None]
    assert unknown == ["inception_resnet_v2", "deep_speech2 (MXNet proxy)"]
