"""The question of engines on made-up trials: its sentence, the best of each workload, alarms; no other one changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sample_records import GPU, STEP_S, engine_run, record_of, study, trial_of, trial_record

from fathom.analysis.compare import compare
from fathom.analysis.finding import Finding, Table, analyse, questions
from fathom.analysis.questions.engines import COLUMNS
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.trial import FIRST_STEPS
from fathom.experiments import engines
from fathom.experiments.isolate import failed
from fathom.report import runs

WRONG = trial_of(
    0.2, 0.02, engine=engine_run(0.02, [3.0, 1.0, 0.5]), rounded_losses=[[2.0, 1.0, 0.5]]
)  # ten times as fast


def found(*records: Record) -> Finding:
    return analyse("engines", list(records))


def table(finding: Finding, beginning: str) -> Table:
    return next(each for each in finding.tables if each.title.startswith(beginning))


def cells(finding: Finding, engine: str) -> dict[str, Any]:
    main = table(finding, "Engines beside eager")
    return next(dict(zip(COLUMNS, row, strict=True)) for row in main.rows if row[2] == engine)


def test_the_sentence_counts_what_is_faster_and_what_is_wrong() -> None:
    answer = found(
        trial_record("autoenc", "compile"),
        trial_record("autoenc", "fused", trial_of(0.2, 0.19)),
        trial_record("vgg", "compile", trial_of(0.2, 0.4)),
        trial_record("vgg", "wrong", WRONG),
        trial_record("vgg", "compile", spec={"phase": "infer"}),
    )
    assert answer.summary == (
        "On Laptop CPU, 4 cores, preset small, fp32, another engine is faster than eager for 1 of 2 configurations in "
        "training: times as fast as eager 2 for autoenc (compile). 1 of 1 configuration in inference: times as fast as "
        "eager 2 for vgg (compile). 1 trial gave other results than eager."
    )


def test_an_engine_that_may_as_well_be_slower_is_not_faster() -> None:
    """Some turns were faster and others slower: the interval around the median holds 1."""
    unsteady = engine_run(0.19, [2.0, 1.0, 0.5], turn_step_s=[0.3, 0.25, 0.19, 0.18, 0.18, 0.19, 0.4])
    steady = engine_run(0.2, [2.0, 1.0, 0.5], turn_step_s=[0.2] * 7)
    noisy = trial_of(eager=steady, engine=unsteady)
    assert noisy.speedup > 1
    record = trial_record("vgg", "fused", noisy)
    answer = found(record)
    assert answer.summary.endswith("another engine is faster than eager for 0 of 1 configuration in training.")
    assert [row[6] for row in table(answer, "Eager and the best engine").rows] == ["eager"]
    assert engines.best([record]) is None
    assert engines.best([record, trial_record("vgg", "compile")]) is not None


def test_steps_pay_back_where_they_are_faster_by_the_ratio_that_is_shown() -> None:
    slower = trial_of(
        eager=engine_run(0.2, [1.0], turn_step_s=[0.1, 0.2, 0.2, 0.3, 0.3]),
        engine=engine_run(0.2, [1.0], turn_step_s=[0.19, 0.21, 0.21, 0.2, 0.2]),
    )
    assert slower.speedup < 1
    assert slower.pays_back_after is None
    twice = trial_of(0.2, 0.1, engine=engine_run(0.1, [2.0, 1.0, 0.5], start_s=FIRST_STEPS * 0.1 + 3.0))
    assert twice.pays_back_after == pytest.approx(30), "3 s, at 0.1 s a step"


def test_a_wrong_engine_is_an_alarm_and_never_the_best() -> None:
    answer = found(
        trial_record("vgg", "wrong", WRONG), trial_record("vgg", "compile"), trial_record("autoenc", "fused")
    )
    main = table(answer, "Engines beside eager")
    told = "no: the loss of step 0 differs by 0.5, 0.0001 is allowed"
    assert [main.rows[row][column] for row, column in main.alarms] == [told]
    assert cells(answer, "wrong")["times as fast"] == 10
    best = {row[3]: row[6] for row in table(answer, "Eager and the best engine").rows}
    assert best == {"vgg": "compile", "autoenc": "fused"}


def test_outputs_of_another_shape_have_no_difference() -> None:
    trial = trial_of(phase="infer", output_difference=None, mismatch="the output a has shape [2], not [3]")
    row = cells(found(trial_record("vgg", "odd", trial, spec={"phase": "infer"})), "odd")
    assert (row["difference"], row["agrees"]) == (None, "no: the output a has shape [2], not [3]")


def test_where_none_is_faster_the_best_is_eager() -> None:
    answer = found(trial_record("vgg", "compile", trial_of(0.2, 0.4)))
    assert "faster than eager for 0 of 1 configuration in training." in answer.summary
    row = table(answer, "Eager and the best engine").rows[0]
    assert row[5:9] == [200, "eager", 200, 1.0]


def test_launches_of_one_trial_are_one_row() -> None:
    answer = found(*(trial_record("vgg", "compile", trial_of(0.2, 0.2 / times)) for times in (2, 3, 4)))
    assert len(table(answer, "Engines beside eager").rows) == 1
    assert cells(answer, "compile")["times as fast"] == 3


def test_other_work_is_not_mixed() -> None:
    """Presets in tables of their own; batch, threads and options in the name."""
    more: list[dict[str, Any]] = [{"preset": "paper"}, {"batch": 8}, {"threads": 2}, {"options": {"latent": 2}}]
    specs: list[dict[str, Any]] = [{}, *more]
    answer = found(
        *(trial_record("vgg", "compile", trial_of(1.0, 1 / times), spec=spec) for times, spec in enumerate(specs, 2))
    )
    best = {(row[1], row[3]): row[8] for row in table(answer, "Eager and the best engine").rows}
    names = [("small", "vgg"), ("paper", "vgg"), ("small", "vgg, batch 8"), ("small", "vgg, 2 threads")]
    assert best == {name: times for times, name in enumerate([*names, ("small", "vgg, latent=2")], 2)}


def test_start_energy_and_memory_are_shown_where_they_are_known() -> None:
    run = engine_run(0.1, [2.0, 1.0, 0.5], start_s=10.8, energy_j=60.0, peak_device_bytes=2**30, busy_s=0.095)
    row = cells(found(trial_record("vgg", "compile", trial_of(0.2, engine=run), place=GPU)), "compile")
    assert [round(row[name], 6) for name in ("start (s)", "J/step", "peak memory (GiB)", "GPU busy (%)")] == [
        10,
        2,
        1,
        95,
    ]
    assert (row["pays back after (steps)"], row["eager J/step"]) == (100, None)


def test_what_was_refused_or_failed_is_a_note() -> None:
    refused = failed(RunSpec(workload="vgg", kind="trial", engine="cudagraph"), "no progress for 2 s")
    alone, beside = found(refused), found(refused, trial_record("vgg"))
    assert alone.summary.startswith("Not measured")
    for finding in (alone, beside):
        assert "Not measured: vgg train: no progress for 2 s." in finding.notes


def test_no_other_answer_changes_by_a_trial() -> None:
    """Nor do the report's tables of speed, losses and outputs."""
    plain = study()
    trials = [
        trial_record(name, engine, WRONG if engine == "wrong" else None, place=place, losses=[9.0] * 20, answers=["x"])
        for name in STEP_S
        for engine in ("compile", "wrong")
        for place in ("laptop", GPU)
    ]
    trials.append(failed(RunSpec(workload="vgg", kind="trial", engine="fused"), "it broke"))
    both = [*plain, *trials]
    for question in questions():
        if question != "engines":
            one, other = (json.dumps(analyse(question, each).to_json()) for each in (plain, both))
            assert one == other, question
    for shown in (runs.headline, runs.losses, runs.outputs):
        assert shown(plain) == shown(both)
    assert compare(plain, plain) == compare(both, both)


def test_an_eager_run_is_no_trial() -> None:
    assert found(record_of("vgg")).summary.startswith("Not measured")


def test_trials_of_other_budgets_and_seeds_are_launches_of_one() -> None:
    answer = found(
        trial_record("vgg", "fused", trial_of(0.2, 0.05)),
        trial_record("vgg", "fused", trial_of(0.2, 0.1), spec={"budget_s": 2.0, "seed": 3}),
    )
    assert [row[2] for row in table(answer, "Engines beside eager").rows] == ["fused"]
    assert cells(answer, "fused")["times as fast"] == pytest.approx(3)


def test_the_chart_has_a_bar_for_each_trial() -> None:
    answer = found(trial_record("autoenc", "compile"), trial_record("vgg", "fused", trial_of(0.2, 0.05)))
    (chart,) = answer.charts
    bars = {(series.name, x): y for series in chart.series for x, y in zip(series.x, series.y, strict=True)}
    assert bars[("compile", "autoenc train")] == pytest.approx(2)
    assert bars[("fused", "vgg train")] == pytest.approx(4)
    assert bars[("fused", "autoenc train")] is None
