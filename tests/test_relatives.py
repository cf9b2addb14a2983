"""A close relative is named only where it separates: counted on the committed records, and by hand."""

from __future__ import annotations

import statistics
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from sample_records import GPU, op_row, profile_of, record_of

from fathom import published
from fathom.analysis import relatives
from fathom.analysis.questions import similarity
from fathom.analysis.relatives import CLEARLY, CLOSE, Nearest, nearest, nearest_of, nearest_published, vector_of
from fathom.analysis.selection import machine_name, on_cpu
from fathom.core.record import OpRow, Record
from fathom.core.store import read

RESULTS = Path(__file__).parents[1] / "results"
CONVOLUTIONAL, DENSE = {"alexnet", "vgg", "residual", "deepq"}, {"autoenc", "speech"}


@cache
def profiled() -> list[Record]:
    """Every profiled run of the eight that is committed: both phases, three machines, several numbers of threads."""
    found = read([RESULTS / "neoverse-n1", RESULTS / "h200"], lambda problem: None)
    return [record for record in found if record.profile and record.outcome == "ok"]


def elsewhere(record: Record, with_itself: bool) -> list[Nearest]:
    """The nearest references of a run on each other machine, its own workload among them or not."""
    found = []
    for machine in sorted({machine_name(other) for other in profiled()} - {machine_name(record)}):
        peers = {
            other.spec.workload: vector_of(other)
            for other in profiled()
            if (machine_name(other), other.spec.phase, other.spec.threads) == (machine, record.spec.phase, None)
            and (with_itself or other.spec.workload != record.spec.workload)
        }
        nearest_peer = nearest_of(vector_of(record), peers)
        assert nearest_peer is not None
        found.append(nearest_peer)
    return found


def test_the_threshold_is_how_far_one_workload_is_from_itself() -> None:
    pairs = [
        (one, other)
        for one, other in combinations(profiled(), 2)
        if (one.spec.workload, one.spec.phase) == (other.spec.workload, other.spec.phase)
        and on_cpu(one) == on_cpu(other)
    ]
    distances = [relatives.distance(vector_of(one), vector_of(other)) for one, other in pairs]
    assert len(distances) == 121
    assert statistics.quantiles(distances, n=20)[-1] == pytest.approx(CLOSE, abs=0.005)


def test_a_workload_is_found_again_on_another_machine() -> None:
    """docs/method.md states these counts."""
    found = [(run.spec.workload, each) for run in profiled() for each in elsewhere(run, with_itself=True)]
    right = [each.workload == workload for workload, each in found]
    close = [each.workload == workload for workload, each in found if each.close]
    assert (len(found), sum(right), len(close), sum(close)) == (138, 133, 114, 111)


def test_a_workload_that_is_not_among_the_references_is_related_to_its_own_kind_or_to_none() -> None:
    found = [(run.spec.workload, each) for run in profiled() for each in elsewhere(run, with_itself=False)]
    related = Counter((workload, each.workload) for workload, each in found if each.close)
    assert sum(related.values()) == 29
    assert all({one, other} <= CONVOLUTIONAL or {one, other} <= DENSE for one, other in related)


# by hand


def transformer() -> list[OpRow]:
    """A transformer's mix of op types, as on a GPU."""
    shares = {"MatMul": 0.6, "ScaledDotProductAttention": 0.15, "LayerNorm": 0.1, "GELU": 0.08, "Add": 0.07}
    return [op_row(kind, share) for kind, share in shares.items()]


def test_a_transformer_is_no_relative_of_what_is_mostly_matrix_products_too() -> None:
    among = [
        record_of("autoenc", [op_row("MatMul", 0.7), op_row("ApplyAdam", 0.2), op_row("Sigmoid", 0.1)]),
        record_of("speech", [op_row("MatMul", 0.75), op_row("RNN", 0.2), op_row("CTCLoss", 0.05)]),
        record_of("vgg", [op_row("Conv2D", 0.9), op_row("Relu", 0.1)]),
    ]
    mine = record_of("gpt", transformer())
    assert similarity.distance(vector_of(mine), vector_of(among[0])) < 0.11, "as cosine distance has it"
    for found in (nearest(mine, among), nearest_published(mine)):
        assert found is not None
        assert not found.close
        assert str(found).startswith("no close relative: distance ")


