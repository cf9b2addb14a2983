"""Collective operations: sizes and bandwidths as nccl-tests defines them, the fitted line, checked results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom as run_fathom
from sample_records import record_of

from fathom.analysis.alpha_beta import fit
from fathom.analysis.finding import analyse
from fathom.cli.commands._running import line
from fathom.core.errors import BadOption, DataError, UnknownName
from fathom.core.ranks import COPY, OPERATIONS, PRODUCT, Collective, Overlap, Ranks, SharedWork, bus_factor
from fathom.core.record import Record
from fathom.experiments.ranks import collectives
from fathom.measure import collectives as measured
from fathom.report import write
from fathom.report.page import _facts

US, GB = 1e-6, 1e9


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(name, 4) for name in OPERATIONS] == [1.5, 0.75, 0.75, 1.0, 1.0]
    assert bus_factor("all-reduce", 1) == 0.0
    one = Collective(operation="all-reduce", message_bytes=4_000_000, sample_s=[1e-3, 2e-3, 4e-3], calls=1)
    assert one.latency_s == 2e-3
    assert one.algorithm_bytes_per_s == 2 * GB
    assert one.bus_bytes_per_s(4) == 3 * GB


def test_every_rank_has_the_same_number_of_elements_at_every_size() -> None:
    assert measured.sizes(1024, 65536, 2) == [1024, 4096, 16384, 65536]
    assert measured.sizes(1, 64, 3) == [12, 24, 72]
    assert all(size % (4 * 7) == 0 for size in measured.sizes(1, 1 << 20, 7))


def test_a_line_is_found_again() -> None:
    times = {size: 40e-6 + size / (5 * GB) for size in (1024, 4096, 65536, 1 << 20, 1 << 26)}
    found = fit(times)
    assert found is not None
    assert found.alpha_s == pytest.approx(40e-6, rel=1e-9)
    assert found.bytes_per_s == pytest.approx(5 * GB, rel=1e-9)
    assert found.largest_error < 1e-9
    assert found.seconds(5_000_000) == pytest.approx(1.04e-3)


def test_alpha_is_that_of_small_messages_though_large_ones_take_longer() -> None:
    """Least squares in seconds would take the noise of the largest message for latency."""
    times = {size: 20e-6 + size / GB for size in (1024, 4096, 16384, 1 << 26)}
    times[1 << 26] *= 1.05
    found = fit(times)
    assert found is not None
    assert found.alpha_s == pytest.approx(20e-6, rel=0.05)
    assert fit({1024: 1e-3}) is None
    flat = fit({1024: 1e-3, 4096: 1e-3})
    assert flat is not None
    assert flat.bytes_per_s is None or flat.bytes_per_s > 1e9


def record(count: int = 2, **changes: Any) -> Record:
    (spec,) = collectives([count], "cpu", 1024, 65536, OPERATIONS)
    timed = [
        Collective(operation=name, message_bytes=size, sample_s=[10 * US + size / GB] * 5, calls=10)
        for name in OPERATIONS
        for size in (1024, 4096, 65536)
    ]
    fields: dict[str, Any] = {"ranks": Ranks(backend="gloo", ranks=count, collectives=timed), "step_s": [], **changes}
    return replace(record_of("autoenc"), spec=spec, warmup_s=[], losses=[], **fields)


def test_the_question_gives_alpha_and_beta_of_every_operation() -> None:
    finding = analyse("collectives", [record(), record(4)])
    rows = [dict(zip(finding.tables[0].columns, row, strict=True)) for row in finding.tables[0].rows]
    assert [(row["operation"], row["ranks"]) for row in rows] == [(name, n) for n in (2, 4) for name in OPERATIONS]
    for row in rows:
        assert row["alpha (µs)"] == pytest.approx(10)
        assert row["1/beta (GB/s)"] == pytest.approx(1)
    assert len(finding.tables[1].rows) == 2 * 5 * 3
    assert finding.summary.startswith("all-reduce among 4 ranks (gloo): 11 µs for 1.02 kB, bus bandwidth 1.3 GB/s")


def test_charts_have_every_operation_among_the_most_ranks_and_all_reduce_with_its_fitted_lines() -> None:
    bandwidth, times = analyse("collectives", [record(), record(4)]).charts
    assert bandwidth.title == "Bus bandwidth: 4 ranks"
    assert [series.name for series in bandwidth.series] == list(OPERATIONS)
    assert times.title == "Time of one call: all-reduce"
    two, four, fitted, _ = times.series
    assert [two.name, four.name, fitted.role] == ["2 ranks", "4 ranks", "target"]
    assert fitted.y == pytest.approx(two.y)  # these times are on a line


def test_other_questions_do_not_see_these_records_nor_this_one_others(tmp_path: Path) -> None:
    both = [record(), record_of("autoenc")]
    assert analyse("collectives", [record_of("autoenc")]).answered is False
    assert "Run `fathom collectives`" in analyse("collectives", []).summary
    for question in ("suite", "sections", "breakdown", "cores"):
        assert analyse(question, both) == analyse(question, both[1:])
    page = write(both, tmp_path / "report.html").read_text()
    assert "what does a message between ranks cost?" in page
    assert _facts(both)[0] == (1, "workload")  # messages are none


def test_records_are_read_back_and_impossible_ones_are_refused() -> None:
    good = record()
    assert Record.from_json(good.to_json()) == good
    document = good.to_json()
    document["ranks"]["collectives"][0]["sample_s"] = []
    with pytest.raises(DataError, match="without samples"):
        Record.from_json(document)


def with_contention(count: int, factor: float) -> Record:
    plain = record(count)
    assert plain.ranks is not None
    shared = [
        SharedWork(work=PRODUCT, flop=2, bytes_moved=12, alone_s=[1.0, 1.0, 9.0], together_s=[1.1, 1.1, 1.1]),
        SharedWork(
            work=COPY,
            flop=1,
            bytes_moved=768,
            alone_s=[2.0],
            together_s=[2.0 * factor],
            slowest_s=[4.0 * factor],
        ),
    ]
    overlaps = [Overlap(message_bytes=1024, compute_s=[3.0], message_s=[2.0], both_s=[4.0])]
    return replace(plain, ranks=replace(plain.ranks, shared_work=shared, overlaps=overlaps), id=f"{count}-{factor}")


def test_what_ranks_take_from_each_other_is_a_table_of_medians_over_the_launches() -> None:
    records = [with_contention(4, 1.5), with_contention(4, 1.7), with_contention(4, 3.0), with_contention(2, 1.0)]
    shared, beside = analyse("collectives", records).tables[2:]
    assert [row[1:] for row in shared.rows] == [
        [2, COPY, 768, 1.0, 2.0],
        [2, PRODUCT, 12, pytest.approx(1.1), pytest.approx(1.1)],
        [4, COPY, 768, 1.7, 3.4],
        [4, PRODUCT, 12, pytest.approx(1.1), pytest.approx(1.1)],
    ]
    assert [row[1:] for row in beside.rows] == [[2, 1024, 50.0, None], [4, 1024, 50.0, None]]  # 3 + 2 - 4 of 2
    assert len(analyse("collectives", [record()]).tables) == 2
    assert Record.from_json(records[0].to_json()) == records[0]


@pytest.mark.parametrize(("compute", "message", "both", "hidden"), [(3, 2, 3, 1.0), (3, 2, 5, 0.0), (3, 2, 6, 0.0)])
def test_a_message_is_hidden_by_what_both_at_once_save(
    compute: float, message: float, both: float, hidden: float
) -> None:
    one = Overlap(message_bytes=1, compute_s=[compute], message_s=[message], both_s=[both])
    assert one.hidden == hidden


@pytest.mark.parametrize(("after", "added"), [([3.5, 9.0, 3.25], 0.5), ([2.9], None), ([], None)])
def test_a_message_adds_to_the_computing_before_it(after: list[float], added: float | None) -> None:
    one = Overlap(message_bytes=1, compute_s=[3.0], message_s=[2.0], both_s=[4.0], after_s=after)
    assert one.added_s == added


@pytest.mark.parametrize("times", [[], [0.0]])
def test_shared_work_without_positive_times_is_refused(times: list[float]) -> None:
    document = with_contention(2, 1.0).to_json()
    document["ranks"]["shared_work"][0]["together_s"] = times
    with pytest.raises(DataError, match="without positive times"):
        Record.from_json(document)


def test_a_failed_job_is_named() -> None:
    failed = record(outcome="failed", reason="rank 1: killed by SIGKILL", ranks=None)
    assert "2 ranks: rank 1: killed by SIGKILL" in analyse("collectives", [failed]).notes[0]


@pytest.mark.parametrize(
    ("counts", "least", "most", "operations", "problem"),
    [
        ([1], 1, 2, OPERATIONS, "at least 2 ranks"),
        ([0], 1, 2, OPERATIONS, "numbers from 1"),
        ([2], 2, 1, OPERATIONS, "the least first"),
        ([2], 1, 1 << 40, OPERATIONS, "16 GiB"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    counts: list[int], least: int, most: int, operations: list[str], problem: str
) -> None:
    with pytest.raises(BadOption, match=problem):
        collectives(counts, "cpu", least, most, operations)


def test_a_wrong_operation_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownName, match="did you mean all-reduce"):
        collectives([2], "cpu", 1, 2, ["allreduce"])
    assert run_fathom(monkeypatch, "collectives", "--ranks", "two") == 2
    assert "--ranks takes numbers such as 1,2,4" in capsys.readouterr().err


def test_an_interval_that_spans_powers_of_ten_is_none() -> None:
    """Two launches of which one was slow: Student's t of one degree of freedom goes from 246 to 10^11 µs."""
    calm = record()
    assert calm.ranks is not None
    slow = [replace(each, sample_s=[80 * seconds for seconds in each.sample_s]) for each in calm.ranks.collectives]
    differing = replace(calm, ranks=replace(calm.ranks, collectives=slow), id="other")
    (table,) = [table for table in analyse("collectives", [calm, differing]).tables if "Every" in table.title]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    for row in rows:
        assert (row["from"], row["to"]) == (None, None)
        assert row["interval"] == "none: over 2 launches the times differ too much"
    close = [replace(each, sample_s=[1.1 * seconds for seconds in each.sample_s]) for each in calm.ranks.collectives]
    alike = replace(calm, ranks=replace(calm.ranks, collectives=close), id="other")
    (table,) = [table for table in analyse("collectives", [calm, alike]).tables if "Every" in table.title]
    for values in table.rows:
        row = dict(zip(table.columns, values, strict=True))
        assert row["from"] < row["time (µs)"] < row["to"] < 10 * row["time (µs)"]  # type: ignore[operator]
        assert row["interval"] == "over 2 launches"


def test_the_line_of_a_run_has_no_phase_of_training() -> None:
    timed = record()
    timed = replace(timed, spec=replace(timed.spec, threads=3))
    assert line(timed) == "collectives on cpu, 2 ranks, 3 threads each: 5 operations over 3 sizes timed"
