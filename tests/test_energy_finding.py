"""The energy of workloads from records: trials, validity, sweeps, caps, the published statements, and op classes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from energy_records import IDLE_W, energy_of, metered_record, part
from sample_records import failed_record, op_row, record_of

from fathom.analysis.energy_runs import EnergyRuns, labels, metered, sweeps
from fathom.analysis.finding import Finding, Table, analyse
from fathom.analysis.questions._power_trace import section_table
from fathom.analysis.questions._time_energy import Sweep, caps
from fathom.analysis.selection import select
from fathom.core.disturbance import Disturbance
from fathom.core.energy import ESTIMATE, STEPS, Stretch
from fathom.core.record import Learning, Point, Record


def only(records: list[Record]) -> EnergyRuns:
    (runs,) = metered(records)
    return runs


def cell(table: Table, row: int, column: str) -> Any:
    return table.rows[row][table.columns.index(column)]


def table_of(finding: Finding, title: str) -> Table:
    return next(table for table in finding.tables if table.title.startswith(title))


def test_joules_watts_and_edp_of_trials_are_their_means() -> None:
    runs = only([metered_record(per_step_j=joules) for joules in (2.97, 3.0, 3.03)])
    assert runs.per_step_j == pytest.approx(3.0)
    assert runs.per_item_j == pytest.approx(0.03)
    assert runs.total_j == pytest.approx(1800.0)
    assert runs.mean_w == pytest.approx(300.0)
    assert runs.peak_w == pytest.approx(1.1 * 303.0), "of any trial"
    assert runs.idle_w == IDLE_W
    assert runs.step_edp == pytest.approx(3.0 * 0.01)
    assert runs.item_edp == pytest.approx(0.03 * 0.0001)
    assert runs.spread == pytest.approx(0.02)
    assert runs.gap == pytest.approx(0.01)
    assert (runs.verdict, runs.reasons) == ("VALID", [])


def test_edp_does_not_depend_on_how_long_the_window_was() -> None:
    short, long = (only([metered_record(energy=energy_of(3.0, 0.01, window_s=window_s))]) for window_s in (6.0, 60.0))
    assert short.step_edp == pytest.approx(long.step_edp)
    assert short.energies[0].delay_product < long.energies[0].delay_product / 50
    slow, fast = (metered_record(per_step_j=joules, step_s=step_s) for joules, step_s in ((3.3, 0.012), (3.0, 0.01)))
    assert only([slow, fast]).step_edp == pytest.approx((3.3 * 0.012 + 3.0 * 0.01) / 2), "of each trial"


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ([metered_record(energy=energy_of(3.0, 0.01, window_s=4.0))], "4 s measured, 5 s are needed"),
        (
            [metered_record(energy=energy_of(3.0, 0.01, parts=[part(1800, 6, updates=49)]))],
            "49 updates of the counter of GPU 0, 50 are needed",
        ),
        (
            [metered_record(energy=energy_of(3.0, 0.01, parts=[part(1800, 6, integrated_j=1908.0)]))],
            "+6 % between integrated power and the counter of GPU 0",
        ),
        (
            [metered_record(per_step_j=joules) for joules in (2.9, 3.1)],
            "6.7 % between trials, 3 % are allowed (step time 0 %, power 6.7 %)",
        ),
        ([metered_record(disturbance=Disturbance(gpu_shared=True))], "other programs on the GPU"),
    ],
)
def test_a_measurement_is_invalid_with_the_reason(records: list[Record], reason: str) -> None:
    runs = only(records)
    assert runs.verdict == "INVALID"
    assert [each.partition(" (in ")[0] for each in runs.reasons] == [reason]
    finding = analyse("energy", records)
    table = finding.leading_tables[0]
    assert str(cell(table, 0, "verdict")).startswith(f"INVALID: {reason}")
    assert table.alarms == [(0, len(table.columns) - 1)]
    assert "0 of 1 measurement is valid" in finding.summary


def test_an_invalid_trial_beside_valid_ones_is_left_out_and_named() -> None:
    far = metered_record(energy=energy_of(3.0, 0.01, parts=[part(2400, 6, integrated_j=2208.0)]))
    runs = only([metered_record(per_step_j=3.0), far, metered_record(per_step_j=3.01)])
    assert (len(runs.runs), runs.verdict) == (2, "VALID")
    assert runs.per_step_j == pytest.approx(3.005)
    table = analyse("energy", [metered_record(), far]).leading_tables[0]
    said = "VALID; 1 of 2 trials left out: -8 % between integrated power and the counter of GPU 0"
    assert cell(table, 0, "verdict") == said
    assert only([far]).verdict == "INVALID", "with no valid one beside it"


def test_trials_that_differ_do_not_hide_a_setting_that_costs_a_quarter() -> None:
    """It is invalid, as its energy is not known to 3 %; but the others cost several times as much."""
    unsteady = [metered_record(per_step_j=joules, spec={"precision": "bf16"}) for joules in (0.95, 1.0, 1.05)]
    steady = [metered_record(per_step_j=joules, step_s=0.02) for joules in (4.0, 4.0, 4.0)]
    (group,) = sweeps(metered([*unsteady, *steady]))
    assert [runs.verdict for runs in group].count("INVALID") == 1
    least = Sweep(group).recommended()["least energy"]
    assert (least.choice.setting, least.energy_ratio) == ("bf16", 1.0)


def test_an_estimate_says_so_and_is_never_valid() -> None:
    guessed = energy_of(3.0, 0.01, parts=[part(1800, 6, kind=ESTIMATE, integrated_j=None)])
    runs = only([metered_record(energy=guessed)])
    assert runs.verdict == "estimated"
    finding = analyse("energy", [metered_record(energy=guessed)])
    assert any(note.startswith("Estimated:") for note in finding.notes)
    assert finding.summary.startswith("Joules per item, estimated: ")


def test_settings_of_the_same_workload_each_have_their_number() -> None:
    records = [metered_record(per_step_j=joules, spec={"batch": batch}) for joules, batch in ((4.0, 8), (4.0, 64))]
    said = analyse("energy", records).summary
    assert "batch 8" in said
    assert "batch 64" in said


def test_presets_threads_and_options_of_the_same_workload_each_have_their_number() -> None:
    specs: list[dict[str, Any]] = [{"preset": "small"}, {"preset": "paper"}, {"options": {"latent": 4}}]
    records = [metered_record(per_step_j=2.0 + number, spec=spec) for number, spec in enumerate(specs)]
    said = analyse("energy", records).summary
    assert (
        "0.02 (autoenc train (preset small, options none)) to 0.04 (autoenc train (preset small, options latent=4))"
        in said
    )


def test_runs_made_for_their_energy_take_the_place_of_short_ones() -> None:
    timed = metered_record(energy=energy_of(9.0, 0.01, window_s=1.0), spec={"kind": "timed"})
    runs = only([timed, metered_record()])
    assert runs.per_step_j == pytest.approx(3.0)
    assert only([timed]).per_step_j == pytest.approx(9.0), "alone it counts, and is invalid"
    assert only([timed]).verdict == "INVALID"


def test_without_a_metered_run_the_question_says_what_to_run() -> None:
    finding = analyse("energy", [record_of(), failed_record()])
    assert finding.summary == "Not measured: no run is metered. Run `fathom energy NAME`."
    assert not finding.answered


def sweep_records() -> list[Record]:
    """Time per item falls with the batch and in bf16; batch 64 in fp32 is beaten in both by batch 8 in bf16."""
    measured = {  # batch, precision -> step time, joules per step
        (1, "fp32"): (0.002, 0.5),
        (8, "fp32"): (0.004, 1.2),
        (64, "fp32"): (0.0256, 9.6),
        (8, "bf16"): (0.0028, 0.64),
        (64, "bf16"): (0.016, 8.0),
    }
    return [
        metered_record("alexnet", joules, step_s, items_per_step=batch, spec={"batch": batch, "precision": precision})
        for (batch, precision), (step_s, joules) in measured.items()
    ]


def test_a_sweep_finds_the_fewest_joules_per_item_and_the_front() -> None:
    (group,) = sweeps(metered(sweep_records()))
    sweep = Sweep(group)
    named = dict(zip(sweep.labels, sweep.runs, strict=True))
    assert set(named) == {"batch 1, fp32", "batch 8, fp32", "batch 64, fp32", "batch 8, bf16", "batch 64, bf16"}
    assert named["batch 8, bf16"].per_item_j == pytest.approx(0.08)
    assert [sweep.labels[index] for index in sweep.front] == ["batch 64, bf16", "batch 8, bf16"]
    found = sweep.recommended()
    assert [each.choice.setting for each in found.values()] == ["batch 8, bf16", "batch 8, bf16", "batch 64, bf16"]
    assert sweep.sentences() == [
        "alexnet train on NVIDIA H200, least energy: batch 8, bf16, 80 mJ per item (-36 % energy, +40 % time against "
        "batch 64, bf16).",
        "alexnet train on NVIDIA H200, least EDP: batch 8, bf16, 80 mJ per item (-36 % energy, +40 % time against "
        "batch 64, bf16).",
        "alexnet train on NVIDIA H200, least energy within 5 % of full speed: batch 64, bf16, 125 mJ per item, which "
        "is full speed.",
    ]
    assert sweep.sentences(0.5)[2].startswith(
        "alexnet train on NVIDIA H200, least energy within 50 % of full speed: batch 8, bf16"
    )
    finding = analyse("energy", sweep_records())
    table = table_of(finding, "Choices")
    assert [cell(table, row, "on the Pareto front") for row in range(5)].count("yes") == 2
    chart = next(chart for chart in finding.charts if chart.title.startswith("Time and energy"))
    (front,) = [series for series in chart.series if series.role == "limit"]
    assert front.x == pytest.approx([0.25, 0.35], rel=1e-3)
    assert front.y == pytest.approx([0.125, 0.08])
    alone = next(each for each in analyse("energy", sweep_records()[2:4]).charts if each.title == chart.title)
    assert alone.note.endswith("The Pareto front is one setting: batch 8, bf16.")
    assert not [series for series in alone.series if series.role == "limit"], "a line of one point cannot be seen"


def test_many_sweeps_are_counted_and_only_the_others_told() -> None:
    def pair(workload: str, slow_j: float) -> list[Record]:
        fast = metered_record(workload, 1.0, 0.01, spec={"precision": "bf16"})
        return [fast, metered_record(workload, slow_j, 0.02)]

    alike = [record for name in ("vgg", "residual", "memnet") for record in pair(name, 3.0)]
    three = analyse("energy", alike).summary
    assert three.count("which is full speed") == 3
    four = analyse("energy", [*alike, *pair("alexnet", 0.5)]).summary
    assert "Least energy is at full speed in 3 of 4 sweeps. alexnet train on NVIDIA H200, least energy: fp32" in four
    assert "which is full speed" not in four


def test_a_setting_that_was_measured_badly_is_not_recommended() -> None:
    records = sweep_records()
    short = replace(records[3], energy=energy_of(0.64, 0.0028, window_s=2.8))
    (group,) = sweeps(metered([*records[:3], short, records[4]]))
    sweep = Sweep(group)
    assert sweep.recommended()["least energy"].choice.setting == "batch 64, bf16"
    bad = [replace(record, energy=energy_of(1.0, 0.01, window_s=1.0)) for record in records]
    assert Sweep(sweeps(metered(bad))[0]).sentences() == [
        "alexnet train on NVIDIA H200: no setting was measured validly."
    ]


def capped_records() -> list[Record]:
    """memnet keeps its time below 300 W and saves a quarter; vgg takes a fifth longer and saves a tenth."""
    below = {"power_cap_w": 300.0}
    return [
        metered_record("memnet", 2.0, 0.01),
        metered_record("memnet", 1.5, energy=energy_of(1.5, 0.0101, 6.06), spec=below),
        metered_record("vgg", 6.0, 0.01),
        metered_record("vgg", 5.4, 0.012, spec=below),
        metered_record("vgg", 4.8, 0.02, spec={"clock_cap_mhz": 900.0}),
    ]


def test_full_throttle_is_not_the_answer_where_a_cap_costs_no_time() -> None:
    memory = op_row("Mul", 0.009, place="gpu", flop=1e6, bytes=4e10)
    profile = record_of("memnet", [memory], place="gpu", spec={"kind": "profiled"}, outside_s=0.0)
    assert profile.profile is not None
    known = replace(profile.profile, ceiling_flop_per_s=5e13, ceiling_bytes_per_s=4.8e12)
    finding = analyse("energy", [*capped_records(), replace(profile, profile=known)])
    assert (
        "1 of 2 pairs of workload and phase saves energy below a cap at no loss of time: memnet train (300 W: 25 % "
        "less energy, memory-bound)." in finding.summary
    )
    table = table_of(finding, "Below a cap, over")
    rows = {(row[0], row[2]): row for row in table.rows}
    assert rows["memnet train", "300 W"][3:7] == pytest.approx([1.01, 0.75, 0.7575, "yes"])
    assert rows["vgg train", "300 W"][3:7] == pytest.approx([1.2, 0.9, 1.08, "no"])
    assert rows["vgg train", "900 MHz"][3:6] == pytest.approx([2.0, 0.8, 1.6])
    assert rows["memnet train", "300 W"][7] == "memory-bound"
    assert rows["vgg train", "300 W"][7] is None, "no profile of it"


def test_reasons_that_differ_in_their_number_are_one() -> None:
    records = [metered_record(energy=energy_of(3.0, 0.01, window_s)) for window_s in (4.0, 3.0)]
    (runs,) = metered(records)
    assert runs.window_reasons[0] == "4 s measured, 5 s are needed (alike in 2 of 2 trials)"


def test_a_meter_that_is_missing_below_a_cap_saves_no_energy() -> None:
    """The GPU takes 2 % less below the cap; the CPU's 3 J of 9 were not metered there."""
    both = energy_of(6.0, 0.01, parts=[part(3600.0, 6.0), part(1800.0, 6.0, scope="CPU 0", meter="RAPL")])
    gpu_alone = metered_record(per_step_j=5.9, spec={"power_cap_w": 300.0})
    finding = analyse("energy", [metered_record(energy=both), gpu_alone])
    assert "less energy" not in finding.summary
    assert sweeps(metered([metered_record(energy=both), gpu_alone])) == []
    paired = sweeps(metered([metered_record(per_step_j=6.0), gpu_alone]))
    assert len(paired) == 1, "of the same meter they are a sweep"


