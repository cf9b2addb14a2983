"""The finding about training to a target: what counts as a result, how tasks are named, and what the target took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sample_records import GPU, LAPTOP, record_of

from fathom.analysis.finding import Cell, Finding
from fathom.analysis.questions import energy, learning
from fathom.core.disturbance import Disturbance
from fathom.core.record import Artifact, EarlierMachine, Learning, Point, Record

IMAGE = Artifact(title="Samples", png="iVBORw0KGgo=")


def learnt(
    qualities: Sequence[float] = (10.0, 20.0, 30.0, 31.0), *, second_s: float = 1.0, joules: bool = True, **changes: Any
) -> Learning:
    """An evaluation a second, every 100 items and 1000 J, on to the end whether the target is reached or not."""
    curve = [
        Point(items=100 * n, seconds=second_s * n, loss=1 / n, quality=quality, energy_j=1000.0 * n if joules else None)
        for n, quality in enumerate(qualities, 1)
    ]
    target = changes.get("target", 30.0)
    fields: dict[str, Any] = {
        **{"metric": "BLEU", "unit": "points", "target": target, "better": "higher", "protocol": "all of the test set"},
        **{"quality": curve[-1].quality, "reached": None if target is None else curve[-1].quality >= target},
        **{"seconds": curve[-1].seconds, "items": curve[-1].items, "energy_j": 1000.0 * len(curve)},
        **{"metered": "a counter", "curve": curve, "artifacts": [IMAGE], "data": "multi30k"},
        "curve_split": "validation",
    }
    return Learning(**{**fields, **changes})


def run_of(
    seed: int = 0,
    told: Learning | None = None,
    *,
    name: str = "seq2seq",
    place: str = GPU,
    spec: Any = None,
    **own: Any,
) -> Record:
    spec = {"kind": "training", "data": "/somewhere/multi30k", "seed": seed, **(spec or {})}
    return record_of(name, place=place, spec=spec, **{"step_s": [], "learning": told or learnt(), **own})


def rows(finding: Finding, table: int) -> list[dict[str, Cell]]:
    shown = finding.tables[table]
    return [dict(zip(shown.columns, row, strict=True)) for row in shown.rows]


def task(*records: Record) -> dict[str, Cell]:
    """Its row about quality, and the one about time and energy where a run succeeded on one machine."""
    finding = learning.analyse(records)
    (row,), costs = rows(finding, 0), rows(finding, 1)
    return row | (costs[0] if costs else {})


def test_a_finding_shows_every_seed() -> None:
    finding = learning.analyse([run_of(1), run_of(0)])
    assert [row["seed"] for row in rows(finding, 2)] == [0, 1]
    assert {row["task"] for row in rows(finding, 2)} == {"seq2seq on multi30k"}, "both learnt in the same way"
    (chart,) = finding.charts
    assert [series.name for series in chart.series] == ["seed 0", "seed 1", "target"]
    assert learning.analyse([]).summary == "Not measured. Run `fathom learn WORKLOAD`."


def table_of(seed: int, error: float, answer: str = "attic", title: str = "Errors") -> Record:
    columns, rows = ["task", "published", "error", "loss", "asked"], [["one", 13.9, error, None, answer]]
    return run_of(seed, learnt(artifacts=[Artifact(title=title, columns=columns, rows=rows), IMAGE]))


def test_tables_of_several_seeds_are_one_with_the_spread_of_what_differs() -> None:
    finding = learning.analyse([table_of(2, 12.0), table_of(0, 10.0), table_of(1, 14.0)])
    (table,) = finding.tables[3:]
    assert table.title == "seq2seq on multi30k, 3 seeds, median (min to max): Errors"
    assert table.rows == [["one", 13.9, "12 (10 to 14)", None, "attic"]]
    assert [image.title for image in finding.images] == ["seq2seq on multi30k, seed 0: Samples"]
    assert finding.notes[-1].startswith("Images, and tables that differ")


def test_tables_that_differ_in_more_than_numbers_are_the_first_seeds() -> None:
    for other in (table_of(1, 14.0, answer="cellar"), table_of(1, 14.0, title="Others"), run_of(1)):
        (table,) = learning.analyse([other, table_of(0, 10.0)]).tables[3:]
        assert table.title == "seq2seq on multi30k, seed 0: Errors"
        assert table.rows == [["one", 13.9, 10.0, None, "attic"]]


def test_a_single_run_shows_what_it_has() -> None:
    finding = learning.analyse([table_of(4, 10.0)])
    assert [table.title for table in finding.tables[3:]] == ["seq2seq on multi30k, seed 4: Errors"]
    assert not any("first seed" in note for note in finding.notes)


def test_runs_of_other_options_are_other_things_and_not_other_seeds() -> None:
    finding = learning.analyse([run_of(0, spec={"options": {"rate": 0.1}}), run_of(1, spec={"options": {"rate": 0.5}})])
    assert [row["task"] for row in rows(finding, 0)] == [
        "seq2seq on multi30k (rate 0.1)",
        "seq2seq on multi30k (rate 0.5)",
    ]
    (chart,) = finding.charts
    assert chart.title == "seq2seq on multi30k: BLEU in validation"
    assert [series.name for series in chart.series] == ["rate 0.1, seed 0", "rate 0.5, seed 1", "target"]


def test_a_failed_run_is_listed() -> None:
    finding = learning.analyse([run_of(learning=None, outcome="failed", reason="the loss is nan in evaluation 1")])
    assert rows(finding, 2)[0]["outcome"] == "failed: the loss is nan in evaluation 1"
    assert finding.summary == "Of fewer than 3 seeds: seq2seq on multi30k, 0 of 1, 1 failed."
    assert (finding.charts, finding.notes) == ([], [])


def test_a_run_that_diverged_is_no_result_though_it_has_a_curve() -> None:
    wild = run_of(2, learnt([10.0, 99.0]), outcome="failed", reason="the loss is nan in evaluation 3")
    finding = learning.analyse([run_of(0), run_of(1, learnt([10.0, 20.0, 30.0, 33.0])), wild])
    assert finding.summary.endswith("With too few: seq2seq on multi30k, 2 of 3, 1 failed.")
    (row,) = rows(finding, 0)
    assert row["quality: median (min to max)"] == "32 (31 to 33)"
    assert row["reached"] == "2 of 3, 1 failed"
    failed = rows(finding, 2)[2]
    assert failed["outcome"] == "failed: the loss is nan in evaluation 3"
    assert (failed["quality"], failed["time (s)"]) == (None, None)
    assert [series.name for series in finding.charts[0].series] == ["seed 0", "seed 1", "seed 2, failed", "target"]


def test_a_seed_that_came_to_nothing_has_the_name_of_the_others() -> None:
    """What it would have been judged by is not in its own record, and names say what differs where that is the same."""
    program, paper = {"options": {"encoding": "program"}}, {"options": {"encoding": "paper"}}
    broken = run_of(1, spec=program, learning=None, outcome="failed", reason="killed")
    finding = learning.analyse([run_of(0, spec=program), broken, run_of(0, spec=paper)])
    assert [row["reached"] for row in rows(finding, 0)] == ["1 of 1", "1 of 2, 1 failed"]


def test_of_the_same_run_twice_both_count_but_a_failed_one_that_was_made_again() -> None:
    attempts = [
        run_of(started="2026-11-15T01:00:00.000+00:00", outcome="failed", reason="no memory"),
        run_of(started="2026-11-15T02:00:00.000+00:00", told=learnt([31.0])),
        run_of(started="2026-11-15T03:00:00.000+00:00", told=learnt([32.0])),
    ]
    for order in (attempts, attempts[::-1]):
        assert task(*order)["quality: median (min to max)"] == "31.5 (31 to 32)"
    finding = learning.analyse(attempts)
    assert finding.notes[-1] == "Not shown: 1 failed run, made again later with the same settings and seed."
    again = run_of(started="2026-11-15T04:00:00.000+00:00", outcome="failed", reason="no disk")
    assert task(*attempts, again)["reached"] == "0 of 1, 1 failed", "a seed counts if it does in all of its runs"
    elsewhere = run_of(place=LAPTOP)
    assert len(learning.analyse([attempts[1], elsewhere]).tables[1].rows) == 2


def test_a_seed_that_missed_is_not_drawn_again_until_it_hits() -> None:
    """Three of five seeds reach the target; the other two are run again, and reach it then."""
    missed = [run_of(seed, learnt([10.0, 20.0])) for seed in (3, 4)]
    hit = [run_of(seed, started="2026-11-16T01:00:00.000+00:00") for seed in (3, 4)]
    records = [*(run_of(seed) for seed in range(3)), *missed, *hit]
    assert task(*records)["reached"] == "3 of 5"
    assert task(*records)["counts as reached"] == "no"


def test_runs_with_another_target_or_recipe_are_another_task() -> None:
    ours = [run_of(seed, replace(learnt(), recipe="a")) for seed in range(3)]
    easy = [run_of(seed, replace(learnt(), recipe="a", target=10.0)) for seed in (3, 4, 5)]
    other = [run_of(seed, replace(learnt(), recipe="b")) for seed in (3, 4, 5)]

    def told(*records: Record) -> list[tuple[str, str]]:
        return [(str(row["task"]), str(row["reached"])) for row in rows(learning.analyse(records), 0)]

    name = "seq2seq on multi30k"
    assert told(*ours, *easy) == [(f"{name} (target 10)", "3 of 3"), (f"{name} (target 30)", "3 of 3")]
    assert told(*ours, *other) == [(f"{name} (recipe a)", "3 of 3"), (f"{name} (recipe b)", "3 of 3")]
    assert told(*ours, *[run_of(seed) for seed in (3, 4)]) == [(name, "5 of 5")], "an older record names no recipe"


def test_cost_is_counted_to_the_target_and_the_run_to_its_end() -> None:
    slow = learnt([30.0], second_s=7.0)
    row = task(run_of(0), run_of(1, learnt(second_s=2.0)), run_of(2, slow), run_of(3, learnt([10.0, 20.0])))
    assert row["metric"] == "BLEU (points)"
    assert row["target"] == 30.0
    assert row["quality: median (min to max)"] == "30.5 (20 to 31)"
    assert row["reached"] == "3 of 4"
    assert row["time to target (s)"] == 6.0
    assert row["items to target"] == 300
    assert row["energy to target (kJ)"] == 3.0
    assert row["whole run (s)"] == 5.5
    never = task(run_of(0, learnt([10.0])))
    assert [never[f"{cost} to target{unit}"] for cost, unit in (("time", " (s)"), ("items", ""))] == [None, None]


def test_a_target_that_was_lost_again_is_not_reached() -> None:
    row = task(run_of(0, learnt([31.0, 29.0], curve_split="test")))
    assert (row["reached"], row["time to target (s)"]) == ("0 of 1", None)


def test_an_old_record_knows_the_energy_to_a_target_at_which_it_stopped() -> None:
    assert task(run_of(0, learnt([10.0, 30.0], joules=False)))["energy to target (kJ)"] == 2.0
    assert task(run_of(0, learnt(joules=False)))["energy to target (kJ)"] is None


def test_the_outcome_says_what_befell_a_run() -> None:
    killed = run_of(0, learnt(resumed=1), disturbance=Disturbance(gpu_shared=True))
    finding = learning.analyse([killed, run_of(1, learnt([1.0], resumed=2)), run_of(2)])
    assert [row["outcome"] for row in rows(finding, 2)] == [
        "reached; resumed once; shared the GPU",
        "not reached; resumed 2 times",
        "reached",
    ]


def test_a_shared_gpu_tells_quality_but_neither_time_nor_energy() -> None:
    crowded = [run_of(seed, learnt(second_s=9.0), disturbance=Disturbance(gpu_shared=True)) for seed in (1, 2)]
    row = task(run_of(0), *crowded)
    assert (row["time to target (s)"], row["whole run (s)"]) == (3.0, 4.0)
    assert row["reached"] == "3 of 3"
    notes = learning.analyse([run_of(0), *crowded]).notes
    assert notes[-1].endswith("where other runs of the same task had the GPU of that machine to themselves.")
    assert "shared the GPU" not in row, "none of those that its medians are over"
    alike = task(*crowded)
    assert (alike["time to target (s)"], alike["shared the GPU"]) == (27.0, "yes"), "better than nothing"
    assert not [note for note in learning.analyse([run_of(0)]).notes if "shared" in note]


def test_the_summary_counts_tasks_with_distinct_names() -> None:
    """What differs stands in brackets; a switch that is on says its name alone, and what is left open says nothing."""
    both = [
        run_of(0, spec={"options": {"reverse": True, "beam": 5}}),
        run_of(0, learnt([1.0]), spec={"options": {"reverse": False}}),
    ]
    longer = run_of(0, name="memnet", spec={"evaluations": 9})
    usual = run_of(0, name="memnet")
    finding = learning.analyse([*both, longer, usual, run_of(0, learnt(target=None), name="deepq")])
    assert finding.summary == (
        "Of fewer than 3 seeds: seq2seq on multi30k (reverse False), 0 of 1; seq2seq on multi30k (reverse, beam 5), "
        "1 of 1; memnet on multi30k, 1 of 1; memnet on multi30k (evaluations 9), 1 of 1. Without a target: deepq on "
        "multi30k."
    )


def test_without_a_target_there_is_none_to_reach_and_none_to_draw() -> None:
    finding, row = learning.analyse([run_of(0, learnt(target=None))]), task(run_of(0, learnt(target=None)))
    assert (row["target"], row["reached"], row["time to target (s)"], row["whole run (s)"]) == (
        None,
        "no target",
        None,
        4.0,
    )
    assert rows(finding, 2)[0]["outcome"] == "no target"
    assert finding.summary == "Without a target: seq2seq on multi30k."
    assert [series.name for series in finding.charts[0].series] == ["seed 0"]


def test_a_machine_is_named_where_there_are_several() -> None:
    assert "machine" not in learning.analyse([run_of(0), run_of(1)]).tables[2].columns
    finding = learning.analyse([run_of(0), run_of(0, place=LAPTOP), run_of(0, spec={"precision": "bf16"}, name="vgg")])
    assert [(row["machine"], row["precision"]) for row in rows(finding, 2)][2] == ("NVIDIA H200", "bf16")
    names = [series.name for series in finding.charts[0].series]
    assert names == ["NVIDIA H200, seed 0", "Laptop CPU, 4 cores, seed 0", "target"]


def test_energy_to_the_target_is_neither_that_of_the_whole_run_nor_of_a_shared_gpu() -> None:
    shared = run_of(1, learnt([31.0]), disturbance=Disturbance(gpu_shared=True))
    finding = energy.analyse([run_of(0), shared, run_of(0, learnt([10.0, 31.0]), name="vgg")])
    assert finding.summary.startswith(
        "Training to the target takes 2 kJ (vgg on multi30k) to 3 kJ (seq2seq on multi30k)."
    )
    (table,) = (table for table in finding.tables if table.title == "Energy to target quality")
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert len(table.rows) == 2
    assert (row["energy to target (kJ)"], row["time to target (s)"], row["average power (W)"]) == (3.0, 3.0, 1000.0)
    assert (row["EDP (kJ s)"], row["energy of the whole run (kJ)"], row["whole run (s)"]) == (9.0, 4.0, 4.0)


def test_seeds_of_two_machines_count_together_and_each_has_its_own_time() -> None:
    slow = [run_of(seed, learnt(second_s=5.0), place=LAPTOP) for seed in (2, 3)]
    finding = learning.analyse([run_of(1), run_of(2), *slow])
    (row,) = rows(finding, 0)
    assert (row["reached"], row["counts as reached"]) == ("3 of 3", "yes"), "seed 2 counts once"
    assert [(row["machine"], row["runs"], row["time to target (s)"]) for row in rows(finding, 1)] == [
        ("NVIDIA H200", 2, 3.0),
        ("Laptop CPU, 4 cores", 2, 15.0),
    ]
    failed_there = run_of(2, learnt([29.0]), place=LAPTOP)
    (row,) = rows(learning.analyse([run_of(1), run_of(2), run_of(3), failed_there]), 0)
    assert (row["reached"], row["counts as reached"]) == ("2 of 3", "no"), "a seed counts when all of its runs do"


def test_another_engine_is_another_task() -> None:
    """It may round differently, and its time is another one."""
    finding = learning.analyse([run_of(0), run_of(0, spec={"engine": "cudagraph"})])
    assert [row["task"] for row in rows(finding, 0)] == [
        "seq2seq on multi30k (cudagraph)",
        "seq2seq on multi30k (eager)",
    ]


def test_tasks_with_other_metrics_are_not_seeds_of_one() -> None:
    """One task, and questions held out, have metrics of their own and no switch that would name them."""
    alone, task = {"options": {"task_number": 0}}, {"options": {"task_number": 3}}
    held_out = {"options": {"task_number": 0, "judged_on": "valid"}}
    finding = learning.analyse(
        [
            run_of(0, spec=alone),
            run_of(0, learnt([40.0], metric="error", target=40.3), spec=task),
            run_of(0, learnt([5.0], metric="error in validation", target=None), spec=held_out),
        ]
    )
    assert {row["task"]: row["target"] for row in rows(finding, 0)} == {
        "seq2seq on multi30k (task_number 0)": 30.0,
        "seq2seq on multi30k (task_number 3)": 40.3,
        "seq2seq on multi30k (task_number 0, judged_on valid)": None,
    }


def test_another_metric_has_another_chart() -> None:
    joint = learnt(metric="mean error of one network")
    finding = learning.analyse([run_of(0), run_of(0, joint, spec={"options": {"joint": True, "epochs": 9}})])
    assert [chart.title for chart in finding.charts] == [
        "seq2seq on multi30k: BLEU in validation",
        "seq2seq on multi30k (joint): mean error of one network in validation",
    ]


# --- splits, and how many seeds must reach a target


@pytest.mark.parametrize(
    ("reached", "seeds", "verdict"),
    [
        (1, 1, "too few seeds"),
        (2, 2, "too few seeds"),
        (3, 3, "yes"),
        (2, 3, "no"),
        (4, 4, "yes"),
        (3, 4, "no"),
        (5, 5, "yes"),
        (4, 5, "yes"),
        (3, 5, "no"),
        (8, 9, "yes"),
        (7, 9, "no"),
        (8, 10, "yes"),
        (7, 10, "no"),
        (12, 15, "yes"),
        (11, 15, "no"),
    ],
)
def test_a_target_counts_as_reached_with_four_of_five_seeds_or_all_of_three(
    reached: int, seeds: int, verdict: str
) -> None:
    records = [run_of(seed, learnt([31.0 if seed < reached else 29.0])) for seed in range(seeds)]
    finding = learning.analyse(records)
    (row,) = rows(finding, 0)
    assert (row["reached"], row["counts as reached"]) == (f"{reached} of {seeds}", verdict)
    assert len(rows(finding, 2)) == seeds, "every seed is shown"
    said = f"seq2seq on multi30k, {reached} of {seeds}."
    start = {
        "yes": "1 of 1 training task counts as reached (with at least 4 of 5 seeds, or all of 3 or 4): ",
        "no": "0 of 1 training task counts as reached (with at least 4 of 5 seeds, or all of 3 or 4). With too few: ",
        "too few seeds": "Of fewer than 3 seeds: ",
    }[verdict]
    assert finding.summary.startswith(start + said)


def test_a_failed_run_counts_against_its_task() -> None:
    broken = run_of(4, learning=None, outcome="failed", reason="killed")
    assert task(*(run_of(seed) for seed in range(4)), broken)["counts as reached"] == "yes"
    assert task(*(run_of(seed) for seed in range(3)), broken)["counts as reached"] == "no"


def test_a_result_that_reached_the_target_counts_though_no_validation_did() -> None:
    """The test may be a little easier than validation: the time is that of the weights that were tested."""
    row = task(run_of(0, learnt([10.0, 29.0, 28.0], quality=30.5, reached=True, selected=2)))
    assert (row["reached"], row["time to target (s)"], row["items to target"]) == ("1 of 1", 2.0, 200)
    assert row["quality: median (min to max)"] == "30.5"
    row = task(run_of(0, learnt([10.0, 31.0, 28.0], quality=29.5, reached=False, selected=2)))
    assert (row["reached"], row["time to target (s)"]) == ("0 of 1", None), "the result decides, not the curve"


@pytest.mark.parametrize(
    ("split", "title", "note"),
    [
        ("validation", "BLEU in validation", "with the weights that were best in validation"),
        ("train", "BLEU on the training data", "quality is that of the last weights"),
        ("test", "BLEU on the test data", "they were evaluated after every interval"),
    ],
)
def test_a_curve_says_which_data_it_is_of(split: str, title: str, note: str) -> None:
    finding = learning.analyse([run_of(0, learnt(curve_split=split))])
    assert [chart.title for chart in finding.charts] == [f"seq2seq on multi30k: {title}"]
    assert sum(note in each for each in finding.notes) == 1
    assert not any("the curve is of" in each and note not in each for each in finding.notes)


def test_a_curve_on_training_data_has_no_line_at_a_target_that_held_out_data_must_reach() -> None:
    def lines(split: str) -> list[str]:
        (chart,) = learning.analyse([run_of(0, learnt(curve_split=split))]).charts
        return [series.name for series in chart.series]

    assert lines("validation") == ["seed 0", "target"]
    assert lines("train") == ["seed 0"]


def test_curves_of_different_data_are_in_different_charts() -> None:
    old = run_of(1, learnt(curve_split="test"))
    finding = learning.analyse([run_of(0), old])
    assert [(chart.title, chart.series[0].name) for chart in finding.charts] == [
        ("seq2seq on multi30k (evaluated on test): BLEU on the test data", "seed 1"),
        ("seq2seq on multi30k (evaluated on validation): BLEU in validation", "seed 0"),
    ]
    assert [row["reached"] for row in rows(finding, 0)] == ["1 of 1", "1 of 1"], "they are not seeds of one task"


def test_curves_are_over_time_only_where_no_other_program_and_no_other_machine_changed_it() -> None:
    def axis(*records: Record) -> tuple[str | None, list[list[float]]]:
        (chart,) = learning.analyse(records).charts
        return chart.x_title, [[line.x[0], line.x[-1]] for line in chart.series]

    crowded = run_of(1, learnt(second_s=9.0), disturbance=Disturbance(gpu_shared=True))
    elsewhere = run_of(1, learnt(second_s=9.0), place=LAPTOP)
    assert axis(run_of(0), run_of(1)) == ("time (s)", [[1.0, 4.0], [1.0, 4.0], [0.0, 4.0]])
    for other in (crowded, elsewhere):
        assert axis(run_of(0), other) == ("items", [[100, 400], [100, 400], [0.0, 400]])


def test_time_and_energy_of_two_machines_are_shown_as_those_of_none() -> None:
    moved = learnt(
        second_s=100.0, earlier=[EarlierMachine(name="Other GPU", host_id="a", gpu_uuid="GPU-1", evaluations=2)]
    )
    finding = learning.analyse([run_of(0), run_of(1, moved), run_of(2)])
    row = task(run_of(0), run_of(1, moved), run_of(2))
    assert (row["reached"], row["time to target (s)"], row["whole run (s)"]) == ("3 of 3", 3.0, 4.0)
    assert row["energy to target (kJ)"] == 3.0
    shown = rows(finding, 2)[1]
    assert (shown["quality"], shown["items"], shown["outcome"]) == (31.0, 400, "reached; began on Other GPU")
    assert [shown[name] for name in ("to target (s)", "time (s)", "energy (kJ)")] == [None] * 3
    assert "1 run was resumed on another machine: time and energy are of no one machine, and not given." in (
        finding.notes
    )
    assert [series.name for series in finding.charts[0].series][1] == "seed 1, on several machines"
    assert rows(learning.analyse([run_of(0, moved)]), 1) == []
    whole, mixed = run_of(0), run_of(1, moved)
    assert [run.record for run in energy._trained([whole, mixed])] == [whole]


def test_every_metered_run_of_a_seed_has_its_energy_as_it_has_its_quality() -> None:
    first, again = run_of(0), run_of(0, learnt(second_s=2.0))
    failed = run_of(0, outcome="failed", reason="it was killed", started="2020-01-01T00:00:00Z")
    finding = energy.analyse([first, again, failed])
    (table,) = (table for table in finding.tables if table.title == "Energy to target quality")
    assert len(table.rows) == len(rows(learning.analyse([first, again, failed]), 2)) == 2
    assert any("several for a seed that ran several times" in note for note in finding.notes)


def test_runs_of_other_batches_are_other_things_and_not_other_seeds() -> None:
    finding = learning.analyse([run_of(0), run_of(0, spec={"batch": 512})])
    assert [row["task"] for row in rows(finding, 0)] == [
        "seq2seq on multi30k",
        "seq2seq on multi30k (batch 512)",
    ]
