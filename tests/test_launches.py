"""Whole programs compared: which launches, the study's Table 2 beside ours, and how launches differ."""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import replace
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_records import GPU, MACHINES, failed_record, launch, op_row, record_of, sections_of
from scipy import stats

from fathom import published
from fathom.analysis.finding import Finding, Table, analyse
from fathom.analysis.questions import sections, variance
from fathom.analysis.questions._launches import launched, same_work
from fathom.analysis.statistics import distribution
from fathom.core.fingerprint import Gpu
from fathom.core.record import COMPILED_ANEW, Record, Sections
from fathom.machine.host import import_notes

SERVER, H200 = "Server CPU, 16 cores", "NVIDIA H200"


def cells(table: Table, **where: Any) -> dict[str, Any]:
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    (found,) = [row for row in rows if all(row[name] == value for name, value in where.items())]
    return found


def table(finding: Finding, title: str) -> Table:
    (found,) = [each for each in finding.tables if each.title.startswith(title)]
    return found


def launches(workload: str, *walls: float, gpu: bool = False, **spec: Any) -> list[Record]:
    return [launch(workload, wall_s, gpu=gpu, spec=spec) for wall_s in walls]


def profiled(workload: str) -> Record:
    """As a study leaves it: its wall time has the profiled pass in it, its run the length of a budget."""
    spec = {"kind": "profiled", "budget_s": 6.0, "steps": 200}
    return record_of(workload, [op_row("Add", 1.0)], spec=spec, sections=sections_of(100.0))


# which launches


def test_the_modes_of_one_machine_are_one_work() -> None:
    (work,), notes = same_work([*launches("vgg", 2.0, gpu=True), *launches("vgg", 10.0, 12.0)])
    assert [(each.mode, each.machine, len(each.runs)) for each in work.modes] == [
        ("CPU", SERVER, 2),
        ("CPU+GPU", H200, 1),
    ]
    assert (work.host, notes) == (SERVER, [])


@pytest.mark.parametrize(
    "other", [{"preset": "tiny"}, {"batch": 4}, {"steps": 11}, {"precision": "bf16"}, {"threads": 2}], ids=str
)
def test_other_work_is_not_set_against_and_the_reason_is_told(other: dict[str, Any]) -> None:
    (work,), notes = same_work([*launches("vgg", 10.0), *launches("vgg", 1.0, gpu=True, **other)])
    assert [each.mode for each in work.modes] == ["CPU"]
    (note,) = notes
    assert note.startswith("Not compared, as the other mode did different work: vgg train on NVIDIA H200")
    assert "small, 12 steps" in note


def test_training_and_inference_are_two_works() -> None:
    works, _ = same_work([*launches("vgg", 10.0), *launches("vgg", 1.0, gpu=True, phase="infer")])
    assert [(work.phase, len(work.modes)) for work in works] == [("train", 1), ("infer", 1)]


def test_a_gpu_is_not_compared_with_the_cpu_of_another_machine() -> None:
    laptop = record_of("vgg", None, sections=sections_of(50.0), spec={"device": "cpu"})
    finding = sections.analyse([laptop, *launches("vgg", 1.0, gpu=True)])
    assert {row[2] for row in table(finding, "Sections over").rows} == {"CPU"}
    assert not any(each.title.startswith("Wall time of CPU+GPU") for each in finding.tables)


def test_what_was_launched_often_wins_over_a_fuller_single_run() -> None:
    often, once = launches("vgg", 1.0, 2.0, 3.0), launches("vgg", 9.0, preset="paper")
    (work,), (note,) = same_work([*once, *often])
    assert work.modes[0].runs == often
    assert note.startswith(
        "Not shown: launches superseded by more complete or more often repeated ones: vgg train on Server"
    )
    assert "paper, 12 steps" in note


def test_a_profiled_pass_or_a_budget_is_not_a_whole_program() -> None:
    budgeted = launches("memnet", 5.0, budget_s=3.0)
    assert same_work([profiled("vgg"), *budgeted])[0] == []
    assert launched([profiled("vgg")])[0].seconds("wall_s") == []
    assert launched([profiled("vgg")])[0].seconds("init_s") == [10.0]