def test_no_joules_are_no_valid_measurement_and_unknown_items_no_joules_per_item() -> None:
    nothing = [metered_record(per_step_j=0.0) for _ in range(2)]
    (runs,) = metered(nothing)
    assert (runs.verdict, runs.spread) == ("INVALID", 0.0)
    assert "0 J metered" in runs.reasons[0]
    assert analyse("energy", nothing).answered
    below = metered_record(per_step_j=0.0, spec={"power_cap_w": 300.0})
    finding = analyse("energy", [*nothing, below])
    (choices,) = [table for table in finding.tables if table.title.startswith("Choices")]
    assert [row[choices.columns.index("above the least (%)")] for row in choices.rows] == [None, None]
    assert "no setting was measured validly" in finding.summary
    assert not any(table.title.startswith("Below a cap") for table in finding.tables), "no ratio to nothing"
    lacking = replace(metered_record(), items_per_step=None)
    (unknown,) = metered([lacking])
    assert (unknown.item, unknown.per_item_j) == ("step", unknown.per_step_j)
    finding = analyse("energy", [lacking])
    assert finding.summary.startswith("Average power: "), "no joules per item"
    assert "energy per item (J)" not in finding.tables[0].columns


def test_caps_at_two_batches_are_told_apart() -> None:
    large = [replace(record, spec=replace(record.spec, batch=64)) for record in capped_records()]
    finding = analyse("energy", [*capped_records(), *large])
    names = {str(row[0]) for row in table_of(finding, "Below a cap, over").rows}
    assert sorted(names) == [f"{each} train (batch {size})" for each in ("memnet", "vgg") for size in (64, "default")]
    assert "2 of 4 pairs of workload and phase save energy" in finding.summary
    chart = next(chart for chart in finding.charts if chart.title == "Energy below a power cap")
    assert all(len(series.x) == 1 for series in chart.series)


