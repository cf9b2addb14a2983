"""A sweep of a strategy's options: every combination is a job; convergence by group size and staleness."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom as run_fathom
from test_convergence import falling
from test_rank_training import trained
from test_ranks_finding import rows

from fathom.analysis.finding import analyse
from fathom.analysis.rank_sweeps import STATEMENT
from fathom.cli.commands._options import swept_options_of
from fathom.core.errors import BadOption
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.experiments import ranks as jobs
from fathom.machine.host import fingerprint

TABLE = "By group size and staleness, to the same loss"


def test_a_list_of_values_is_every_combination() -> None:
    values = swept_options_of(["group_size=1,2,4", "staleness=0,8", "staleness=8,16"], "--tune")
    assert values == {"group_size": [1, 2, 4], "staleness": [0, 8, 16]}
    found = jobs.combinations(values)
    assert len(found) == 9
    assert found[:2] == [{"group_size": 1, "staleness": 0}, {"group_size": 1, "staleness": 8}]
    assert jobs.combinations({}) == [{}]


def test_values_are_words_numbers_and_switches_and_json_stays_whole() -> None:
    assert swept_options_of(["wire=fp32,bf16", "find_unused=true,false", "x=[1,2]"], "--tune") == {
        "wire": ["fp32", "bf16"],
        "find_unused": [True, False],
        "x": [[1, 2]],
    }


@pytest.mark.parametrize("pair", ["staleness=1,,2", "staleness=", "staleness", "=1,2", "staleness=1,"])
def test_a_list_with_nothing_in_it_is_refused(pair: str) -> None:
    with pytest.raises(BadOption, match="--tune takes name=value"):
        swept_options_of([pair], "--tune")


def test_too_many_combinations_are_refused() -> None:
    with pytest.raises(BadOption, match="1,002,001 combinations"):
        jobs.combinations({"a": range(1001), "b": range(1001)})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--ranks", "8", "--tune", "group_size=1,3"], "memnet on 8 ranks with group_size=3: strategy hybrid cannot"),
        (["--ranks", "1,8", "--tune", "group_size=1,2"], "memnet on 1 rank with group_size=2: strategy hybrid cannot"),
        (["--ranks", "8", "--tune", "group_size=0,2"], "memnet on 8 ranks with group_size=0: group_size must be"),
        (["--ranks", "8", "--tune", "staleness=0,x"], "with staleness=x: option staleness of strategy hybrid"),
        (["--ranks", "8", "--tune", "stale=0,2"], "did you mean staleness"),
        (["--ranks", "8", "--scaling", "strong", "--batch", "12", "--tune", "staleness=0,2"], "cannot be divided"),
    ],
)
def test_a_combination_that_does_not_fit_is_one_line_before_anything_runs(
    options: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = ["scale", "memnet", "--preset", "tiny", "--strategy", "hybrid", "--out", str(tmp_path)]
    assert run_fathom(monkeypatch, *common, *options) == 2
    assert problem in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_runs_one_job_for_each_combination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[RunSpec] = []

    def run(spec: RunSpec, *_: Any, **__: Any) -> Record:
        ran.append(spec)
        found = tuned(spec.strategy_options["group_size"], spec.strategy_options["staleness"])
        return replace(found, spec=spec, machine=fingerprint(), id=f"{len(ran):012}")

    monkeypatch.setattr("fathom.experiments.ranks.isolated", run)
    options = ["--strategy", "hybrid", "--tune", "group_size=1,2,4", "--tune", "staleness=0,2", "--runs", "2"]
    assert run_fathom(monkeypatch, "scale", "vgg", "--ranks", "4", *options, "--out", str(tmp_path)) == 0
    assert len(ran) == 12
    assert {(each.strategy_options["group_size"], each.strategy_options["staleness"]) for each in ran} == {
        (size, bound) for size in (1, 2, 4) for bound in (0, 2)
    }
    shown = capsys.readouterr()
    assert TABLE in shown.out + shown.err
    assert "A speed-up also needs a job of 1 rank" in " ".join((shown.out + shown.err).split())


def tuned(size: int, bound: int, step_s: float = 1.0, per_step: float = 0.01, **changes: Any) -> Record:
    """A job of four ranks whose loss falls by so much a step."""
    options = {"group_size": size, "staleness": bound}
    record = falling(4, step_s, per_step, strategy="hybrid", strategy_options=options, **changes)
    assert record.ranks is not None
    return replace(record, ranks=replace(record.ranks, settings={**record.ranks.settings, **options}))


def swept() -> list[Record]:
    """Larger groups make slower steps of which fewer are needed; a larger bound makes steps faster and worse."""
    return [
        tuned(size, bound, step_s=size / (1 + bound), per_step=0.002 * size / (1 + 0.1 * bound))
        for size in (1, 2, 4)
        for bound in (0, 4)
    ]


def test_convergence_has_a_table_by_group_size_and_staleness() -> None:
    finding = analyse("convergence", swept())
    found = rows(finding, TABLE)
    assert [(row["group size"], row["groups"], row["staleness bound"]) for row in found] == [
        (1, 4, 0),
        (1, 4, 4),
        (2, 2, 0),
        (2, 2, 4),
        (4, 1, 0),
        (4, 1, 4),
    ]
    by_job = {row["job"]: row for row in rows(finding, "Items and time to the same loss")}
    for row in found:
        job = by_job[f"hybrid group_size={row['group size']} staleness={row['staleness bound']}, weak, 4 ranks"]
        assert (row["items"], row["time (s)"], row["target loss"]) == (
            job["items"],
            job["time (s)"],
            job["target loss"],
        )
    assert min(row["over the fastest"] for row in found) == 1.0
    assert STATEMENT in finding.notes
    assert "vgg, 4 ranks, weak: fastest in groups of" in finding.summary


def test_charts_have_time_and_items_over_either_setting() -> None:
    finding = analyse("convergence", swept())
    charts = {chart.title: chart for chart in finding.charts}
    by_size = charts["Time to the same loss, by group size: vgg, 4 ranks, weak"]
    assert [(series.name, series.x) for series in by_size.series] == [
        ("staleness 0", [1, 2, 4]),
        ("staleness 4", [1, 2, 4]),
    ]
    assert not by_size.note  # the notes have the guide's statement, once
    found = {(row["group size"], row["staleness bound"]): row for row in rows(finding, TABLE)}
    assert by_size.series[1].y == [found[size, 4]["time (s)"] for size in (1, 2, 4)]
    by_bound = charts["Items to the same loss, by staleness: vgg, 4 ranks, weak"]
    assert [(series.name, series.x) for series in by_bound.series] == [
        (f"group size {size}", [0, 4]) for size in (1, 2)
    ]  # one group of all four has nobody to run ahead of
    assert by_bound.series[0].y == [found[1, bound]["items"] for bound in (0, 4)]


def test_values_are_shown_from_zero() -> None:
    """Three jobs that need nearly the same number of items are a flat line."""
    for chart in analyse("convergence", swept()).charts:
        if "by group size" in chart.title or "by staleness" in chart.title:
            assert chart.limits is not None
            low, high = chart.limits
            assert low == 0
            assert high > max(y for series in chart.series for y in series.y)


def test_one_group_is_not_compared_by_its_staleness() -> None:
    """It has nobody to run ahead of: such jobs differ by chance alone."""
    finding = analyse("convergence", [tuned(4, bound, step_s=1 + bound) for bound in (0, 4)])
    assert TABLE not in [table.title for table in finding.tables]
    assert "staleness up to" not in finding.summary
    swept_too = analyse("convergence", [tuned(4, 0, step_s=9.0), tuned(1, 0)])
    assert "slowest in one group" in swept_too.summary


def test_many_jobs_are_charts_by_ranks_and_options_are_in_the_order_of_numbers() -> None:
    many = [falling(4, 1.0, 0.01, strategy="local_sgd", strategy_options={"period": n}) for n in range(2, 19, 2)]
    finding = analyse("convergence", [*many, falling(2, 1.0, 0.01)])
    lines = {chart.title: chart.series for chart in finding.charts if chart.title.startswith("Loss over time")}
    assert [(title, len(series)) for title, series in lines.items()] == [
        ("Loss over time: vgg, 2 ranks", 1),
        ("Loss over time: vgg, 4 ranks", 9),
    ]
    names = [series.name for series in lines["Loss over time: vgg, 4 ranks"]]
    assert names == [f"local-sgd period={n}, weak, 4 ranks" for n in range(2, 19, 2)]
    few = analyse("convergence", many[:3])
    assert [chart.title for chart in few.charts if "over time" in chart.title] == ["Loss over time: vgg"]


def test_a_setting_with_one_value_has_no_chart_and_jobs_of_other_kinds_no_table() -> None:
    titles = [chart.title for chart in analyse("convergence", [tuned(1, 0), tuned(2, 0)]).charts]
    assert [title for title in titles if "by group size" in title]
    assert not [title for title in titles if "by staleness" in title]
    for records in ([tuned(1, 0), falling(4, 1.0, 0.01)], [tuned(1, 0), tuned(2, 0, slow_rank=(1, 2.0))]):
        finding = analyse("convergence", records)
        assert TABLE not in [table.title for table in finding.tables]
        assert STATEMENT not in finding.notes


def test_quality_is_shown_by_group_size_and_staleness_too() -> None:
    def recipe(size: int, seconds: float) -> Record:
        record = trained(4, [-150, -99, -98], seconds)
        assert record.ranks is not None
        options = {"group_size": size, "staleness": 2}
        spec = replace(record.spec, strategy="hybrid", strategy_options=options)
        return replace(record, spec=spec, ranks=replace(record.ranks, settings=options))

    finding = analyse("convergence", [recipe(1, 4.0), recipe(2, 6.0)])
    found = rows(finding, "By group size and staleness, to the same quality")
    assert [row["group size"] for row in found] == [1, 2]
    assert found[1]["time (s)"] == pytest.approx(1.5 * found[0]["time (s)"])
    assert STATEMENT in finding.notes


def test_losses_of_one_rank_that_an_old_record_gives_as_sums_are_compared_per_item() -> None:
    old = falling(1, 1.0, 0.01, summed=True)
    assert old.ranks is not None
    old = replace(old, ranks=replace(old.ranks, settings={"loss_is_summed": False}))
    one, two = rows(
        analyse("convergence", [old, falling(2, 1.0, 0.01, summed=True)]), "Items and time to the same loss"
    )
    assert one["target loss"] == two["target loss"] < 1
    assert one["time (s)"] == two["time (s)"]