# sections


def test_sections_are_over_the_mean_wall_time_of_the_cpu() -> None:
    records = [*launches("vgg", 10.0, 30.0), *launches("vgg", 4.0, 6.0, gpu=True)]
    found = table(sections.analyse(records), "Sections over")
    cpu, gpu = (cells(found, mode=mode, source="measured") for mode in ("CPU", "CPU+GPU"))
    names = ("INIT", "SETUP", "RUN", "MAIN", "WALL")
    assert [cpu[name] for name in names] == pytest.approx([0.1, 0.2, 0.6, 0.9, 1.0])
    assert [gpu[name] for name in names] == pytest.approx([0.025, 0.05, 0.15, 0.225, 0.25])


def test_published_rows_are_those_of_the_paper_beside_each_of_ours() -> None:
    every = [
        record for name in published.op_percent() for gpu in (False, True) for record in launches(name, 1, gpu=gpu)
    ]
    found = table(sections.analyse(every), "Sections over")
    theirs = {(row[0], row[2]): row[4:] for row in found.rows if row[3] == "published"}
    printed = {
        key: [each.init, each.setup, each.run, each.main, each.wall] for key, each in published.sections().items()
    }
    assert theirs == printed
    assert theirs["seq2seq", "CPU+GPU"] == [0.6164, 0.1939, 0.0863, 0.9008, 0.9237]
    assert [row[3] for row in found.rows if row[0] == "vgg"] == ["measured", "published", "measured", "published"]
    assert [row[3] for row in found.rows if row[0] == "speech"] == ["measured", "measured"], "the study has no speech"


def test_a_cpu_alone_has_no_rows_with_a_gpu() -> None:
    finding = sections.analyse(launches("autoenc", 4.0))
    assert [row[2:4] for row in table(finding, "Sections over").rows] == [["CPU", "measured"], ["CPU", "published"]]
    assert [chart.title.split(":")[0] for chart in finding.charts] == [
        "Sections over the CPU's wall time",
        "Sections over the CPU's wall time",
        "Start-up time to the end of the first step",
    ]
    assert finding.summary == "Init and setup as a share of a program's wall time on the CPU: 30 % (autoenc)."


def test_what_a_gpu_is_worth_beside_the_published() -> None:
    records = [*launches("residual", 19.9, 20.0, 20.1), *launches("residual", 0.99, 1.0, 1.01, gpu=True)]
    records += [*launches("autoenc", 3.98, 4.0, 4.02), *launches("autoenc", 4.9, 5.0, 5.1, gpu=True)]
    finding = sections.analyse(records)
    residual = cells(table(finding, "Wall time of CPU+GPU"), workload="residual")
    assert (residual["CPU+GPU/CPU"], residual["speed-up"]) == pytest.approx((0.05, 20.0))
    assert (residual["published"], residual["published speed-up"]) == pytest.approx((0.0809, 12.36), abs=0.005)
    assert (
        "same batch and number of steps: 0.250 (geometric mean of 2; 0.0500 for residual to 1.25 for autoenc)."
        in finding.summary
    )
    assert "Faster with a GPU: residual (0.05). Slower with a GPU: autoenc (1.25). Published: " in finding.summary
    assert finding.summary.endswith("Published: 0.08 (residual) to 1.16 (autoenc).")
    bars = {series.name: dict(zip(series.x, series.y, strict=True)) for series in finding.charts[2].series}
    assert bars["CPU alone"] == {"autoenc": 1.0, "residual": 1.0}
    assert bars["CPU+GPU, measured"] == pytest.approx({"autoenc": 1.25, "residual": 0.05})
    assert bars["CPU+GPU, published"] == {"autoenc": 1.1558, "residual": 0.0809}


