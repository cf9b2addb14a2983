"""Cores: which are taken, in what order, and what the speed-ups of bound runs say."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom as run_fathom
from sample_records import MACHINES, record_of
from test_cli import document

from fathom.analysis.questions import cores
from fathom.analysis.questions.cores import quotient
from fathom.analysis.statistics import Interval
from fathom.core.errors import BadOption
from fathom.core.fingerprint import Machine
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import scale
from fathom.machine.host import HardwareThread, cpu_numbers

TWO_NODES = [
    HardwareThread(number, core=number % 4, node=(number % 4) // 2) for number in range(8)
]  # 4 cores of 2 threads


def test_cores_are_taken_one_thread_each_and_node_by_node() -> None:
    assert scale.spread(TWO_NODES, 1) == (0,)
    assert scale.spread(TWO_NODES, 2) == (0, 1)  # node 0 alone
    assert scale.spread(TWO_NODES, 4) == (0, 1, 2, 3)  # every core once
    assert scale.spread(TWO_NODES, 6) == (0, 1, 2, 3, 4, 5)  # then second threads, of node 0 first


def test_shared_cores_are_full_ones() -> None:
    assert scale.packed(TWO_NODES, 2) == (0, 4)
    assert scale.packed(TWO_NODES, 4) == (0, 1, 4, 5)
    assert scale.packed([HardwareThread(0, 0, 0), HardwareThread(1, 1, 0)], 2) == ()


def test_shared_cores_are_of_one_node_where_cores_are_numbered_across_nodes() -> None:
    across = [HardwareThread(number, core=number % 4, node=number % 2) for number in range(8)]
    assert scale.spread(across, 2) == (0, 2)
    assert scale.packed(across, 2) == (0, 4)
    assert scale.packed(across, 4) == (0, 2, 4, 6)


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3", [0, 1, 2, 3]), ("0,4", [0, 4]), ("7", [7]), ("0-1,6-7", [0, 1, 6, 7])]
)
def test_the_systems_lists_are_read(text: str, numbers: list[int]) -> None:
    assert cpu_numbers(text) == numbers


def test_the_plan_binds_with_matching_threads_and_with_those_of_the_whole_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale, "topology", lambda: TWO_NODES)
    specs = scale.plan(RunSpec(workload=""), ["vgg"], [1, 2, 8])
    assert [(spec.cores, spec.threads) for spec in specs] == [
        ((0,), 1),
        ((0,), 8),
        ((0, 1), 2),
        ((0, 1), 8),
        ((0, 4), 2),
        (tuple(range(8)), 8),
    ]
    assert {spec.device for spec in specs} == {"cpu"}
    assert RunSpec.from_json(json.loads(json.dumps(specs[0].to_json()))) == specs[0]
    with pytest.raises(BadOption, match="may use 8 cores; cannot run on 9"):
        scale.plan(RunSpec(workload=""), ["vgg"], [9])


def test_an_interrupted_series_has_the_speed_ups_first_and_the_slowest_runs_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale, "topology", lambda: TWO_NODES)
    specs = scale.plan(RunSpec(workload=""), ["vgg", "memnet"], [1, 2, 8])
    ordered = scale.run_order(specs, 3)
    assert sorted(ordered.count(spec) for spec in specs) == [3] * len(specs)
    pools = [(spec.threads == len(spec.cores or ()), len(spec.cores or ())) for spec in ordered]
    assert all(matching for matching, _ in pools[: 3 * 8])  # 1, 2, 8 and 2 sharing a core, of two workloads
    assert pools[3 * 8 :] == [(False, 2)] * 6 + [(False, 1)] * 6


def bound(
    count: int, step_s: float | list[float], threads: int | None, numbers: list[int] | None = None, **changes: Any
) -> Record:
    numbers = numbers or list(range(count))
    steps = step_s if isinstance(step_s, list) else [step_s] * 20
    cores = sorted({number % 4 for number in numbers})
    cpu = replace(MACHINES["laptop"].cpu, affinity=numbers, cores=cores, nodes=[0])
    spec = {"cores": tuple(numbers), "threads": threads, "device": "cpu"}
    fields: dict[str, Any] = {"machine": Machine(cpu=cpu), "step_s": steps, "warmup_s": [], **changes}
    return record_of("vgg", spec=spec, **fields)


def failed_on(count: int) -> Record:
    return bound(count, [], count, outcome="failed", reason="out of memory")


RUNS = [bound(1, 8.0, 1), bound(2, 5.0, 2), bound(2, 10.0, 4), bound(4, 4.0, 4), bound(2, 6.4, 2, [0, 4])]


def test_efficiency_is_speed_up_over_cores() -> None:
    (curve,) = cores.curves_of(RUNS)
    found = {}
    for binding in curve.bindings:
        speedup, efficiency = curve.speedup(binding), curve.efficiency(binding)
        assert speedup is not None
        assert efficiency is not None
        found[binding.count, binding.mode] = (speedup.median, efficiency.median)
    assert found == {
        (1, "matching"): (1.0, 1.0),
        (2, "matching"): (1.6, 0.8),
        (2, "all"): (0.8, 0.4),
        (2, "two per core"): (1.25, 0.625),
        (4, "matching"): (2.0, 0.5),
    }
    finding = cores.analyse(RUNS)
    row = dict(zip(finding.tables[0].columns, finding.tables[0].rows[0], strict=True))
    assert (row["cores"], row["speed-up"], row["efficiency (%)"]) == (4, 2.0, 50.0)
    assert row["all/matching"] == 2.0
    assert finding.summary == (
        "Parallel efficiency on 4 cores: 50 % (vgg). At least 50 %: vgg. One launch a point: the intervals hold within "
        "these processes and say nothing of the next launch."
    )
    assert row["interval"] == "within this process"
    assert not any("two hardware threads per core" in note for note in finding.notes)


def test_a_pool_for_all_is_drawn_where_it_was_measured_and_on_all_cores() -> None:
    """Many threads on one core are not one thread; on all the cores of the machine the two modes are one."""
    (curve,) = cores.curves_of(RUNS)
    assert [(binding.count, binding.mode) for binding in curve.along("all")] == [(2, "all"), (4, "matching")]
    (curve,) = cores.curves_of([*RUNS, bound(1, 16.0, 4)])
    assert [(binding.count, binding.mode) for binding in curve.along("all")] == [
        (1, "all"),
        (2, "all"),
        (4, "matching"),
    ]
    few = [run for run in RUNS if run.spec.cores and len(run.spec.cores) < 4]
    (curve,) = cores.curves_of(few)
    assert [(binding.count, binding.mode) for binding in curve.along("all")] == [(2, "all")], "2 are not all the cores"


def noisy(middle: float, part: float) -> list[float]:
    """Half of the steps lie so far below the middle, half above; no order in them."""
    return [middle * (1 + part * sign) for sign in (1, -1, -1, 1, 1, -1, 1, -1, -1, 1) * 2]


def test_the_interval_of_a_speed_up_is_of_both_medians() -> None:
    found = quotient(Interval(8.0, 7.2, 8.8), Interval(4.0, 3.8, 4.2))
    assert found.median == 2.0
    assert found.low == pytest.approx(2 * math.exp(-math.hypot(math.log(8 / 7.2), math.log(4.2 / 4))))
    assert found.high == pytest.approx(2 * math.exp(math.hypot(math.log(8.8 / 8), math.log(4 / 3.8))))
    finding = cores.analyse([bound(1, noisy(8.0, 0.02), 1), bound(4, noisy(4.0, 0.1), 4)])
    rows: list[dict[str, Any]] = [dict(zip(table.columns, table.rows[-1], strict=True)) for table in finding.tables]
    for row in rows:
        assert row["speed-up from"] < 1.95 < row["speed-up"] < 2.05 < row["speed-up to"]
        assert row["efficiency to (%)"] == pytest.approx(25 * row["speed-up to"])
    one = dict(zip(finding.tables[1].columns, finding.tables[1].rows[0], strict=True))
    assert (one["speed-up from"], one["speed-up to"]) == (1, 1), "one core over itself"


def test_points_of_several_launches_have_intervals_over_launches() -> None:
    """Steps agree within each launch; launches differ by 1 %, and the interval is that of three values."""
    one = [bound(1, 8.0 * level, 1) for level in (0.99, 1.0, 1.01)]
    four = [bound(4, 4.0 * level, 4) for level in (0.99, 1.0, 1.01)]
    finding = cores.analyse([*one, *four])
    row = dict(zip(finding.tables[0].columns, finding.tables[0].rows[0], strict=True))
    half = 4.303 * 0.01 / math.sqrt(3)  # Student's t of three values, of either median
    assert row["speed-up to"] == pytest.approx(2 * math.exp(half * math.sqrt(2)), rel=2e-3)
    assert row["interval"] == "over 3 launches"
    assert finding.summary.endswith("Intervals over 3 launches a point.")
    mixed = cores.analyse([*one, four[0]])
    assert mixed.summary.endswith("say nothing of the next launch."), "a speed-up rests on the side with fewer"
    assert [row[7] for row in mixed.tables[1].rows] == [3, 1]


def test_an_imprecise_efficiency_is_no_number_in_the_summary() -> None:
    finding = cores.analyse([bound(1, 8.0, 1), bound(4, noisy(4.0, 0.5), 4)])
    assert finding.summary == (
        "Not significantly different from 50 %: vgg. "
        "Imprecise on 4 cores, with an interval wider than half of the value: vgg. One launch a point: the intervals "
        "hold within these processes and say nothing of the next launch."
    )


def test_nothing_is_said_of_an_efficiency_without_an_interval() -> None:
    """Three noisy steps have no interval, and an efficiency of 5 % is not thereby one that may be 50 %."""
    finding = cores.analyse([bound(1, 8.0, 1), bound(4, [40.0, 4.0, 90.0], 4)])
    assert finding.tables[1].rows[1][-1] is None
    assert finding.summary.startswith("Without an interval to compare with 50 %: vgg. Imprecise on 4 cores")


def test_without_one_core_or_with_one_alone_the_command_is_named() -> None:
    assert cores.analyse([bound(1, 8.0, 1)]).summary == (
        "Only one core was measured, so there is no efficiency. Run `fathom scale` with more cores."
    )
    assert cores.analyse([bound(2, 8.0, 2)]).summary == (
        "Measured on 2 cores, but not on one core, so there is no speed-up. Run `fathom scale`."
    )


def test_failed_runs_are_noted() -> None:
    note = "Not shown: failed runs: vgg train on 4 cores with 4 threads: out of memory x 2."
    assert note in cores.analyse([*RUNS[:2], failed_on(4), failed_on(4)]).notes
    nothing = cores.analyse([failed_on(4), failed_on(4)])
    assert nothing.summary == "Not measured: every run bound to cores failed. Run `fathom scale`."
    assert nothing.notes == [note]


@pytest.mark.usefixtures("on_the_laptop")
@pytest.mark.parametrize("fails", [True, False])
def test_scale_ends_with_1_where_a_run_failed(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_all(specs: Sequence[RunSpec], store: Store, job: str, run: object) -> None:
        for spec in specs:
            record = failed_on(1) if fails else bound(1, 8.0, 1)
            store.add(replace(record, spec=spec))

    monkeypatch.setattr("fathom.cli.commands._series.run_all", run_all)
    arguments = ["scale", "vgg", "--cores", "1", "--out", str(tmp_path), "--json"]
    assert run_fathom(monkeypatch, *arguments) == (1 if fails else 0)
    told = document(capsys)
    assert any(note.startswith("Not shown: failed runs: vgg train on one core") for note in told["notes"]) is fails


@pytest.mark.usefixtures("on_the_laptop")
def test_each_point_is_launched_three_times_and_a_started_series_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def run_all(specs: Sequence[RunSpec], store: Store, job: str, run: object) -> None:
        asked.append(len(specs))
        for spec in specs:
            store.add(replace(bound(1, 8.0, 1), spec=spec))

    monkeypatch.setattr("fathom.cli.commands._series.run_all", run_all)
    monkeypatch.setattr(scale, "topology", lambda: TWO_NODES[:1])
    arguments = ["scale", "vgg", "--cores", "1", "--out", str(tmp_path), "--json"]
    assert run_fathom(monkeypatch, *arguments, "--runs", "1") == 0
    assert run_fathom(monkeypatch, *arguments) == 0
    assert asked == [1, 2]
    assert len(list(tmp_path.glob("*.json"))) == 3


def test_bound_runs_answer_no_other_question() -> None:
    from fathom.analysis.questions import phases

    assert phases.analyse(RUNS).summary == "Not measured. Run `fathom study`."
    assert cores.analyse([record_of("vgg")]).summary == "Not measured. Run `fathom scale`."