def test_inference_is_never_compared_with_training_and_the_published_rows_are_training() -> None:
    row = [op_row("Conv2D", 0.9), op_row("Relu", 0.1)]
    mine = record_of("mine", row, spec={"phase": "infer"})
    assert nearest(mine) is None
    assert nearest_published(mine) is None
    assert nearest(mine, [record_of("vgg", row)]) is None
    found = nearest(mine, [record_of("vgg", row), record_of("alexnet", row, spec={"phase": "infer"})])
    assert found == Nearest("alexnet", 0.0)
    trained = nearest(record_of("mine", row), [record_of("alexnet", row, spec={"phase": "infer"})])
    assert trained is not None
    assert trained.workload in published.op_percent(), "compared with the paper's rows"
    assert nearest(profile_of([op_row("Conv2D", 0.9)])) is None, "a profile without a backward pass is of inference"


def test_a_verdict_needs_a_small_distance_and_a_clear_second() -> None:
    assert Nearest("vgg", CLOSE, "residual", CLEARLY * CLOSE).close
    assert not Nearest("vgg", CLOSE, "residual", 0.99 * CLEARLY * CLOSE).close
    assert not Nearest("vgg", CLOSE + 0.001, "residual", 1.0).close
    assert Nearest("vgg", 0.01).close, "the only reference has no second"
    assert Nearest("vgg", 1.0, "residual", 1.0).to_json()["closest"] is None


def test_distances_are_shown_with_what_they_rest_on() -> None:
    assert str(Nearest("vgg", 0.03, "residual", 0.2)) == "closest to vgg, distance 0.030; next is residual at 0.200"
    assert str(Nearest("vgg", 0.1, "residual", 0.12)) == "no close relative: distance vgg at 0.100, residual at 0.120"
    assert str(Nearest("vgg", 0.0001)) == "closest to vgg, distance below 0.001"
    assert str(Nearest("vgg", 0.0)) == "closest to vgg, distance 0.000"


def test_distance_by_hand() -> None:
    assert relatives.distance({"Add": 3.0}, {"Add": 5.0}) == 0
    assert relatives.distance({"Add": 1.0}, {"Mul": 1.0}) == 1
    assert relatives.distance({"Add": 1.0, "Mul": 3.0}, {"Add": 1.0}) == pytest.approx(0.5)
    assert relatives.distance({"Add": 0.0}, {"Add": 1.0}) == 1
    assert nearest_of({"Add": 1.0}, {}) is None


def test_communication_is_left_out_as_the_references_run_on_one_device() -> None:
    row = [op_row("Conv2D", 0.9), op_row("Relu", 0.1)]
    found = nearest(record_of("mine", [*row, op_row("AllReduce", 3.0)]), [record_of("vgg", row)])
    assert found is not None
    assert found.workload == "vgg"
    assert found.distance == pytest.approx(0, abs=1e-12)


def test_rows_of_older_records_have_todays_types() -> None:
    gathered = record_of("mine", [OpRow(**{**vars(op_row("Gather", 1.0)), "op": "aten::embedding"})])
    assert vector_of(gathered) == pytest.approx({"Embedding": 1.0})
    assert vector_of(record_of("mine", [op_row("LSTM", 1.0)])) == pytest.approx({"RNN": 1.0})


def test_the_question_answers_for_inference_apart_from_training() -> None:
    row = [op_row("Conv2D", 0.9, place=GPU), op_row("Relu", 0.1, place=GPU)]
    runs = [
        record_of(name, row, place=GPU, spec={"phase": phase})
        for name in ("vgg", "alexnet")
        for phase in ("train", "infer")
    ]
    finding = similarity.analyse(runs)
    assert [chart.title for chart in finding.charts][:2] == ["Training on NVIDIA H200", "Inference on NVIDIA H200"]
    table = [dict(zip(finding.tables[0].columns, row, strict=True)) for row in finding.tables[0].rows]
    assert [(row["workload"], row["phase"]) for row in table] == [
        ("vgg", "train"), ("alexnet", "train"), ("vgg", "infer"), ("alexnet", "infer"),
    ]  # fmt: skip
    assert all(row["nearest published row"] is None for row in table if row["phase"] == "infer")
    alone = similarity.analyse([record_of("vgg", row, place=GPU, spec={"phase": "infer"})])
    assert alone.summary == "Only vgg was measured in inference on NVIDIA H200: nothing to compare it with."