def test_the_interval_of_wall_over_the_cpus_is_welchs() -> None:
    cpu, gpu = [3.8, 4.0, 4.2], [4.5, 5.0, 5.5]
    found = sections.ratio_of_means(gpu, cpu)
    assert found is not None
    error = math.hypot(0.2 / 4, 0.5 / 5) / math.sqrt(3)  # of the logarithm: relative deviations over the root of 3
    free = (0.05**2 + 0.1**2) ** 2 / ((0.05**4 + 0.1**4) / 2)
    wide = stats.t.ppf(0.975, free) * error
    assert (found.median, found.low, found.high) == pytest.approx((1.25, 1.25 / math.exp(wide), 1.25 * math.exp(wide)))
    row = cells(
        table(sections.analyse([*launches("vgg", *cpu), *launches("vgg", *gpu, gpu=True)]), "Wall time of"),
        workload="vgg",
    )
    assert (row["95 % from"], row["95 % to"]) == pytest.approx((found.low, found.high))


def test_a_difference_within_what_launches_differ_by_is_named_as_such() -> None:
    records = [*launches("vgg", 3.0, 4.0, 5.0), *launches("vgg", 3.5, 4.5, 5.5, gpu=True)]
    records += [*launches("autoenc", 4.0), *launches("autoenc", 5.0, gpu=True)]
    finding = sections.analyse(records)
    assert "No significant difference: vgg (1.12). Too few launches to tell: autoenc (1.25)." in finding.summary
    assert "er with a GPU:" not in finding.summary
    alone = cells(table(finding, "Wall time of CPU+GPU"), workload="autoenc")
    assert (alone["95 % from"], alone["95 % to"]) == (None, None), "one launch does not tell"


def test_only_runs_that_are_not_shown_have_a_note() -> None:
    """A study at the published sizes beside launches of the small preset: the launches are shown, the study is not."""
    study = replace(profiled("vgg"), machine=MACHINES[GPU], device="cuda:0")
    paper = replace(study, spec=replace(study.spec, preset="paper"))
    finding = sections.analyse([paper, *launches("vgg", 10.0, 20.0), *launches("vgg", 1.0, 2.0, gpu=True)])
    rows = table(finding, "Sections in seconds").rows
    assert [row[:4] for row in rows] == [["vgg", "train", "CPU", "small"], ["vgg", "train", "CPU+GPU", "small"]]
    (note,) = [note for note in finding.notes if note.startswith("Not shown")]
    assert note.endswith(f"superseded by launches of a fixed number of steps: vgg train on {H200} (paper).")


def test_launches_that_compiled_their_imports_are_counted() -> None:
    runs = launches("autoenc", 4.0, 5.0, 6.0)
    notes = sections.analyse([*runs[:1], *(replace(run, notes=[COMPILED_ANEW]) for run in runs[1:])]).notes
    assert f"2 of 3 launches: {COMPILED_ANEW}." in notes
    assert not any(COMPILED_ANEW in note for note in sections.analyse(runs).notes)