def test_time_energy_and_edp_stand_against_the_cap_and_power_by_setting() -> None:
    finding = analyse("energy", capped_records())
    charts = {chart.title: chart for chart in finding.charts}
    energy = charts["Energy below a power cap"]
    assert [(series.name, series.workload, series.x) for series in energy.series] == [
        *(("memnet train", "memnet", [300.0]), ("vgg train", "vgg", [300.0]))
    ]
    assert [series.y[0] for series in energy.series] == pytest.approx([0.75, 0.9])
    assert {"Time below a power cap", "EDP below a power cap", "Time below a clock cap"} <= charts.keys()
    traces = charts["Power by setting: vgg train on NVIDIA H200"]
    assert [series.name for series in traces.series] == [
        *("no power cap, no clock cap", "no power cap, 900 MHz", "300 W, no clock cap")
    ]
    assert traces.series[0].x[0] == pytest.approx(0.0)
    assert traces.series[0].y == pytest.approx([600.0] * len(traces.series[0].y))


def test_the_published_statements_stand_beside_ours() -> None:
    table = table_of(analyse("energy", capped_records()), "Below a clock cap, as published")
    assert [row[2] for row in table.rows] == [27, 50, 50]
    assert [row[3] for row in table.rows] == pytest.approx([20, 0, 0]), "the study capped clocks; power caps are others"
    nothing = table_of(analyse("energy", [metered_record()]), "Below a clock cap, as published")
    assert [row[3] for row in nothing.rows] == [None] * 3


