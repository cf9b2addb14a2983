"""The questions, on records made by hand: exact numbers where they can be known, sense where they cannot."""

from __future__ import annotations

import inspect
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_records import GPU, LAPTOP, failed_record, op_row, profile_of, record_of, study

from fathom import published
from fathom.analysis import limits
from fathom.analysis.finding import Band, Chart, Finding, Table, analyse, questions
from fathom.analysis.questions import breakdown, layers, parallelism, phases, roofline, similarity, skew, stationarity
from fathom.analysis.scaling_law import STRONG, serial_fraction, serial_fraction_of_times
from fathom.analysis.selection import select
from fathom.analysis.step_time import settled_steps
from fathom.core import plugins
from fathom.core.fingerprint import Cpu, Machine
from fathom.core.record import Kernel, OpRow, Record

LAPTOP_NAME = "Laptop CPU, 4 cores"
H200_NAME = "NVIDIA H200"
QUESTIONS = questions()  # a question of tomorrow is held to the same promises without an edit here


def cells(table: Table, **where: Any) -> dict[str, Any]:
    """The one row whose columns (spaces for underscores) have these values, by column."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    found = [row for row in rows if all(row[name.replace("_", " ")] == value for name, value in where.items())]
    assert len(found) == 1, (where, len(found))
    return found[0]


def a_record(**types: float) -> Record:
    return record_of("autoenc", [op_row(kind, seconds) for kind, seconds in types.items()])


# every question


@pytest.mark.parametrize("question", QUESTIONS)
def test_no_records_is_not_measured_and_a_command_is_named(question: str) -> None:
    finding = analyse(question, [])
    assert re.fullmatch(r"Not measured\. Run `fathom [a-z]+.*`\.", finding.summary)
    command = finding.summary.partition("`fathom ")[2].rstrip("`.").split()[0]
    assert command in plugins.names("commands")
    assert (finding.tables, finding.charts, finding.answered) == ([], [], False)


@pytest.mark.parametrize("question", QUESTIONS)
def test_failures_alone_are_not_measured_and_are_never_an_answer(question: str) -> None:
    finding = analyse(question, [failed_record("vgg", "out of memory")])
    assert finding.summary.startswith("Not measured")
    assert all("vgg train" in note and "out of memory" in note for note in finding.notes)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_whole_study_is_answered_in_sound_tables_and_charts(question: str) -> None:
    finding = analyse(question, study())
    assert finding.question == question
    assert finding.title == plugins.load("questions", question).TITLE
    json.dumps(finding.to_json(), allow_nan=False)
    if not finding.answered:  # asked of runs that a study of this kind does not have
        assert finding.summary.startswith("Not measured")
        return
    for table in finding.tables:
        assert {len(row) for row in table.rows} <= {len(table.columns)}, table.title
        assert all(row < len(table.rows) and column < len(table.columns) for row, column in table.alarms)
    for chart in finding.charts:
        assert_sound(chart)


def test_most_questions_are_answered_by_a_study_and_name_their_source() -> None:
    findings = [analyse(question, study()) for question in QUESTIONS]
    answered = [finding for finding in findings if finding.answered]
    assert len(answered) >= 10
    for finding in answered:
        assert finding.tables
        assert finding.charts
        assert any("2016" in note or "Published" in note for note in finding.notes), finding.question


def test_a_question_says_itself_where_in_a_report_it_belongs() -> None:
    orders = [plugins.load("questions", question).ORDER for question in QUESTIONS]
    assert orders == sorted(orders)
    assert len(set(orders)) == len(orders), "no two share a place"


def test_no_analysis_knows_a_workload_by_name() -> None:
    """What a paper says of one comes from `published`; all else holds for any workload."""
    folder = Path(inspect.getfile(analyse)).parent
    names = re.compile(rf"\b({'|'.join(published.op_percent())})\b", re.IGNORECASE)
    for path in folder.rglob("*.py"):
        code = path.read_text().replace("residual connection", "")
        assert names.findall(code) == [], path.name


def assert_sound(chart: Chart) -> None:
    assert chart.series, chart.title
    for series in chart.series:
        assert len(series.x) == len(series.y), (chart.title, series.name)
        assert not series.text or len(series.text) == len(series.x)
        known = [y for y in series.y if y is not None]
        assert all(math.isfinite(y) for y in known)
        assert not chart.log_y or all(y > 0 for y in known)
    if chart.kind == "heatmap":
        assert sum(band.columns for band in chart.bands) == len(chart.series[0].x)


@pytest.mark.parametrize("question", QUESTIONS)
def test_one_timed_run_without_a_profile_is_no_accident(question: str) -> None:
    finding = analyse(question, [record_of("memnet", None)])
    assert finding.summary.startswith("Not measured") is not finding.answered
    assert finding.answered or question not in {"phases", "stationarity"}


def test_one_run_answers_for_itself_alone() -> None:
    told = {question: analyse(question, [a_record(MatMul=0.9, Add=0.1)]).summary for question in QUESTIONS}
    assert told["sections"] == "Not measured. Run `fathom repeat`."
    assert "matrix operations in autoenc (90 %)" in told["breakdown"]
    assert told["similarity"].startswith(f"Only autoenc was measured on {LAPTOP_NAME}. Published rows: closest")
    assert told["parallelism"].startswith("Only one thread count was measured")
    assert told["phases"] == "Only one configuration: nothing to compare."
    assert told["skew"].startswith(f"Op types that take 90 % of op time: 1 on {LAPTOP_NAME}.")


# which records


def test_runs_of_another_engine_are_not_pooled() -> None:
    eager, graph = record_of("vgg"), record_of("vgg", spec={"engine": "cudagraph"}, step_s=[0.5] * 10)
    groups = select([eager, graph], profiled=False).groups
    assert {group.machine: group.runs for group in groups} == {
        eager.machine_label: [eager],
        f"{eager.machine_label}, cudagraph": [graph],
    }


def test_the_most_complete_configuration_is_taken_and_the_others_are_noted() -> None:
    tiny = record_of("vgg", [op_row("Add", 1.0)], spec={"preset": "tiny"})
    small = record_of("vgg", [op_row("MatMul", 1.0)], spec={"preset": "small"})
    selection = select([small, tiny], profiled=True)
    assert [group.runs for group in selection.groups] == [[small]]
    assert selection.notes == [f"Not shown: runs superseded by a more complete one: vgg train on {LAPTOP_NAME} (tiny)."]


def test_runs_that_differ_in_seed_and_steps_are_repetitions() -> None:
    runs = [
        record_of("vgg", [op_row("Add", seconds)], spec={"seed": seed, "steps": 10 + seed})
        for seed, seconds in enumerate((1.0, 3.0))
    ]
    (group,) = select(runs, profiled=True).groups
    assert group.seconds_by(lambda row: row.type) == {"Add": 2.0}


def test_another_precision_is_another_machine() -> None:
    runs = [record_of("vgg", [op_row("Add", 1.0)], spec={"precision": precision}) for precision in ("fp32", "bf16")]
    assert select(runs, profiled=True).machines == [LAPTOP_NAME, f"{LAPTOP_NAME}, bf16"]


def test_a_gpus_idle_time_is_that_of_the_plain_step() -> None:
    """The profiler doubled the step here by slowing the host; the kernels still took 0.3 s of a plain second."""
    rows = [op_row("MatMul", 0.3, place=GPU)]
    profile = profile_of(rows, outside_s=1.7, step_s=[2.0] * 5, plain_step_s=[1.0] * 5)
    (group,) = select([record_of("vgg", place=GPU, profile=profile)], profiled=True).groups
    assert group.percent_by(lambda row: row.type) == {"MatMul": pytest.approx(30.0)}
    assert group.outside_s == pytest.approx(0.7)


# 1 stationarity


def with_series(**series: list[float]) -> Record:
    profile = profile_of([op_row(kind, sum(values)) for kind, values in series.items()], per_step_s=dict(series))
    return record_of("autoenc", profile=profile)


def test_a_drifting_op_is_told_from_noise() -> None:
    noise = (1 + 0.02 * np.random.default_rng(3).standard_normal(20)).tolist()
    drifting = (np.linspace(1.0, 1.5, 20) * np.array(noise)).tolist()
    finding = stationarity.analyse([with_series(MatMul=noise, Add=drifting)])
    assert cells(finding.tables[0], op_type="MatMul")["result"] == "not shown to drift"
    assert cells(finding.tables[0], op_type="Add")["result"] in ("drifts", "slowing", "unsteady")
    drifts = cells(finding.tables[0], op_type="Add")["result"]
    steady = 100 * sum(noise) / (sum(noise) + sum(drifting))
    could = cells(finding.tables[0], op_type="MatMul")["smallest drift it could have shown (%)"]
    assert finding.summary.startswith(
        f"{steady:.0f} % of op time is not shown to drift, in 1 profiled run of 20 steps; {100 - steady:.0f} % "
        f"{drifts if drifts == 'drifts' else f'is {drifts}'}. The smallest drift it could have shown is {could:.0f} % "
        "for the median op type."
    )


def test_step_times_are_judged_over_the_whole_run_and_an_unsteady_one_shows_both_medians() -> None:
    random = np.random.default_rng(1)
    steps = (np.repeat([0.051, 0.039], [34, 32]) * (1 + 0.01 * random.standard_normal(66))).tolist()
    finding = stationarity.analyse([record_of("speech", warmup_s=[0.051, 0.051], step_s=steps)])
    row = cells(finding.tables[1], workload="speech")
    assert (row["label"], row["warm-up (steps)"], row["result"]) == ("unsteady", 0, "unsteady")
    assert row["unsteady: median before (ms)"] == pytest.approx(51, rel=0.01)
    assert row["unsteady: median after (ms)"] == pytest.approx(39, rel=0.01)
    assert "1 series of 68 steps: 1 unsteady." in finding.summary
    finding = stationarity.analyse([record_of("speech", warmup_s=[], step_s=[0.05])])
    assert "1 series of 1 step: " in finding.summary


def test_warm_up_is_apart_from_the_steady_part() -> None:
    record = record_of("autoenc", None, warmup_s=[9.0, 4.0], step_s=[2.0, 2.02] * 10)
    row = cells(stationarity.analyse([record]).tables[1], workload="autoenc")
    assert (row["label"], row["warm-up (steps)"], row["result"]) == ("warm-up", 2, "not shown to drift")
    assert row["median (ms)"] == pytest.approx(2010.0)
    assert row["variation (%)"] == pytest.approx(100 * 0.01 * math.sqrt(20 / 19) / 2.01)


def test_three_profiled_steps_are_too_few_to_judge() -> None:
    finding = stationarity.analyse([with_series(MatMul=[1.0, 2.0, 3.0])])
    assert finding.summary.startswith("No profile has the 6 steps")
    assert cells(finding.tables[0], op_type="MatMul")["label"] == "too few steps"


# 2 skew


def test_types_for_ninety_percent() -> None:
    finding = skew.analyse([a_record(MatMul=0.60, Add=0.20, Mul=0.10, Tanh=0.06, Sum=0.04)])
    row = cells(finding.tables[0], workload="autoenc")
    assert (row["types for 90 %"], row["op types"], row["names of these types"]) == (3, 5, "MatMul, Add, Mul")
    assert finding.charts[0].series[0].y == pytest.approx([60, 80, 90, 96, 100])
    assert f"Op types that take 90 % of op time: 3 on {LAPTOP_NAME}. " in finding.summary


def test_published_counts_by_hand() -> None:
    """seq2seq: 35 + 32 + 20 + 3; memnet needs ten of its thirteen."""
    counts = {"seq2seq": 4, "memnet": 10, "speech": 2, "autoenc": 6, "residual": 3, "vgg": 3, "alexnet": 4, "deepq": 4}
    assert skew.published_types() == counts


# 3 breakdown


def breakdown_of_one() -> Finding:
    rows = [op_row("MatMul", 0.70), op_row("Tanh", 0.20), op_row("Fill", 0.005), op_row("ApplyAdam", 0.045)]
    return breakdown.analyse([record_of("autoenc", rows, outside_s=0.05)])


def test_a_row_adds_up_to_a_hundred() -> None:
    table = breakdown_of_one().tables[1]
    row = cells(table, workload="autoenc")
    assert row["MatMul (%)"] == pytest.approx(70)
    assert (row["other ops (%)"], row["outside ops (%)"]) == (pytest.approx(0.5), pytest.approx(5))
    assert sum(
        value for name, value in row.items() if name not in {"workload", "outside ops, range (%)"}
    ) == pytest.approx(100)
    assert "Fill (%)" not in row


def test_both_maps_have_the_published_columns_first_in_each_class() -> None:
    theirs, ours = breakdown_of_one().charts
    assert theirs.series[0].x == ours.series[0].x
    assert theirs.bands == ours.bands
    names = ours.series[0].x
    assert names[:7] == ["Add", "Sub", "Mul", "Div", "Pow", "Softmax", "Tanh"]
    assert ours.bands[0] == Band(label="A Elementwise arithmetic", columns=7, total="all A")
    assert {(chart.unit, chart.limits) for chart in (theirs, ours)} == {("%", (0, 100))}
    assert names[-2:] == ["other ops", "outside ops"]
    printed = {series.name: dict(zip(series.x, series.y, strict=True)) for series in theirs.series}
    assert printed["autoenc"]["MatMul"] == 58
    assert printed["autoenc"]["Tanh"] is None, "the paper has no such column"


def test_cells_that_differ_by_more_than_ten_points() -> None:
    table = breakdown_of_one().tables[0]
    assert [row[2] for row in table.rows] == ["Tanh", "MatMul"]
    assert [row[-1] for row in table.rows] == pytest.approx([20, 12])
    assert cells(table, op_type="Tanh")["published (%)"] == 0
    assert cells(table, op_type="MatMul")["measured (% of op time)"] == pytest.approx(70 / 0.95)


def test_unknown_ops_are_no_elementwise_arithmetic() -> None:
    """Not even in older records, which say class A."""
    rows = [op_row("Other", 0.6, group="A"), op_row("Add", 0.4)]
    finding = breakdown.analyse([record_of("autoenc", rows)])
    assert "other ops in autoenc (60 %)" in finding.summary
    _, ours = finding.charts
    assert Band(label="other", columns=1, total="all other") in ours.bands
    assert_sound(ours)


def test_kernels_of_more_than_the_plain_step_are_told() -> None:
    rows = [op_row("Conv2D", 1.02, place=GPU)]
    profile = profile_of(rows, plain_step_s=[1.0] * 5)
    finding = breakdown.analyse([record_of("vgg", place=GPU, profile=profile)])
    assert any(f"vgg on {H200_NAME} 102 %" in note for note in finding.notes)
    row = cells(finding.tables[1], workload="vgg")
    assert sum(
        value for name, value in row.items() if name not in {"workload", "outside ops, range (%)"}
    ) == pytest.approx(100)


def test_kernels_of_older_records_tell_the_gradient_by_their_names() -> None:
    kernels = [
        Kernel(name=name, kind="kernel", op="aten::convolution_backward", type="Conv2DBackward", calls=1, device_s=time)
        for name, time in (("cudnn_wgrad", 0.5), ("flip", 0.1))
    ]
    profile = profile_of([op_row("Conv2D", 1.0, place=GPU)], kernels=kernels)
    table = breakdown.analyse([record_of("vgg", place=GPU, profile=profile)]).tables[-1]
    assert [row[2] for row in table.rows] == ["Conv2DBackFilter", "Conv2DBackward"]


def test_kernels_of_one_short_name_are_numbered() -> None:
    names = [f"void at::native::reduce_kernel<{n}, at::native::sum_functor<float> >(int)" for n in (128, 512)]
    assert list(breakdown.distinct_names([*names, "gemm", names[0]]).values()) == [
        "at::native::reduce_kernel<sum_functor>",
        "at::native::reduce_kernel<sum_functor> (2)",
        "gemm",
    ]


@pytest.mark.parametrize(("quick", "slow", "told"), [(10, 2, False), (6, 6, True)])
def test_profiled_steps_that_something_else_slowed_are_told(quick: int, slow: int, told: bool) -> None:
    """A few slow ones do no harm, as rows are of the middle half."""
    profile = profile_of([op_row("MatMul", 0.5)], step_s=[0.5] * quick + [0.7] * slow)
    notes = breakdown.analyse([record_of("autoenc", profile=profile)]).notes
    said = [note for note in notes if note.startswith("Interquartile range of the profiled steps above 20 %")]
    assert [f"autoenc on {LAPTOP_NAME}, 500 to 700 ms." in note for note in said] == [True] * told


def test_inference_has_shares_of_its_own_beside_no_published_ones() -> None:
    rows = [op_row("Conv2D", 0.6), op_row("Add", 0.3)]
    finding = breakdown.analyse([record_of("vgg", rows, outside_s=0.1, spec={"phase": "infer"})])
    assert finding.summary == f"Largest share of an inference step on {LAPTOP_NAME}: convolution in vgg (60 %)."
    (table,) = finding.tables
    assert table.title == f"Share of an inference step on {LAPTOP_NAME}"
    row = cells(table, workload="vgg")
    assert (row["Conv2D (%)"], row["outside ops (%)"]) == (pytest.approx(60), pytest.approx(10))
    assert [chart.title for chart in finding.charts] == [f"Share of an inference step (%) on {LAPTOP_NAME}"]


def test_inference_changes_nothing_in_the_tables_of_training() -> None:
    trained = record_of("vgg", [op_row("Conv2D", 0.6), op_row("Add", 0.3)])
    inferred = record_of("vgg", [op_row("MatMul", 0.9)], spec={"phase": "infer"})
    alone, both = breakdown.analyse([trained]), breakdown.analyse([trained, inferred])
    assert both.tables[: len(alone.tables)] == alone.tables
    assert both.charts[: len(alone.charts)] == alone.charts
    assert both.summary.startswith(alone.summary)
    assert both.tables[-1].title == f"Share of an inference step on {LAPTOP_NAME}"


def test_notes_name_inference() -> None:
    profile = profile_of([op_row("Add", 1.0)], plain_step_s=[])
    notes = breakdown.analyse([record_of("vgg", profile=profile, spec={"phase": "infer"})]).notes
    assert any(note.startswith(f"No unprofiled steps: vgg inference on {LAPTOP_NAME}.") for note in notes)


# 4 similarity


def test_the_published_tree() -> None:
    tree = [
        ({*joint.left}, {*joint.right}, round(joint.distance, 3))
        for joint in similarity.linkage(published.op_percent())
    ]
    convolutional = {"residual", "vgg", "alexnet", "deepq"}
    expected = [
        ({"vgg"}, {"residual"}, 0.003),
        ({"vgg", "residual"}, {"alexnet"}, 0.015),
        ({"autoenc"}, {"speech"}, 0.026),
        ({"vgg", "residual", "alexnet"}, {"deepq"}, 0.042),
        ({"memnet"}, {"seq2seq"}, 0.110),
        ({"memnet", "seq2seq"}, {"autoenc", "speech"}, 0.436),
        (convolutional, {"memnet", "seq2seq", "autoenc", "speech"}, 0.923),
    ]
    for (left, right, height), (one, other, expected_height) in zip(tree, expected, strict=True):
        assert {frozenset(left), frozenset(right)} == {frozenset(one), frozenset(other)}
        assert height == expected_height


def test_the_published_finding_draws_that_tree() -> None:
    finding = similarity.published()
    (chart,) = finding.charts
    assert len(chart.series) == 7
    leaves = [text for joint in chart.series for text in joint.text if text]
    assert sorted(leaves) == sorted(published.op_percent())
    for joint in chart.series:
        assert joint.x[1] == joint.x[2] >= max(joint.x[0], joint.x[3]), "no merge is nearer than its children"
    assert "0.003" in finding.summary
    assert "0.923" in finding.summary


def test_branches_do_not_cross() -> None:
    """At every joint the leaves of either side lie together."""
    tree = similarity.linkage(published.op_percent())
    order = {name: index for index, name in enumerate(tree[-1].members)}
    for joint in tree:
        positions = sorted(order[name] for name in joint.members)
        assert positions == list(range(positions[0], positions[0] + len(positions)))


def test_distance_by_hand() -> None:
    assert similarity.distance({"Add": 3.0}, {"Add": 5.0}) == 0
    assert similarity.distance({"Add": 1.0}, {"Mul": 1.0}) == 1
    assert similarity.distance({"Add": 1.0, "Mul": 1.0}, {"Add": 1.0}) == pytest.approx(1 - 1 / math.sqrt(2))
    assert similarity.distance({"Add": 0.0}, {"Add": 1.0}) == 1


def test_a_model_alone_is_placed_among_the_published() -> None:
    finding = similarity.analyse([record_of("own", [op_row("MatMul", 1.0), op_row("Tile", 0.1)])])
    assert "Published rows: closest to speech, distance 0.0" in finding.summary
    assert [chart.title for chart in finding.charts] == ["Published in 2016"]


# 5 phases


def timed(workload: str, step_s: float, items: int, place: str = "laptop", phase: str = "train", **more: Any) -> Record:
    steps: dict[str, Any] = {"warmup_s": [step_s] * 2, "step_s": [step_s] * 10, "items_per_step": items}
    return record_of(workload, None, place=place, spec={"phase": phase}, **steps, **more)


def test_the_slowest_cpu_is_the_measure_of_all() -> None:
    slow = Machine(cpu=Cpu(name="Old CPU", logical_cores=2))
    finding = phases.analyse([timed("vgg", 1.0, 1), timed("vgg", 5.0, 1, machine=slow), timed("vgg", 9.0, 1, GPU)])
    steps = finding.tables[1]
    assert steps.columns[-1] == "over training on Old CPU, 2 cores, same work"
    assert [row[-1] for row in steps.rows] == pytest.approx([0.2, 1.0, 1.8])


def test_networks_of_different_size_are_not_compared() -> None:
    finding = phases.analyse([timed("vgg", 1.0, 1, parameters=10), timed("vgg", 1.0, 1, GPU, parameters=1000)])
    assert cells(finding.tables[0], machine=H200_NAME)[finding.tables[0].columns[-1]] is None
    assert any("number of parameters differs" in note for note in finding.notes)


def test_steps_before_the_series_settles_do_not_count() -> None:
    record = record_of("vgg", None, warmup_s=[3.0], step_s=[3.0] * 5 + [1.0] * 30)
    assert settled_steps(record) == [1.0] * 30


def test_several_runs_widen_the_interval() -> None:
    runs = [timed("vgg", seconds, 1) for seconds in (1.0, 2.0, 3.0)]
    row = cells(phases.analyse(runs).tables[0], workload="vgg")
    assert (row["runs"], row["step, median (ms)"]) == (3, 2000)
    assert row["95 % from (ms)"] < 1000
    assert row["95 % to (ms)"] > 3000, "three launches cannot bound a median by their least and greatest"


# 6 parallelism


def at_threads(threads: int | None, **types: float) -> Record:
    rows = [op_row(kind, seconds) for kind, seconds in types.items()]
    return record_of("deepq", rows, spec={"threads": threads})


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_a_planted_serial_share_is_recovered(share: float) -> None:
    times = {threads: 2.0 * (share + (1 - share) / threads) for threads in (1, 2, 4, 8)}
    assert serial_fraction_of_times(times) == pytest.approx(share, abs=1e-9)


def test_the_serial_share_stays_between_zero_and_one() -> None:
    assert serial_fraction_of_times({1: 1.0, 2: 1.5, 4: 3.0}) == 1
    assert serial_fraction_of_times({1: 4.0, 2: 1.0}) == 0
    assert serial_fraction_of_times({2: 1.0}) is None
    assert serial_fraction_of_times({1: 1.0, 2: 0.0}) == 0


def test_one_serial_share_for_threads_cores_and_ranks() -> None:
    """Times that follow no law, as most do: the fit passes through the time on one, which speed-ups are over."""
    times = {1: 339.1, 2: 189.7, 4: 132.2, 8: 149.5, 16: 258.2}
    speedups = {workers: times[1] / seconds for workers, seconds in times.items()}
    assert serial_fraction_of_times(times) == pytest.approx(serial_fraction(speedups, STRONG))
    assert serial_fraction_of_times(times) == pytest.approx(0.434, abs=1e-3)
    assert serial_fraction_of_times({2: 0.6, 4: 0.4, 8: 0.3}) == pytest.approx(0.2), "one thread was not measured"


def test_a_sweep_over_threads() -> None:
    sweep = [at_threads(n, Conv2D=0.8 / n, ApplyRMSProp=0.2) for n in (1, 2, 4)]
    finding = parallelism.analyse(sweep)
    fits = finding.tables[0]
    assert cells(fits, op_type="Conv2D")["serial fraction (%)"] == pytest.approx(0, abs=1e-9)
    assert cells(fits, op_type="ApplyRMSProp")["serial fraction (%)"] == pytest.approx(100)
    assert cells(fits, op_type="whole step")["serial fraction (%)"] == pytest.approx(20)
    optimizer = cells(fits, op_type="ApplyRMSProp")
    assert optimizer["share of step, fewest threads (%)"] == pytest.approx(20)
    assert optimizer["share of step, most threads (%)"] == pytest.approx(50)
    times = cells(finding.tables[1], op_type="Conv2D")
    assert (times["role"], times["1 thread (ms)"], times["4 threads (ms)"]) == ("convolution", 800, 200)
    assert finding.summary.startswith(
        f"From 1 to 4 threads on {LAPTOP_NAME}, a step is 2.50 times as fast (deepq train)."
    )
    assert "The share of ApplyRMSProp grows most" in finding.summary
    assert "grows most: from 20 % to 50 % (1 thread to 4, deepq train" in finding.summary
    assert finding.summary.endswith(" One launch of each thread count: nothing is said of the next one.")
    again = parallelism.analyse([*sweep, *sweep[1:]]).summary
    assert again.endswith(" One launch of some thread counts: nothing is said of the next one.")
    assert "launch" not in parallelism.analyse([*sweep, *sweep]).summary


def test_one_thread_count_says_so() -> None:
    finding = parallelism.analyse([at_threads(2, Conv2D=1.0)])
    assert finding.summary.startswith("Only one thread count was measured per workload (2).")
    assert cells(finding.tables[0], op_type="Conv2D")["serial fraction (%)"] is None


def test_threads_not_asked_for_are_the_machines() -> None:
    finding = parallelism.analyse([at_threads(1, Conv2D=1.0), at_threads(None, Conv2D=0.25)])
    assert [series.name for series in finding.charts[0].series] == ["1 thread", "4 threads"]


def test_a_workload_at_one_count_is_left_out_beside_a_sweep() -> None:
    alone = record_of("vgg", [op_row("Conv2D", 1.0)], spec={"threads": 1})
    finding = parallelism.analyse([alone, at_threads(1, Conv2D=1.0), at_threads(2, Conv2D=0.5)])
    assert any("one thread count only: vgg train" in note for note in finding.notes)
    assert len(finding.charts) == 1


def test_the_published_scaling_is_fitted_on_real_cores() -> None:
    table = parallelism.analyse([at_threads(1, Conv2D=1.0)]).tables[-1]
    caffe = cells(table, framework="Caffe")
    assert caffe["8 threads (s)"] == 15.444
    assert caffe["serial fraction (%)"] == pytest.approx(23.17, abs=0.01)


# 7 layers


def test_layers_and_roles_by_hand() -> None:
    rows = [
        op_row("Conv2D", 0.50, layer="features.first.convolution"),
        op_row("Conv2DBackFilter", 0.25, layer="features.first.convolution"),
        op_row("MatMul", 0.08, layer="classifier.hidden"),
        op_row("MatMul", 0.07, layer="classifier.hidden", phase="backward"),
        op_row("CrossEntropy", 0.02),
        op_row("ApplyMomentum", 0.03),
    ]
    finding = layers.analyse([record_of("alexnet", rows, outside_s=0.05)])
    table = finding.tables[1]
    first = cells(table, layer="features.first")
    assert first["share of step (%)"] == pytest.approx(75)
    assert (first["forward (% of step)"], first["backward (% of step)"]) == (pytest.approx(50), pytest.approx(25))
    assert cells(table, layer="(optimizer)")["share of step (%)"] == pytest.approx(3)
    assert cells(table, layer="(loss)")["share of step (%)"] == pytest.approx(2)
    assert sum(float(row[3] or 0) for row in table.rows) == pytest.approx(100)
    connected = cells(finding.tables[0], workload="alexnet")
    assert connected["published (%)"] == "11"
    assert connected[f"{LAPTOP_NAME} (% of step)"] == pytest.approx(15)
    assert f"Fully connected layers on {LAPTOP_NAME}: 15.0 % of alexnet (2016: 11 %)." in finding.summary


def test_small_layers_share_a_line() -> None:
    rows = [op_row("Conv2D", 0.99, layer="a.b"), *(op_row("Add", 0.002, layer=f"tail.{i}") for i in range(5))]
    table = layers.analyse([record_of("vgg", rows)]).tables[1]
    assert cells(table, layer="(5 smaller layers)")["share of step (%)"] == pytest.approx(1)


def test_a_chart_of_two_machines_has_the_same_layers_in_the_order_of_the_network() -> None:
    """What is small on one machine alone has its own value there, and stands where it is in the network."""
    on_cpu = {"a.conv": 0.9, "b.relu": 0.003, "c.dense": 0.0, "d.tiny": 0.002}
    on_gpu = {"a.conv": 0.5, "b.relu": 0.2, "c.norm": 0.1, "c.dense": 0.2, "d.tiny": 0.001}
    records = [
        record_of(
            "vgg", [op_row("Add", seconds, layer=layer, place=place) for layer, seconds in found.items()], place=place
        )
        for found, place in ((on_cpu, LAPTOP), (on_gpu, GPU))
    ]
    chart = next(chart for chart in layers.analyse(records).charts if chart.title.startswith("Layers of vgg"))
    assert [*chart.series[0].x] == ["a.conv", "b.relu", "c.norm", "c.dense", "(1 smaller layer)", "(outside ops)"]
    assert chart.series[0].y[1:5] == pytest.approx([100 * part / 0.905 for part in (0.003, 0, 0, 0.002)])


def test_layers_of_inference() -> None:
    rows = [op_row("Conv2D", 0.7, layer="features.first"), op_row("MatMul", 0.2, layer="classifier.hidden")]
    inferred = record_of("alexnet", rows, outside_s=0.1, spec={"phase": "infer"})
    finding = layers.analyse([inferred])
    assert finding.summary == f"Heaviest layer in inference on {LAPTOP_NAME}: features.first of alexnet with 70 %."
    by_layer, by_role = finding.tables
    assert by_layer.title == "Share of an inference step by layer, in network order"
    assert cells(by_layer, layer="features.first")["share of step (%)"] == pytest.approx(70)
    assert cells(by_role, role="fully connected")["share of step (%)"] == pytest.approx(20)
    assert "Layers of alexnet inference, in network order" in {chart.title for chart in finding.charts}
    trained = record_of("alexnet", rows, outside_s=0.1)
    both = layers.analyse([trained, inferred])
    assert both.tables == layers.analyse([trained]).tables + finding.tables
    assert both.summary == f"{layers.analyse([trained]).summary} {finding.summary}"


# 8 roofline


def judged(rows: list[OpRow], place: str = "laptop", **changes: Any) -> limits.Verdict:
    """Ceilings of 1000 GFLOP/s and 100 GB/s: the ridge is at 10 FLOP a byte."""
    ceilings = {"ceiling_flop_per_s": 1e12, "ceiling_bytes_per_s": 1e11}
    profile = profile_of(rows, **{**ceilings, **changes})
    (group,) = select([record_of("vgg", place=place, profile=profile)], profiled=True).groups
    return limits.judge(group)


def test_compute_and_memory_bound() -> None:
    product = op_row("MatMul", 0.5, flop=4e11, bytes=1e9)
    addition = op_row("Add", 0.25, flop=1e9, bytes=2e10)
    verdict = judged([product, addition])
    assert verdict.name == "compute-bound"
    assert verdict.shares["compute-bound"] == pytest.approx(2 / 3)
    assert verdict.shares["memory-bound"] == pytest.approx(1 / 3)
    assert verdict.of_peak == pytest.approx(4.01e11 / 0.75 / 1e12)
    cost = limits.costs(profile_of([product], ceiling_flop_per_s=1e12, ceiling_bytes_per_s=1e11))[0]
    assert cost.of_roof == pytest.approx(0.8)


def test_rates_are_of_kernel_durations_and_shares_of_exposed_time() -> None:
    """Two kernels of 1 s at once: each has half of the time, and reaches what it does in all of its duration."""
    product = op_row("MatMul", 0.5, place=GPU, kernel_s=1.0, flop=6e11, bytes=1e9)
    copy = op_row("Add", 0.5, place=GPU, kernel_s=1.0, flop=1e9, bytes=4e10)
    profile = profile_of([product, copy], ceiling_flop_per_s=1e12, ceiling_bytes_per_s=1e11)
    found = {cost.row.type: cost for cost in limits.costs(profile)}
    assert found["MatMul"].of_compute == pytest.approx(0.6)
    assert found["Add"].of_memory == pytest.approx(0.4), "0.8 of the peak if the exposed time were all it took"
    verdict = judged([product, copy], place=GPU)
    assert verdict.shares["compute-bound"] == pytest.approx(0.5)
    assert verdict.shares["latency-bound"] == pytest.approx(0.5)
    finding = roofline.analyse([record_of("vgg", place=GPU, profile=profile)])
    row = cells(finding.tables[1], op_type="MatMul")
    assert (row["per step (ms)"], row["GFLOP/s"]) == (pytest.approx(500), pytest.approx(600))
    assert max(finding.charts[0].series[0].y) == pytest.approx(6e11)


def test_rates_of_older_records_are_of_the_time_they_have() -> None:
    product = op_row("MatMul", 0.5, place=GPU, flop=4e11, bytes=1e9)
    (cost,) = limits.costs(profile_of([product], ceiling_flop_per_s=1e12, ceiling_bytes_per_s=1e11))
    assert cost.of_compute == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("flop", "moved", "verdict"),
    [
        (5e11, 1e9, "compute-bound"),  # half of 1000 GFLOP/s
        (4.99e11, 1e9, "latency-bound"),
        (1e9, 5e10, "memory-bound"),  # half of 100 GB/s
        (1e9, 4.99e10, "latency-bound"),
        (6e11, 9e10, "memory-bound"),  # both: the larger share
        (1e11, 1e9, "latency-bound"),  # a tenth of the roof
        (5e11, None, "compute-bound"),  # one is enough to be bound by it, and not enough to be bound by neither
        (1e11, None, "not known"),
        (None, 5e10, "memory-bound"),
        (None, 1e9, "not known"),
        (None, None, "not known"),
        (0.0, 0.0, "not known"),  # how older records have ops without a formula
    ],
)
def test_bound_is_half_of_a_measured_peak(flop: float | None, moved: float | None, verdict: str) -> None:
    assert judged([op_row("MatMul", 1.0, flop=flop, bytes=moved)]).name == verdict


def test_rows_are_judged_before_they_are_added_up() -> None:
    """Two shapes of one op type: together they reach 54 % of the peak, alone one does and one does not."""
    large = op_row("MatMul", 0.6, flop=5.4e11, bytes=1e9, shapes="[2048, 2048] [2048, 2048]")
    small = op_row("MatMul", 0.4, flop=1e7, bytes=1e9, shapes="[2, 2048] [2048, 2048]")
    verdict = judged([large, small])
    assert verdict.shares == pytest.approx(
        {"compute-bound": 0.6, "memory-bound": 0, "latency-bound": 0.4, "launch-bound": 0, "not known": 0}
    )
    profile = profile_of([large, small], ceiling_flop_per_s=1e12, ceiling_bytes_per_s=1e11)
    finding = roofline.analyse([record_of("vgg", profile=profile)])
    first, second = (dict(zip(finding.tables[1].columns, row, strict=True)) for row in finding.tables[1].rows)
    assert (first["shapes"], first["verdict"]) == (large.shapes, "compute-bound")
    assert first["of peak FLOP/s (%)"] == pytest.approx(90)
    assert (second["shapes"], second["verdict"]) == (small.shapes, "latency-bound")
    assert second["GB/s"] == pytest.approx(2.5)
    assert second["of peak bytes/s (%)"] == pytest.approx(2.5)
    (by_type,) = (dict(zip(finding.tables[2].columns, row, strict=True)) for row in finding.tables[2].rows)
    assert by_type["compute-bound (% of its time)"] == pytest.approx(60)
    assert by_type["latency-bound (% of its time)"] == pytest.approx(40)


def test_an_op_of_no_known_kind_is_not_judged_by_a_guess() -> None:
    assert judged([op_row("Other", 1.0, flop=0.0, bytes=9e10)]).name == "not known"


def test_a_recurrent_product_far_from_both_peaks_is_bound_by_neither() -> None:
    """Speech training on two Neoverse N1 cores: 149 products of 2 rows take 878 ms backward and 450 ms forward.

    A tenth of a peak would have called the forward ones memory-bound, and the two together compute-bound.
    """
    peaks: dict[str, Any] = {"ceiling_flop_per_s": 74.42e9, "ceiling_bytes_per_s": 61.12e9}
    work: dict[str, Any] = {"flop": 149 * 2 * 2 * 2 * 2048**2, "bytes": 149 * 4 * (2 * 2048**2 + 3 * 2 * 2 * 2048)}
    rows = [op_row("MatMul", seconds, calls=149.0, **work) for seconds in (0.8783, 0.4503)]
    rows.append(op_row("MatMul", 0.6, flop=0.8 * 0.6 * 74.42e9, bytes=0.3e9))
    verdict = judged(rows, **peaks)
    assert verdict.name == "latency-bound"
    assert verdict.shares["latency-bound"] == pytest.approx(1.3286 / 1.9286)
    backward, _, forward = limits.costs(profile_of(rows, **peaks))
    assert (backward.of_compute, backward.of_memory) == pytest.approx((0.0765, 0.0934), abs=1e-4)
    assert (forward.of_compute, forward.of_memory) == pytest.approx((0.1492, 0.1822), abs=1e-4)


def test_on_a_cpu_short_calls_are_launching() -> None:
    assert judged([op_row("Add", 1e-3, calls=200.0, flop=1e6, bytes=1e7)]).name == "launch-bound"
    assert judged([op_row("Add", 1e-3, calls=20.0, flop=1e6, bytes=1e7)]).name == "latency-bound"
    reached = op_row("Add", 1e-3, calls=200.0, flop=1e8, bytes=1e8)
    assert judged([reached]).name == "memory-bound", "at the peak there is no room for the framework's own work"


def test_a_view_is_launching() -> None:
    assert judged([op_row("Reshape", 1.0, op="aten::view")]).name == "launch-bound"


def test_autograds_own_time_is_the_frameworks() -> None:
    assert judged([op_row("Autograd", 1.0, op="AddmmBackward0", flop=0.0, bytes=0.0)]).name == "launch-bound"


def test_an_idle_device_is_launch_bound() -> None:
    rows = [op_row("MatMul", 0.3, place=GPU, flop=2e11, bytes=1e9, cpu_s=0.2)]
    verdict = judged(rows, GPU, plain_step_s=[1.0] * 5, step_s=[1.5] * 5, outside_s=1.2)
    assert verdict.name == "launch-bound"
    assert verdict.busy == pytest.approx(0.3)
    assert verdict.shares["compute-bound"] == 1, "the op itself is not: it takes longer to run than to issue"


def test_launches_hide_behind_a_busy_device() -> None:
    rows = [op_row("Add", 0.95, place=GPU, flop=1e9, bytes=9e10, cpu_s=3.0)]
    assert judged(rows, GPU, plain_step_s=[1.0] * 5).name == "memory-bound"
    assert judged(rows, GPU, plain_step_s=[1.5] * 5).name == "launch-bound"


def test_preparing_data_comes_first() -> None:
    data = op_row("Copy", 0.01, place=GPU, phase="data", cpu_s=0.6, bytes=1e8)
    rows = [op_row("MatMul", 0.3, place=GPU, flop=2e11, bytes=1e9), data]
    verdict = judged(rows, GPU, plain_step_s=[1.0] * 5)
    assert verdict.name == "data-bound"
    assert verdict.data == pytest.approx(0.6)


def test_data_prepared_outside_ops_count() -> None:
    """Emulators and decoders are no torch ops: the marker's wall time tells."""
    rows = [op_row("MatMul", 0.3, flop=2e11, bytes=1e9)]
    assert judged(rows, outside_s=0.2).name == "compute-bound"
    assert judged(rows, outside_s=0.7).name == "outside ops", "whatever its ops are bound by"
    verdict = judged(rows, outside_s=0.7, data_s=0.65)
    assert verdict.name == "data-bound"
    assert verdict.data == pytest.approx(0.65)