@pytest.mark.parametrize("kept", [True, False])
def test_a_torch_without_compiled_files_is_found(kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, cached = tmp_path / "torch" / "__init__.py", tmp_path / "torch" / "__pycache__"
    (cached if kept else package.parent).mkdir(parents=True)
    package.touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    if kept:
        Path(cache_from_source(str(package))).touch()
    assert import_notes() == ([] if kept else [COMPILED_ANEW])


def test_the_notes_say_that_the_studys_main_leaves_start_up_out() -> None:
    notes = " ".join(sections.analyse(launches("autoenc", 4.0)).notes)
    assert "Our INIT and MAIN include importing torch." in notes
    assert "start-up lies outside MAIN" in notes
    assert "Its MAIN over WALL on the CPU: 0.40 (autoenc)" in notes


def test_stacks_add_up_to_the_wall_time() -> None:
    finding = sections.analyse([*launches("vgg", 10.0), *launches("vgg", 4.0, gpu=True)])
    for chart, walls in zip(finding.charts, ([1.0, 0.4], [1.0, 0.1658]), strict=False):
        assert [series.name for series in chart.series] == ["INIT", "SETUP", "RUN", "other"]
        sums = [sum(parts) for parts in zip(*(series.y for series in chart.series), strict=True)]
        assert sums == pytest.approx(walls)


def test_named_parts_in_seconds_and_as_shares_of_main() -> None:
    records = [*launches("vgg", 10.0), *launches("vgg", 4.0, gpu=True)]
    finding = sections.analyse(records)
    gpu = cells(table(finding, "Parts of"), mode="CPU+GPU")
    assert (gpu["imports (s)"], gpu["GPU context (s)"], gpu["first step (s)"]) == pytest.approx((0.32, 0.2, 0.6))
    assert gpu["GPU context (%)"] == pytest.approx(100 * 0.2 / 3.6)
    assert cells(table(finding, "Parts of"), mode="CPU")["GPU context (s)"] is None
    starting = {series.name: series.y for series in finding.charts[-1].series}
    assert starting == {
        "imports": pytest.approx([0.8, 0.32]),
        "construction": pytest.approx([0.2, 0.08]),
        "GPU context": pytest.approx([0.0, 0.2]),
        "data and weights": pytest.approx([2.0, 0.6]),
        "first step": pytest.approx([1.5, 0.6]),
    }


def test_a_studys_runs_give_seconds_and_no_wall_time() -> None:
    finding = sections.analyse([profiled("vgg")])
    assert finding.tables[0].title == "Sections in seconds"
    row = cells(finding.tables[0], workload="vgg")
    assert (row["INIT (s)"], row["SETUP (s)"], row["RUN (s)"], row["WALL (s)"]) == (10.0, 20.0, 60.0, None)
    assert finding.summary.startswith("Start-up to the end of the first step: 45.0 s (vgg).")
    assert any(note.startswith("1 of 1 rows have seconds only") for note in finding.notes)


def test_repeated_launches_win_over_a_studys_runs_of_the_same_place() -> None:
    study = replace(profiled("vgg"), machine=MACHINES[GPU])
    finding = sections.analyse([study, *launches("vgg", 10.0, 20.0)])
    row = cells(table(finding, "Sections in seconds"), workload="vgg")
    assert (row["launches"], row["WALL (s)"]) == (2, 15.0)


def test_a_run_whose_wall_time_nobody_saw_is_no_answer() -> None:
    inside = record_of("vgg", None, sections=Sections(init_s=1.0, setup_s=1.0, run_s=1.0, main_s=3.0))
    assert sections.analyse([inside]).summary == "Not measured. Run `fathom repeat`."


# variance


def test_spread_by_hand() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 100.0]
    found = distribution(values)
    assert (found.count, found.mean, found.median) == (5, 22.0, 3.0)
    assert found.deviation == pytest.approx(statistics.stdev(values))
    assert found.variation == pytest.approx(statistics.stdev(values) / 22)
    assert [found.p5, found.p95] == pytest.approx([1.2, 80.8])
    logs = np.log(values)
    error = stats.t.ppf(0.975, 4) * np.std(logs, ddof=1)
    for factor, low, high in (
        (math.sqrt(1 / 5), found.low, found.high),
        (math.sqrt(1 + 1 / 5), found.next_low, found.next_high),
    ):
        ends = np.exp(np.mean(logs) + np.array([-1, 1]) * factor * error)
        assert [low, high] == pytest.approx(ends.tolist())


def test_six_launches_bound_their_median_by_the_sign_test() -> None:
    """The median lies between the least and the greatest of six in 62 of 64 cases; of ten, between the second ones."""
    six, ten = distribution([3.0, 1.0, 2.0, 9.0, 4.0, 5.0]), distribution([float(value) for value in range(10)])
    assert (six.low, six.high) == (1.0, 9.0)
    assert (ten.low, ten.high) == (1.0, 8.0)


def test_two_launches_bound_no_median_and_one_has_no_distribution() -> None:
    assert (distribution([1.0, 2.0]).low, distribution([1.0, 2.0]).next_high) == (None, None)
    assert (distribution([1.0]).deviation, distribution([1.0]).variation) == (None, None)


def test_launches_are_over_the_mean_of_the_cpu() -> None:
    records = [*launches("vgg", 8.0, 10.0, 12.0), *launches("vgg", 1.0, 2.0, 3.0, gpu=True)]
    (chart,) = variance.analyse(records).charts
    assert {series.name: series.y for series in chart.series} == {
        "CPU": pytest.approx([0.8, 1.0, 1.2]),
        "CPU+GPU": pytest.approx([0.1, 0.2, 0.3]),
    }
    assert chart.log_y