def test_capped_runs_are_no_headline_and_compared_with_the_same_work_only() -> None:
    records = capped_records()
    assert [len(group.runs) for group in select(records, profiled=False).groups] == [1, 1]
    other = metered_record("vgg", 1.0, 0.01, spec={"power_cap_w": 300.0, "batch": 4})
    assert all(pair.below.spec.batch is None for pair in caps(metered([*records, other]), {}))


def test_labels_name_what_is_left_at_its_default() -> None:
    records = [metered_record(spec={"batch": batch, "power_cap_w": cap}) for batch, cap in ((None, None), (8, 300.0))]
    assert labels(metered(records)) == ["preset's batch, no power cap", "batch 8, 300 W"]


def test_the_power_trace_has_its_sections_and_the_clock_beside() -> None:
    record = metered_record()
    finding = analyse("energy", [record])
    power, clock = (chart for chart in finding.charts if chart.kind == "line")
    assert (power.unit, clock.unit) == ("W", "MHz")
    assert [span.label for span in power.spans] == ["idle", "setup", "warm-up", "steps"]
    assert power.spans == clock.spans
    table = section_table(only([record]))
    rows = {row[0]: row for row in table.rows}
    assert rows["steps"][2:5] == pytest.approx([6.0, 300.0, 300.0])
    assert rows["idle"][3] == pytest.approx(IDLE_W), "no watt of the setup after it"
    assert rows["idle"][6] == pytest.approx(345.0, rel=0.1)