def test_data_are_measured_against_the_shorter_of_both_steps() -> None:
    rows = [op_row("MatMul", 0.3, place=GPU, flop=2e11, bytes=1e9, cpu_s=0.2)]
    slowed = judged(rows, GPU, outside_s=1.7, plain_step_s=[1.0] * 5, data_s=0.6)
    assert slowed.name == "data-bound"
    assert slowed.data == pytest.approx(0.6), "the profiler slowed all but the data"
    speed_perturbed = judged(rows, GPU, outside_s=0.7, plain_step_s=[2.0] * 5, data_s=0.6)
    assert speed_perturbed.data == pytest.approx(0.6), "the plain steps waited longer for their data"


def test_without_ceilings_nothing_is_claimed() -> None:
    rows = [op_row("MatMul", 0.5, flop=4e11, bytes=1e9)]
    verdict = judged(rows, ceiling_flop_per_s=None, ceiling_bytes_per_s=None)
    assert (verdict.name, verdict.of_peak) == ("not known", None)


def test_the_roof_bends_at_the_ridge() -> None:
    rows = [op_row("MatMul", 0.5, flop=4e11, bytes=1e9)]
    profile = profile_of(rows, ceiling_flop_per_s=1e12, ceiling_bytes_per_s=1e11)
    (chart,) = roofline.analyse([record_of("vgg", profile=profile)]).charts
    assert (chart.series[0].x, chart.series[0].y) == ([400.0], [8e11])
    roof = chart.series[-1]
    assert (roof.name, roof.role) == ("roof", "limit")
    assert (10.0, 1e12) in zip(roof.x, roof.y, strict=True)
    assert all(y == pytest.approx(min(1e12, 1e11 * x)) for x, y in zip(roof.x, roof.y, strict=True))