def test_every_section_of_every_launch_counts_outliers_too() -> None:
    finding = variance.analyse(launches("vgg", 10.0, 10.0, 10.0, 50.0))
    found = table(finding, "Every section")
    wall = cells(found, section="WALL")
    assert (wall["launches"], wall["mean (s)"], wall["median (s)"]) == (4, 20.0, 10.0)
    assert wall["standard deviation (s)"] == 20.0
    assert wall["variation (%)"] == pytest.approx(100.0)
    assert cells(found, section="INIT")["mean (s)"] == pytest.approx(2.0)
    assert max(finding.charts[0].series[0].y) == 2.5
    assert "GPU context" not in [row[3] for row in found.rows]


def noisy(workload: str, mean: float, relative: float, seed: int, gpu: bool = False) -> list[Record]:
    values = mean * (1 + relative * np.random.default_rng(seed).standard_normal(40))
    return launches(workload, *values.tolist(), gpu=gpu)


def test_whether_the_gpus_spread_is_lower_as_the_study_saw() -> None:
    """vgg: a tenth of the time and the same relative noise; autoenc: as slow and five times as noisy."""
    records = [*noisy("vgg", 10.0, 0.02, 1), *noisy("vgg", 1.0, 0.02, 2, gpu=True)]
    records += [*noisy("autoenc", 4.0, 0.01, 3), *noisy("autoenc", 4.0, 0.05, 4, gpu=True)]
    finding = variance.analyse(records)
    found = table(finding, "Standard deviation")
    vgg, autoenc = (cells(found, workload=name) for name in ("vgg", "autoenc"))
    absolute, relative = "variation with a GPU, of CPU's mean", "variation with a GPU, of own mean"
    assert (vgg[absolute], vgg[relative]) == ("lower", "no significant difference")
    assert (autoenc[absolute], autoenc[relative]) == ("higher", "higher")
    assert vgg["CPU (% of CPU's mean)"] == pytest.approx(10 * vgg["CPU+GPU (% of CPU's mean)"], rel=0.5)
    assert "lower than on the CPU for 1 of 2 workloads and higher for 1" in finding.summary
    assert "the Minsky study found it consistently lower" in finding.summary
    assert "lower for 0 and higher for 1." in finding.summary
    inferred = [replace(run, spec=replace(run.spec, phase="infer")) for run in records]
    assert "for 2 of 4 comparisons of 2 workloads and" in variance.analyse([*records, *inferred]).summary


def test_two_launches_are_too_few_and_the_command_is_told() -> None:
    finding = variance.analyse([*launches("vgg", 1.0, 2.0), *launches("autoenc", 1.0)])
    assert finding.summary == (
        "Not measured: no configuration has 3 launches. Run `fathom repeat vgg autoenc --runs 20`."
    )
    assert finding.tables == []


def test_three_launches_a_side_make_no_comparison() -> None:
    """However they differ: no Brown-Forsythe test of three against three falls below p = 0.116."""
    records = [*launches("vgg", 8.0, 10.0, 12.0), *launches("vgg", 1.0, 1.0001, 1.0002, gpu=True)]
    finding = variance.analyse(records)
    assert "3 launches a side cannot show a difference between CPU and GPU; at least 5 are needed." in finding.summary
    assert "lower" not in finding.summary
    row = cells(table(finding, "Standard deviation"), workload="vgg")
    assert row["variation with a GPU, of own mean"] == "3 launches a side cannot show a difference"
    assert (row["launches a side"], row["smallest detectable ratio"]) == (3, None)


def test_the_smallest_ratio_that_launches_could_have_shown_stands_beside_the_result() -> None:
    finding = variance.analyse([*noisy("vgg", 10.0, 0.02, 1), *noisy("vgg", 10.0, 0.02, 2, gpu=True)])
    row = cells(table(finding, "Standard deviation"), workload="vgg")
    assert row["variation with a GPU, of own mean"] == "no significant difference"
    assert row["smallest detectable ratio"] == variance.detectable_ratio(40, 40)
    least = f"{row['smallest detectable ratio']:.3g}"
    told = f"With 40 launches a side, the smallest ratio of standard deviations found in 80 of 100 cases is {least}."
    assert told in finding.summary