def test_power_of_a_counter_without_watts_is_its_rise() -> None:
    seconds = [0.1 * number for number in range(101)]
    stepped: list[float | None] = [200.0 * 0.2 * (number // 2) for number in range(101)]  # renewed every 0.2 s
    shown = replace(energy_of(2.0, 0.01).traces[0], seconds=seconds, joules=stepped, watts=[], clock_mhz=[])
    energy = energy_of(2.0, 0.01, traces=[shown], stretches=[Stretch(name=STEPS, begin_s=1.0, end_s=9.0)])
    assert [watts for _, watts in shown.power] == pytest.approx([200.0] * 50)
    table = section_table(only([metered_record(energy=energy)]))
    assert table.rows[0][3] == pytest.approx(200.0)
    assert table.rows[0][6] is None


def test_a_training_run_that_missed_its_target_has_no_energy_to_it() -> None:
    curve = [Point(items=1, seconds=100.0, loss=1.0, quality=91.0, energy_j=30_000.0)]
    learning = Learning(
        metric="accuracy", unit="%", target=90.0, better="higher", protocol="", quality=91.0, reached=True,
        seconds=100.0, items=1, energy_j=30_000.0, metered="NVML of GPU 0", curve=curve,
    )  # fmt: skip
    record = record_of("autoenc", place="gpu", spec={"kind": "training"}, learning=learning, step_s=[], warmup_s=[])
    table = table_of(analyse("energy", [record]), "Energy to target quality")
    columns = ("energy to target (kJ)", "time to target (s)", "average power (W)", "EDP (kJ s)")
    assert [cell(table, 0, name) for name in columns] == [30.0, 100.0, 300.0, 3000.0]
    missed = replace(record, learning=replace(learning, reached=False))
    assert not analyse("energy", [missed]).answered


def model_records(seed: int = 0) -> list[Record]:
    """Energy runs and profiles of six workloads on a machine of 80 W, 10 pJ per FLOP and 50 pJ per byte."""
    random = np.random.default_rng(seed)
    records = []
    for workload in ("seq2seq", "memnet", "speech", "autoenc", "residual", "vgg"):
        rows = []
        for kind in ("MatMul", "Mul"):
            flop, moved = 10 ** random.uniform(9, 11), 10 ** random.uniform(8, 10)
            rows.append(op_row(kind, random.uniform(2e-3, 6e-3), place="gpu", flop=flop, bytes=moved))
        step_s = sum(row.device_s or 0.0 for row in rows) + 0.001
        joules = 80 * step_s + sum(10e-12 * (row.flop or 0) + 50e-12 * (row.bytes or 0) for row in rows)
        records.append(metered_record(workload, joules, step_s, energy=energy_of(joules, step_s, 1000 * step_s)))
        records.append(record_of(workload, rows, place="gpu", spec={"kind": "profiled"}, outside_s=0.001))
    return records


def test_joules_by_op_class_add_up_to_those_of_the_step() -> None:
    records = model_records()
    finding = analyse("energy", records)
    table = table_of(finding, "Energy by op class")
    for record in records[::2]:
        assert record.energy is not None
        own = [row for row in table.rows if str(row[0]).startswith(record.spec.workload)]
        assert sum(float(row[3] or 0) for row in own) == pytest.approx(record.energy.per_step_j)
        assert sum(float(row[4] or 0) for row in own) == pytest.approx(100.0)
        assert {row[2] for row in own} == {"Matrix operations", "Elementwise arithmetic", "outside ops"}
    terms = {row[1]: row[2] for row in table_of(finding, "The energy model's").rows}
    assert terms == pytest.approx({"static power": 80.0, "FLOP of all ops": 10.0, "bytes of all ops": 50.0}, rel=1e-4)
    assert any("off by" in note and "in the median" in note for note in finding.notes)
    layers = table_of(finding, "Energy by layer")
    assert {row[2] for row in layers.rows} == {"classifier.hidden.linear", "network", "outside ops"}


def test_too_few_runs_for_a_model_are_refused_in_a_note() -> None:
    finding = analyse("energy", model_records()[:10])
    assert not any(table.title.startswith("Energy by op") for table in finding.tables)
    assert any("5 metered and profiled runs of 5 workloads; an energy model needs 6" in note for note in finding.notes)
