"""Machines are compared on equal work: same network, batch, precision and data; else per item, and no headline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sample_records import GPU, op_row, record_of

from fathom.analysis.equal_work import work_of
from fathom.analysis.finding import Finding, Table, analyse
from fathom.core.fingerprint import Cpu, Machine
from fathom.core.record import Record
from fathom.experiments.study import COMMON, plan
from fathom.report import runs

CPU_NAME, GPU_NAME = "Laptop CPU, 4 cores", "NVIDIA H200"


def timed(workload: str, step_s: float, items: int, place: str = "laptop", phase: str = "train", **more: Any) -> Record:
    spec = {"phase": phase, **more.pop("spec", {})}
    steps: dict[str, Any] = {"warmup_s": [step_s] * 2, "step_s": [step_s] * 10, "items_per_step": items}
    return record_of(workload, None, place=place, spec=spec, **steps, **more)


def table(finding: Finding, title: str) -> list[dict[str, Any]]:
    (found,) = [each for each in finding.tables if each.title.startswith(title)]
    return rows(found)


def rows(found: Table) -> list[dict[str, Any]]:
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


PAPER = {"preset": "paper"}


def both_presets() -> list[Record]:
    """Of two workloads: small on both machines, and the paper's sizes on the GPU, where an item takes a thousandth."""
    return [
        timed("vgg", 8.0, 2),
        timed("vgg", 2.0, 2, phase="infer"),
        timed("vgg", 0.5, 2, GPU),
        timed("vgg", 0.25, 2, GPU, phase="infer"),
        timed("vgg", 1.0, 256, GPU, spec=PAPER),
        timed("vgg", 0.5, 256, GPU, spec=PAPER, phase="infer"),
        timed("memnet", 1.0, 32),
        timed("memnet", 4.0, 32, GPU),
        timed("memnet", 4.0, 32, GPU, spec=PAPER),
    ]


def test_the_headline_is_of_the_work_that_both_machines_did() -> None:
    finding = analyse("phases", both_presets())
    assert finding.summary.startswith(
        f"On the same work, training on {GPU_NAME} is 2 times as fast as on {CPU_NAME} (geometric mean of 2; 0.250 for "
        "memnet to 16 for vgg)."
    )
    speeds = table(finding, "Speed on the same work")
    shown = [
        (row["workload"], row["phase"], row["preset"], row["items per step"], row["times as fast"]) for row in speeds
    ]
    assert shown == [
        ("memnet", "train", "small", 32, pytest.approx(0.25)),
        ("vgg", "train", "small", 2, pytest.approx(16)),
        ("vgg", "infer", "small", 2, pytest.approx(8)),
        ("geometric mean of 2", "train", None, None, pytest.approx(2)),
    ]
    assert not [each for each in finding.tables if each.title.startswith("Different work")]


def test_figure_5_has_one_batch_for_each_workload() -> None:
    (chart,) = analyse("phases", both_presets()).charts
    bars = {series.name: dict(zip(series.x, series.y, strict=True)) for series in chart.series}
    assert bars == {
        f"train, {CPU_NAME}": {"memnet": 1, "vgg": 1},
        f"infer, {CPU_NAME}": {"memnet": None, "vgg": pytest.approx(0.25)},
        f"train, {GPU_NAME}": {"memnet": pytest.approx(4), "vgg": pytest.approx(1 / 16)},
        f"infer, {GPU_NAME}": {"memnet": None, "vgg": pytest.approx(1 / 32)},
    }


def test_machines_that_did_other_work_share_a_sentence() -> None:
    others = [timed("vgg", 1.0, 2, GPU, spec={"precision": precision}) for precision in ("bf16", "tf32")]
    summary = analyse("phases", [timed("vgg", 8.0, 2), *others]).summary
    assert summary.count("so no speed-up is given") == 1
    named = summary.split(" did no work in common with ")[0].split(" / ")
    assert [name.rpartition(", ")[2] for name in named] == ["bf16", "tf32"]


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ({"items": 256, "spec": PAPER}, "preset and items per step"),
        ({"items": 64, "spec": {"batch": 64}}, "items per step"),
        ({"items": 2, "spec": {"precision": "bf16"}}, "precision"),
        ({"items": 2, "spec": {"data": "sets/imagenet"}}, "data"),
        ({"items": 2, "spec": {"options": {"side": 64}}}, "options"),
    ],
)
def test_different_work_is_no_headline_and_has_both_batches_in_its_row(other: dict[str, Any], differs: str) -> None:
    items, spec = other["items"], other["spec"]
    finding = analyse("phases", [timed("vgg", 8.0, 2), timed("vgg", 1.0, items, GPU, spec=spec)])
    assert "times as fast" not in finding.summary
    assert "did no work in common, so no speed-up is given" in finding.summary
    assert not [each for each in finding.tables if each.title.startswith("Speed on the same work")]
    (row,) = table(finding, "Different work, compared per item")
    assert (row["items per step"], row["items per step of the base"], row["differs in"]) == (items, 2, differs)
    assert row["items/s over the base's"] == pytest.approx(8 / 2 * items)
    (chart,) = finding.charts
    assert [series.name for series in chart.series] == [f"train, {CPU_NAME}"], "no bar for other work"