@pytest.mark.parametrize("count", [8, 20])
def test_the_smallest_ratio_is_found_in_80_of_100_cases_and_equal_launches_in_5(count: int) -> None:
    least = variance.detectable_ratio(count, count)
    assert least is not None
    random = np.random.default_rng(7)
    pairs = [random.standard_normal((2, count)) for _ in range(400)]
    found = [variance.gpu_variation(cpu, gpu * least) for cpu, gpu in pairs]
    assert 0.74 <= found.count("higher") / 400 <= 0.86
    equal = [variance.gpu_variation(cpu, gpu) for cpu, gpu in pairs]
    assert equal.count("no significant difference") >= 0.92 * 400


def test_five_launches_a_side_find_no_ratio_reliably_and_say_so() -> None:
    assert variance.detectable_ratio(5, 5) is None
    records = [*launches("vgg", 1.0, 1.1, 1.2, 1.3, 1.5), *launches("vgg", 1.0, 1.2, 1.3, 1.1, 1.5, gpu=True)]
    summary = variance.analyse(records).summary
    assert "With 5 launches a side, no ratio of standard deviations, however large, would have been found" in summary


def test_distances_leave_out_the_one_that_is_zero_by_construction() -> None:
    assert variance.distances([1.0, 2.0, 4.0]).tolist() == [[1.0, 2.0]]
    assert variance.distances([1.0, 2.0, 4.0, 8.0]).tolist() == [[pytest.approx(math.sqrt(2)), 2.0, 5.0]]


def test_a_mode_launched_too_few_times_is_told() -> None:
    finding = variance.analyse([*launches("vgg", 1.0, 2.0, 3.0), *launches("vgg", 1.0, gpu=True)])
    assert [series.name for series in finding.charts[0].series] == ["CPU"]
    assert f"Not shown: fewer than 3 launches: vgg train on {H200}." in finding.notes


def test_without_a_cpu_launches_are_over_their_own_mean() -> None:
    finding = variance.analyse(launches("vgg", 1.0, 2.0, 3.0, gpu=True))
    assert finding.charts[0].series[0].y == pytest.approx([0.5, 1.0, 1.5])
    assert any(note.startswith("Over their own mean") for note in finding.notes)


def test_a_failed_launch_is_told_and_not_counted() -> None:
    finding = variance.analyse([*launches("vgg", 1.0, 2.0, 3.0), failed_record("vgg", "out of memory")])
    assert cells(table(finding, "Every section"), section="WALL")["launches"] == 3
    assert any("out of memory" in note for note in finding.notes)


def test_two_cards_of_one_host_are_two_machines_in_every_table_and_chart() -> None:
    cards = [Gpu(name="NVIDIA H200", uuid=uuid) for uuid in ("GPU-a", "GPU-b")]
    machine = replace(MACHINES[GPU], gpus=cards)
    alone = [replace(run, machine=machine) for run in launches("vgg", 10.0, 10.5, 11.0)]
    runs = [
        replace(run, machine=machine, gpu_uuid=uuid, device=device)
        for uuid, device, walls in (("GPU-a", "cuda:0", (2.0, 2.1, 2.2)), ("GPU-b", "cuda:1", (4.0, 4.1, 4.2)))
        for run in launches("vgg", *walls, gpu=True)
    ]
    spread = analyse("variance", [*alone, *runs])
    assert "2.4 % (vgg, NVIDIA H200 (card 2)) to 4.8 % (vgg, NVIDIA H200 (card 1)) on CPU+GPU" in spread.summary
    (boxes,) = spread.charts
    assert [len(series.y) for series in boxes.series] == [3, 3, 3]
    parts = analyse("sections", [*alone, *runs])
    bars = next(chart for chart in parts.charts if chart.title.startswith("Total time with a GPU"))
    ours = [series.y for series in bars.series if "card" in series.name]
    assert ours == [[pytest.approx(0.2)], [pytest.approx(4.1 / 10.5)]]
