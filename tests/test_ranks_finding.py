"""Scaling over ranks: speed-ups, Amdahl and Gustafson from records made by hand, and which runs are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from conftest import fathom as run_fathom
from sample_records import record_of

from fathom.analysis.finding import Finding, analyse
from fathom.analysis.rank_jobs import curves_of, elapsed_s
from fathom.analysis.scaling_law import STRONG, WEAK, law, serial_fraction
from fathom.core.ranks import Ranks, RankSeries
from fathom.core.record import Record
from fathom.core.spec import RunSpec

BATCH = 16


def job(
    ranks: int, step_s: float, scaling: str = WEAK, parts: tuple[float, float] = (0.0, 0.0), **changes: Any
) -> Record:
    """Twenty equal steps; parts are exposed communication and waiting."""
    exposed_s, wait_s = parts
    fields: dict[str, Any] = {"strategy": "ddp", "scaling": scaling, "device": "cpu", "threads": 1, **changes}
    spec = RunSpec(workload="vgg", ranks=ranks, **fields)
    series = [
        RankSeries(
            rank=rank,
            host="here",
            device="cpu",
            cores=[rank],
            threads=1,
            step_s=[step_s] * 20,
            compute_s=[step_s - exposed_s - wait_s] * 20,
            exposed_s=[exposed_s] * 20,
            wait_s=[wait_s] * 20,
            hidden_s=[0.0] * 20,
            wire_bytes=[1000] * 20,
        )
        for rank in range(ranks)
    ]
    items = BATCH if scaling == STRONG else BATCH * ranks
    held = Ranks(backend="gloo", ranks=ranks, series=series)
    return replace(
        record_of("vgg"), spec=spec, step_s=[step_s] * 20, warmup_s=[], items_per_step=items, ranks=held, profile=None
    )


def rows(finding: Finding, title: str = "Speed-up and efficiency") -> list[dict[str, Any]]:
    (table,) = [table for table in finding.tables if table.title == title]
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_the_laws_and_their_fits() -> None:
    assert law(0.1, 1, STRONG) == law(0.1, 1, WEAK) == 1
    assert law(0.1, 10, STRONG) == pytest.approx(1 / 0.19)
    assert law(0.1, 10, WEAK) == pytest.approx(9.1)
    for scaling in (STRONG, WEAK):
        exact = {ranks: law(0.07, ranks, scaling) for ranks in (2, 4, 8, 16)}
        assert serial_fraction(exact, scaling) == pytest.approx(0.07)
    assert serial_fraction({}, WEAK) is None
    assert serial_fraction({2: 2.5}, STRONG) == 0  # faster than linear is no negative fraction


def test_strong_speed_up_is_the_ratio_of_step_times() -> None:
    finding = analyse("ranks", [job(1, 0.8), job(2, 0.5, STRONG), job(4, 0.4, STRONG)])
    assert [(row["ranks"], row["speed-up"], row["efficiency (%)"]) for row in rows(finding)] == [
        (1, 1.0, 100.0),
        (2, pytest.approx(1.6), pytest.approx(80)),
        (4, pytest.approx(2.0), pytest.approx(50)),
    ]
    assert {row["law"] for row in rows(finding)} == {"Amdahl"}


def test_weak_speed_up_is_the_ratio_of_items_per_second() -> None:
    finding = analyse("ranks", [job(1, 0.8), job(2, 1.0), job(4, 1.6)])
    assert [row["speed-up"] for row in rows(finding)] == [1.0, pytest.approx(1.6), pytest.approx(2.0)]
    assert [row["items/step"] for row in rows(finding)] == [16, 32, 64]
    assert {row["law"] for row in rows(finding)} == {"Gustafson"}


def test_one_rank_is_the_base_of_both_kinds_and_of_slow_ranks_and_several_nodes() -> None:
    records = [job(1, 0.8), job(2, 1.0), job(2, 0.5, STRONG), job(2, 1.6, slow_rank=(1, 2.0)), job(2, 1.1, nodes=2)]
    curves = curves_of(records)
    assert [(curve.strategy, curve.scaling) for curve in curves] == [
        ("ddp", "strong"),
        ("ddp", "weak"),
        ("ddp, 2 nodes", "weak"),
        ("ddp, rank 1 2x slower", "weak"),
    ]
    found = [curve.speedup(curve.widest) for curve in curves]
    assert [each and each.median for each in found] == [
        pytest.approx(1.6),
        pytest.approx(1.6),
        pytest.approx(2 * 0.8 / 1.1),
        pytest.approx(1.0),
    ]


def test_options_of_a_strategy_are_apart_and_have_their_own_base() -> None:
    tuned: dict[str, Any] = {"strategy_options": {"accumulate": 2}}
    curves = curves_of([job(1, 0.8), job(2, 1.0), job(1, 0.9, **tuned), job(2, 0.9, **tuned)])
    assert [(curve.strategy, len(curve.jobs)) for curve in curves] == [("ddp", 2), ("ddp accumulate=2", 2)]


def test_launches_of_one_point_are_pooled_with_an_interval_over_them() -> None:
    finding = analyse(
        "ranks", [*(job(1, 0.8 + 0.01 * n) for n in range(3)), *(job(2, 1.0 + 0.01 * n) for n in range(3))]
    )
    (one, two) = rows(finding)
    assert one["interval"] == two["interval"] == "over 3 launches"
    assert two["speed-up from"] < two["speed-up"] < two["speed-up to"]


def test_the_summary_names_what_a_step_is_lost_to() -> None:
    finding = analyse("ranks", [job(1, 0.8), job(2, 1.0, parts=(0.05, 0.15))])
    assert finding.summary.startswith(
        "vgg, ddp, weak: efficiency 80 % on 2 ranks (waiting for the slowest rank: 15 % of a step)."
    )
    (_, parts) = rows(finding, "What a step is spent on, mean over the ranks")
    assert parts["compute (ms)"] == pytest.approx(800)
    assert parts["exposed communication (ms)"] == pytest.approx(50)
    assert parts["waiting (ms)"] == pytest.approx(150)
    assert parts["sent by a rank (MB)"] == pytest.approx(0.001)


def test_the_summary_states_no_efficiency_that_is_imprecise_and_shares_of_the_parts_as_the_chart_does() -> None:
    """A step of the slowest rank, 1.5 s here, is longer than the mean over the ranks of the parts."""
    slowest = replace(job(2, 1.0, parts=(0.4, 0.1)), step_s=[1.5] * 20)
    base = job(1, 0.8)
    summary = analyse("ranks", [base, slowest]).summary
    assert "efficiency 53 % on 2 ranks (exposed communication: 40 % of a step)." in summary
    scattered = replace(slowest, step_s=[0.5, 1.0, 1.5, 2.0, 6.0] * 4)
    summary = analyse("ranks", [base, scattered]).summary
    assert summary.startswith(
        "Imprecise efficiency, with an interval wider than half of the value: vgg, ddp, weak. One launch"
    )


def test_without_a_base_there_is_no_speed_up_and_failed_jobs_are_named() -> None:
    failed = replace(job(4, 1.0), outcome="failed", reason="rank 3: killed by SIGKILL")
    finding = analyse("ranks", [job(2, 1.0), failed])
    assert finding.summary.endswith("A speed-up also needs a job of 1 rank: --ranks 1,2.")
    assert finding.notes[-1] == "Not shown: failed jobs: vgg, ddp, 4 ranks: rank 3: killed by SIGKILL."
    assert "Run `fathom scale --ranks 1,2`" in analyse("ranks", [record_of("vgg")]).summary


def test_jobs_of_ranks_answer_no_other_question() -> None:
    alone = [record_of("vgg")]
    for question in ("suite", "sections", "cores", "variance", "stationarity"):
        assert analyse(question, [*alone, job(2, 1.0)]) == analyse(question, alone)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--ranks", "x"], "--ranks takes numbers such as 1,2,4"),
        (["--ranks", "0"], "numbers from 1"),
        (["--ranks", "2", "--cores", "2"], "give one of them"),
        (["--ranks", "2", "--strategy", "ddq"], "did you mean ddp"),
        (["--ranks", "2", "--scaling", "wide"], "no scaling 'wide'"),
        (["--ranks", "2", "--slow-rank", "1"], "such as 1:2x"),
        (["--ranks", "2", "--slow-rank", "5:2x"], "no job has the slow rank 5"),
        (["--ranks", "2", "--tune", "accumulate"], "--tune takes name=value"),
        (["--ranks", "2", "--nodes", "2"], "need a rendezvous"),
        (["--ranks", "3", "--nodes", "2", "--rendezvous", "a:1"], "3 ranks cannot be divided among 2 nodes"),
        (["--ranks", "2", "--timeout", "0.1"], "timeout must be 1 to 86,400"),
        (["--ranks", "2", "--device", "cuda:7"], "device 'cuda:7' is not on this machine"),
        (["--strategy", "ddp"], "--strategy needs --ranks"),
        (["--max-restarts", "2"], "--max-restarts needs --ranks"),
    ],
)
def test_wrong_options_are_one_line(
    options: list[str], problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_fathom(monkeypatch, "scale", "memnet", *options) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert problem in line


def of(workload: str, record: Record) -> Record:
    return replace(record, spec=replace(record.spec, workload=workload))


def test_many_curves_are_summed_up_as_ranges() -> None:
    efficiencies = {"vgg": 1.25, "memnet": 2.5, "autoenc": 1.0}
    jobs = [of(name, job(1, 1.0)) for name in efficiencies]
    jobs += [of(name, job(2, step_s, parts=(0.2, 0.0))) for name, step_s in efficiencies.items()]
    jobs += [of(name, job(2, step_s / 2, STRONG)) for name, step_s in efficiencies.items()]
    summary = analyse("ranks", jobs).summary
    weak = "ddp, weak, 2 ranks: efficiency 40 % for memnet (exposed communication: 8 % of a step) to 100 % for autoenc."
    assert weak in summary
    assert "ddp, strong, 2 ranks: efficiency 40 % for memnet to 100 % for autoenc." in summary


def test_weak_and_strong_scaling_have_charts_of_their_own_with_the_ideal_and_the_law() -> None:
    finding = analyse("ranks", [job(1, 1.0), job(2, 1.25), job(4, 1.25), job(2, 0.6, STRONG, (0.15, 0.03))])
    charts = {chart.title: chart for chart in finding.charts}
    assert list(charts) == [
        f"{what}, {scaling} scaling"
        for scaling in (WEAK, STRONG)
        for what in ("Speed-up", "Parallel efficiency", "Parts of a step")
    ]
    measured, ideal, fitted = charts["Speed-up, weak scaling"].series
    assert measured.name == "vgg"
    assert measured.y == pytest.approx([1, 1.6, 3.2])
    assert (ideal.role, ideal.y) == ("target", [1, 2, 4])
    assert fitted.name.startswith("Gustafson, serial fraction ")
    assert fitted.y[0] == pytest.approx(1)
    assert charts["Speed-up, strong scaling"].series[-1].name == "Amdahl, serial fraction 20 %"
    assert [part.y for part in charts["Parts of a step, strong scaling"].series] == [
        pytest.approx([100, 70]), pytest.approx([0, 25]), pytest.approx([0, 5])
    ]  # fmt: skip


def test_doubling_the_workers_stands_beside_the_guide() -> None:
    found = rows(analyse("ranks", [job(1, 1.0), job(2, 1.25), job(8, 2.0)]), "Doubling the workers: 50 % is ideal")
    published, measured = ([row for row in found if row["source"] == name] for name in ("published", "measured"))
    assert {row["job"]: row["less time for an item (%)"] for row in published} == {
        "CNTK": 35, "MXNet": 35, "Caffe": 28, "Torch": 10, "TensorFlow": 10
    }  # fmt: skip
    ((what, workers, less, _),) = (row.values() for row in measured)  # 8 ranks are not twice as many as any
    assert (what, workers, less) == ("vgg, ddp, weak", "1 to 2 ranks", pytest.approx(37.5))


def test_curves_of_two_machines_are_told_apart() -> None:
    elsewhere = replace(job(1, 1.0).machine, host_id="x", cpu=replace(job(1, 1.0).machine.cpu, name="Other CPU"))
    jobs = [job(1, 1.0), job(2, 1.0)]
    finding = analyse("ranks", [*jobs, *(replace(each, machine=elsewhere, id=f"other-{each.id}") for each in jobs)])
    names = {series.name for series in finding.charts[0].series if series.role == "measured"}
    assert len(names) == 2
    assert {row["machine"] for row in rows(finding)} == {"Laptop CPU, 4 cores", "Other CPU, 4 cores"}


@pytest.mark.parametrize("scaling", [WEAK, STRONG])
def test_without_a_job_of_one_rank_the_summary_says_what_was_measured(scaling: str) -> None:
    """Of strong scaling, such jobs were "Not measured"."""
    finding = analyse("ranks", [job(2, 0.5, scaling, parts=(0.1, 0.05), strategy="asynchronous")])
    rate = {WEAK: 64, STRONG: 32}[scaling]
    assert finding.summary == (
        f"vgg, async, {scaling}, 2 ranks: 20 steps of 500 ms, {rate} items/s; compute 70 %, exposed "
        "communication 20 %, waiting for the slowest rank 10 % of a step. "
        "A speed-up also needs a job of 1 rank: --ranks 1,2."
    )
    assert [(row["scaling"], row["ranks"], row["speed-up"]) for row in rows(finding)] == [(scaling, 2, None)]


def test_a_job_of_one_rank_alone_needs_another() -> None:
    finding = analyse("ranks", [job(1, 0.5)])
    assert finding.summary.startswith("vgg, ddp, weak, 1 rank: 20 steps of 500 ms, 32 items/s; compute 100 %")
    assert finding.summary.endswith("A speed-up also needs a job of several ranks: --ranks 1,2.")


def test_a_strong_job_is_shown_beside_weak_ones_without_a_base() -> None:
    curves = curves_of([job(2, 0.5), job(4, 0.5), job(2, 0.3, STRONG)])
    assert [(curve.scaling, [each.ranks for each in curve.jobs]) for curve in curves] == [
        ("strong", [2]),
        ("weak", [2, 4]),
    ]


def test_launches_that_differ_too_much_bound_no_speed_up() -> None:
    finding = analyse("ranks", [job(1, 0.5), job(1, 5.0), job(2, 0.5), job(2, 0.5)])
    two = rows(finding)[1]
    assert two["speed-up"] is not None
    assert (two["speed-up from"], two["efficiency to (%)"]) == (None, None)


def test_ranks_that_meet_every_fourth_step_are_as_fast_as_their_meetings() -> None:
    """Steps of 1 s, and a meeting of 5 s after every fourth; the slower rank alternates between two meetings."""
    slow, fast = [2.0, 1.0, 2.0, 1.0], [1.0, 2.0, 1.0, 2.0]  # 6 s each, though the slower of each step takes 8 s
    steps = [[*of_rank[:3], of_rank[3] + 5.0] * 4 for of_rank in (slow, fast)]
    met = [0.0, 0.0, 0.0, 5.0] * 4
    record = job(2, 1.0, strategy="local_sgd", strategy_options={"period": 4})
    assert record.ranks is not None
    series = [
        replace(each, step_s=own, compute_s=[s - m for s, m in zip(own, met, strict=True)], exposed_s=met,
                wait_s=[0.0] * 16, hidden_s=[0.0] * 16, wire_bytes=[0, 0, 0, 4000] * 4)
        for each, own in zip(record.ranks.series, steps, strict=True)
    ]  # fmt: skip
    together = [max(same) for same in zip(*steps, strict=True)]
    held = replace(record.ranks, series=series, settings={"period": 4})
    record = replace(record, step_s=together, ranks=held)
    (curve,) = curves_of([record])
    assert curve.widest.step.median == pytest.approx(11 / 4)
    assert curve.widest.part_s("exposed_s") == pytest.approx(5 / 4)
    assert curve.widest.wire_bytes == pytest.approx(1000)
    assert elapsed_s(record)[3::4] == pytest.approx([11, 22, 33, 44])
    assert sum(together) == pytest.approx(52), "the slowest of each step is no time that passed"


def test_curves_of_other_settings_say_which() -> None:
    records = [job(ranks, 1.0, batch=batch) for ranks in (1, 2) for batch in (None, 64)]
    names = {curve.name for curve in curves_of(records)}
    assert names == {"vgg, ddp (batch default), weak", "vgg, ddp (batch 64), weak"}


def test_a_slowed_job_before_a_plain_one_without_a_base_is_shown() -> None:
    """Oldest first, and no job of one rank: neither curve has a base."""
    slowed = job(2, 2.0, slow_rank=(1, 2.0))
    finding = analyse("ranks", [slowed, job(2, 1.0)])
    assert "A speed-up also needs a job of 1 rank" in finding.summary
    assert all(len(curve.jobs) == 1 for curve in curves_of([slowed, job(2, 1.0)]))


def test_asynchronous_ranks_have_made_as_many_steps_as_their_own_times_say() -> None:
    """Older records have the harmonic mean of each step, which is less than any rank took where steps scatter."""
    steps = [[10.0, 30.0] * 8, [30.0, 10.0] * 8]
    record = job(2, 1.0, strategy="hybrid", strategy_options={"staleness": 8})
    assert record.ranks is not None
    series = [replace(each, step_s=own) for each, own in zip(record.ranks.series, steps, strict=True)]
    held = replace(record.ranks, series=series, settings={"staleness": 8, "group_size": 1})
    record = replace(record, step_s=[15.0] * 16, warmup_s=[1.0], ranks=held)
    assert elapsed_s(record)[-1] == pytest.approx(1 + 16 * 20)
    assert elapsed_s(record)[2] == pytest.approx(1 + 40)