def test_how_the_work_was_done_may_differ() -> None:
    one = timed("vgg", 1.0, 2, spec={"batch": 2, "data": "/here/imagenet", "seed": 3, "threads": 2})
    other = timed("vgg", 1.0, 2, GPU, spec={"data": "/there/imagenet", "engine": "cudagraph", "steps": 50})
    assert work_of(one) == work_of(other)
    assert work_of(replace(one, items_per_step=None)) is None


def test_a_single_workload_has_the_interval_of_its_launches() -> None:
    launches = [timed("vgg", seconds, 2, GPU) for seconds in (0.4, 0.5, 0.6)]
    finding = analyse("phases", [timed("vgg", 8.0, 2), *launches])
    (row,) = table(finding, "Speed on the same work")
    assert row["times as fast"] == pytest.approx(16)
    assert row["95 % from"] < 16 < row["95 % to"]
    assert (row["launches"], row["launches of the base"]) == (3, 1)
    assert "(vgg; 95 % interval " in finding.summary


def test_training_and_inference_are_compared_at_one_batch() -> None:
    unlike = [timed("vgg", 8.0, 2), timed("vgg", 1.0, 1, phase="infer")]
    assert table(analyse("phases", unlike), "Training over inference") == []
    (row,) = table(analyse("phases", [*unlike, timed("vgg", 2.0, 2, phase="infer")]), "Training over inference")
    assert (row["items per step"], row["training/inference"]) == (2, pytest.approx(4))


def test_a_study_of_the_papers_sizes_times_the_common_preset_on_every_device() -> None:
    specs = plan(["vgg", "memnet"], "paper", ["cpu", "cuda:0", "cuda:1"])
    common = {
        (spec.workload, spec.phase, spec.device) for spec in specs if spec.preset == COMMON and spec.threads is None
    }
    assert common == {
        (name, phase, device)
        for name in ("vgg", "memnet")
        for phase in ("train", "infer")
        for device in ("cpu", "cuda:0", "cuda:1")
    }
    on_card = [spec for spec in specs if (spec.device, spec.preset) == ("cuda:0", COMMON)]
    assert {(spec.kind, spec.budget_s) for spec in on_card} == {("timed", 2.0)}
    assert len({spec.id for spec in specs}) == len(specs)


@pytest.mark.parametrize("devices", [["cuda:0"], ["cpu"]])
def test_so_does_a_study_of_one_device(devices: list[str]) -> None:
    presets = {(spec.preset, spec.kind) for spec in plan(["vgg"], "paper", devices)}
    assert presets == {("paper", "profiled"), (COMMON, "timed")}


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_one_preset_on_all_devices_needs_no_other(preset: str) -> None:
    assert {spec.preset for spec in plan(["vgg"], preset, ["cpu", "cuda:0"])} == {preset}


def test_thread_sweeps_of_different_work_say_so() -> None:
    old = Machine(cpu=Cpu(name="Old CPU", logical_cores=2, affinity=[0, 1]))

    def at(threads: int, items: int, **more: Any) -> Record:
        rows = [op_row("Conv2D", items / threads)]
        return record_of("deepq", rows, spec={"threads": threads, "batch": items}, items_per_step=items, **more)

    unlike = [at(threads, 4) for threads in (1, 4)] + [at(threads, 32, machine=old) for threads in (1, 2)]
    finding = analyse("parallelism", unlike)
    assert f"From 1 to 4 threads on {CPU_NAME}, a step is 4 times as fast (deepq train)." in finding.summary
    assert "From 1 to 2 threads on Old CPU, 2 cores, a step is 2 times as fast (deepq train)." in finding.summary
    assert any(note.startswith("Different work on different machines") for note in finding.notes)
    alike = [at(threads, 4) for threads in (1, 4)] + [at(threads, 4, machine=old) for threads in (1, 2)]
    assert not any(note.startswith("Different work") for note in analyse("parallelism", alike).notes)


def test_the_results_table_of_a_report_says_how_large_a_step_is() -> None:
    headline = rows(runs.headline([timed("vgg", 8.0, 2), timed("vgg", 1.0, 256, GPU, spec=PAPER)]))
    assert [(row["preset"], row["items/step"]) for row in headline] == [("small", 2), ("paper", 256)]
