"""Table I and Table II of the 2016 paper and Fig. 2 of the Minsky study, each beside what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sample_records import GPU, MACHINES, op_row, record_of

from fathom import published
from fathom.analysis.finding import Finding, analyse
from fathom.analysis.questions.scalability import rank_correlation
from fathom.core.fingerprint import Gpu
from fathom.core.record import Record


def rows(finding: Finding, table: int) -> list[dict[str, Any]]:
    found = finding.tables[table]
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def row(finding: Finding, table: int, **where: str) -> dict[str, Any]:
    (found,) = [each for each in rows(finding, table) if where.items() <= each.items()]
    return found


# Table I


def test_the_survey_is_the_printed_one() -> None:
    papers = published.survey()
    assert [paper.layers for paper in papers] == [4, 4, 3, 3, 5, 16, 7, 3, 13, 6, 9, 4, 26, 2, 5, 5, 34]
    assert [paper.reference for paper in papers] == [8, 9, 10, 11, 12, 14, 21, 24, 26, 35, 38, 39, 40, 44, 47, 49, None]
    recurrent = [paper.reference for paper in papers[:-1] if "recurrent" in paper.features]
    assert recurrent == [24, 44], "as the text of the paper says"
    marks = {feature: sum(feature in paper.features for paper in papers[:-1]) for feature in papers[-1].features}
    assert marks == {
        "fully connected": 12, "convolutional": 10, "recurrent": 2,
        "inference": 16, "supervised": 7, "unsupervised": 0, "reinforcement": 0,
        "vision": 13, "speech": 2, "language modeling": 4, "function approximation": 2,
    }  # fmt: skip


def test_coverage_is_that_of_the_runs_and_not_of_the_suite() -> None:
    trained, inferred = record_of("vgg"), record_of("speech", spec={"phase": "infer"})
    finding = analyse("survey", [trained, inferred, record_of("deepq", outcome="failed"), record_of("mine")])
    assert finding.summary.startswith(
        "2 workloads measured here: 7 of the 11 features of Table I; the 16 papers that it surveys: 9, none with "
        "unsupervised or reinforcement learning. The deepest network has 19 layers here and 26 there."
    )
    assert (
        "Not measured here: unsupervised, reinforcement, language modeling and function approximation."
        in finding.summary
    )
    supervised = row(finding, 0, feature="supervised")
    assert (supervised["papers of 16"], supervised["workloads here"], supervised["which"]) == (7, 1, "vgg")
    assert row(finding, 0, feature="inference")["which"] == "speech"
    assert len(finding.tables[1].rows) == 16 + 2
    assert any("mine" in note for note in finding.notes)


# Table II


def test_the_code_of_2016_covers_the_eight() -> None:
    assert set(published.code_of_2016()) == {each.name for each in published.workloads()}


def test_networks_beside_table_2() -> None:
    layers = [op_row("Conv2D", 0.1, layer=f"conv{index}") for index in range(5)]
    other = [
        op_row("Relu", 0.1, layer="relu"),
        op_row("Conv2DBackFilter", 0.1, layer="conv9"),
        op_row("MatMul", 0.1, layer=""),
    ]
    run = record_of("alexnet", [*layers, op_row("MatMul", 0.1, layer="full"), *other], parameters=60_965_224)
    finding = analyse("suite", [run])
    found = row(finding, 0, workload="alexnet")
    assert (found["layers, Table II"], found["layers, code of 2016"], found["modules with products, ours"]) == (5, 8, 6)
    assert (found["parameters, code of 2016"], found["parameters, ours"]) == (61_104_937, 60_965_224)
    assert "alexnet (5 and 8)" in finding.summary
    assert finding.summary.endswith("within 1 % of that of the code for 1 of 1."), "none is far from it"
    larger = analyse("suite", [record_of("alexnet", parameters=122_209_874)]).summary
    assert larger.endswith("for 0 of 1, and furthest for alexnet: 122,209,874 against 61,104,937, 2 times.")
    assert row(finding, 1, workload="alexnet")["training step (ms)"] == 1000


def test_a_second_network_of_training_is_not_counted() -> None:
    one, two = (op_row("Conv2D", 0.1, layer=layer) for layer in ("conv", "target.conv"))
    runs = [record_of("deepq", [one, two]), record_of("deepq", [one], spec={"phase": "infer"})]
    assert row(analyse("suite", runs), 0, workload="deepq")["modules with products, ours"] == 1


def test_a_network_that_was_not_in_the_suite_has_no_published_cells() -> None:
    found = row(analyse("suite", [record_of("mine", parameters=7)]), 0, workload="mine")
    assert (found["layers, Table II"], found["parameters, ours"], found["the code of 2016"]) == (
        None,
        7,
        "not in the 2016 suite",
    )


# Fig. 2 and section 4.6 of the Minsky study


def bound(workload: str, cores: int, step_s: float) -> Record:
    spec = {"cores": tuple(range(cores)), "threads": cores}
    return record_of(
        workload, machine=MACHINES[GPU], device="cpu", step_s=[step_s] * 10, warmup_s=[step_s] * 2, spec=spec
    )


def whole(workload: str, step_s: float, device: str, **spec: Any) -> Record:
    steps: dict[str, Any] = {"step_s": [step_s] * 10, "warmup_s": [step_s] * 2}
    return record_of(workload, place=GPU, device=device, spec=spec, **steps)


def scaled(**efficiency: float) -> list[Record]:
    return [
        run
        for name, share in efficiency.items()
        for run in (bound(name, 1, 8.0), bound(name, 4, 8.0 / (4 * share)), whole(name, 2.0, "cpu"))
    ]


def test_scaling_beside_the_published_statement() -> None:
    finding = analyse("scalability", scaled(vgg=0.8, memnet=0.2, deepq=0.5))
    assert "is 80 % (vgg) for the workloads that scale well in the Minsky study, and 20 % (memnet)" in finding.summary
    assert "for those that do not: the same order." in finding.summary
    assert row(finding, 0, workload="deepq")["published, Fig. 2"] == "no statement"
    assert row(finding, 1, workload="vgg")["4 cores (%)"] == pytest.approx(80)
    assert "not the same order" in analyse("scalability", scaled(vgg=0.2, memnet=0.8)).summary


def test_a_gpus_gain_is_of_the_same_work_on_the_same_host() -> None:
    records = scaled(vgg=0.8, residual=0.7, deepq=0.4, speech=0.3, memnet=0.2)
    gains = {"vgg": 16.0, "residual": 8.0, "deepq": 4.0, "speech": 2.0, "memnet": 0.5}
    records += [whole(name, 2.0 / gain, "cuda:0") for name, gain in gains.items()]
    records += [whole("vgg", 0.001, "cuda:0", preset="paper"), whole("vgg", 0.001, "cuda:0", precision="bf16")]
    finding = analyse("scalability", records)
    found = {each["workload"]: each["GPU over CPU, step"] for each in rows(finding, 0)}
    assert found == {name: pytest.approx(gain) for name, gain in gains.items()}
    assert "1.00 over 5 workloads (p = " in finding.summary
    assert row(finding, 0, workload="vgg")["published, program"] == pytest.approx(6.03, abs=0.01)
    (chart,) = finding.charts
    shown = {point.name: (point.workload, *point.x, *point.y, *point.text) for point in chart.series}
    assert shown["memnet"] == ("memnet", pytest.approx(20), pytest.approx(0.5), "published: does not scale")
    assert list(shown) == ["residual", "vgg", "memnet", "speech", "deepq"], "each point has its name in the legend"


def test_of_two_cards_in_one_host_the_faster_one_counts_in_whatever_order() -> None:
    cards = [Gpu(name="NVIDIA H200", uuid="GPU-a"), Gpu(name="Tesla T4", uuid="GPU-b")]
    both = [whole("vgg", 2.0 / gain, f"cuda:{number}") for number, gain in enumerate((16.0, 3.0))]
    both = [
        replace(run, machine=replace(run.machine, gpus=cards), gpu_uuid=card.uuid)
        for run, card in zip(both, cards, strict=True)
    ]
    for records in (both, both[::-1]):
        finding = analyse("scalability", [*scaled(vgg=0.8), *records])
        assert row(finding, 0, workload="vgg")["GPU over CPU, step"] == pytest.approx(16)


def test_inference_scales_beside_no_published_statement() -> None:
    trained = [*scaled(vgg=0.8, memnet=0.2), whole("vgg", 0.5, "cuda:0")]
    inferred = [replace(run, spec=replace(run.spec, phase="infer")) for run in trained]
    finding = analyse("scalability", inferred)
    found = row(finding, 0, workload="vgg infer")
    assert (found["published, Fig. 2"], found["published, program"]) == ("no statement", None)
    assert (found["efficiency (%)"], found["GPU over CPU, step"]) == (pytest.approx(80), pytest.approx(4))
    both = analyse("scalability", [*trained, *inferred])
    assert both.summary == analyse("scalability", trained).summary, "inference is not pooled with training"


def test_an_order_of_overlapping_intervals_is_called_so() -> None:
    def wide(run: Record) -> Record:
        return replace(run, step_s=[each * (0.5 + at / 5) for at, each in enumerate(run.step_s)])

    summary = analyse("scalability", [wide(run) for run in scaled(vgg=0.5, memnet=0.45)]).summary
    assert "for those that do not: the same order, but their intervals overlap." in summary


def test_two_hosts_are_not_ranked_together() -> None:
    here = scaled(vgg=0.8, memnet=0.2)
    there = [replace(run, machine=replace(run.machine, cpu=replace(run.machine.cpu, name="Other CPU"))) for run in here]
    slow = [replace(run, step_s=[4 * each for each in run.step_s]) if run.spec.cores == (0,) else run for run in there]
    summary = analyse("scalability", [*here, *slow]).summary
    assert summary.count("the same order.") == 2, "vgg of one host scales worse than memnet of the other"
    assert "Other CPU: Parallel efficiency on the most cores is 320 % (vgg on Other CPU)" in summary


def test_few_workloads_have_no_rank_correlation() -> None:
    assert rank_correlation([(1.0, 2.0)] * 3) is None
    assert rank_correlation([(1.0, 2.0), (1.0, 3.0), (1.0, 1.0), (1.0, 5.0)]) is None
    assert rank_correlation([(1.0, 2.0), (2.0, 3.0), (3.0, None), (4.0, 5.0), (5.0, 4.0)]) is None
    found = rank_correlation([(1.0, 2.0), (2.0, 3.0), (3.0, None), (4.0, 5.0), (5.0, 4.0), (6.0, 9.0)])
    assert found is not None
    assert found == pytest.approx((0.9, 5, 0.037), abs=1e-3)
