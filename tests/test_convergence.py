"""Items and time to the same loss, from series of losses made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_ranks_finding import job, rows

from fathom.analysis.finding import analyse
from fathom.analysis.questions.convergence import LEAST_STEPS, course_of, groups_of, targets_of
from fathom.core.record import Record

STEPS = 100


def falling(
    ranks: int, step_s: float, per_step: float, *, summed: bool = False, lowest: float = 0.0, **changes: Any
) -> Record:
    """A loss that falls from 1 by so much a step, to a lowest one."""
    record = job(ranks, step_s, **changes)
    losses = [max(lowest, 1 - per_step * step) for step in range(STEPS)]
    scale = record.items_per_step or 1
    assert record.ranks is not None
    settings = {"loss_is_summed": summed}
    return replace(
        record,
        losses=[loss * scale for loss in losses] if summed else losses,
        step_s=[step_s] * STEPS,
        ranks=replace(record.ranks, settings=settings),
    )


def test_a_course_has_the_items_and_seconds_up_to_each_mean() -> None:
    course = course_of(falling(2, 0.5, 0.01))
    assert len(course.losses) == len(course.items) == len(course.seconds) == STEPS - 9  # means over ten steps
    assert course.items[0] == 10 * 32
    assert course.seconds[0] == pytest.approx(5.0)
    assert course.losses[0] == pytest.approx(1 - 0.01 * 4.5)
    assert course.reached(0.5) == 46  # the mean of steps 46 to 55 is 1 - 0.01 x 50.5
    assert course.reached(-1.0) is None


def test_the_target_is_the_lowest_loss_that_all_jobs_reach_and_the_faster_step_may_lose() -> None:
    """Two ranks make a step as fast, with twice the items, but each step lowers the loss by a tenth as much."""
    quick = falling(1, 1.0, 0.01)
    slow = falling(2, 1.0, 0.001)
    finding = analyse("convergence", [quick, slow])
    one, two = rows(finding, "Items and time to the same loss")
    assert one["target loss"] == two["target loss"] == pytest.approx(1 - 0.001 * 94.5)
    assert (two["items"], two["time (s)"]) == (100 * 32, pytest.approx(100.0))
    assert one["time (s)"] < 20
    assert "vgg to a loss of 0.906" in finding.summary
    assert "(ddp, 1 rank) to 100 s (ddp, weak, 2 ranks)" in finding.summary


def test_summed_losses_of_different_batches_are_compared_per_item() -> None:
    groups = groups_of([falling(1, 1.0, 0.01, summed=True), falling(4, 1.0, 0.01, summed=True)])
    assert [group.courses[0].losses for group in groups] == [pytest.approx(groups[0].courses[0].losses)] * 2
    assert list(targets_of(groups).values()) == [pytest.approx(1 - 0.01 * 94.5)]


def test_launches_of_one_job_are_pooled_and_the_worst_sets_the_target() -> None:
    groups = groups_of([falling(1, 1.0, 0.01), falling(1, 2.0, 0.01, lowest=0.5)])
    assert len(groups) == 1
    assert groups[0].lowest == pytest.approx(0.5)
    (row,) = rows(
        analyse("convergence", [falling(1, 1.0, 0.01), falling(1, 2.0, 0.01)]), "Items and time to the same loss"
    )
    assert row["launches"] == 2
    assert row["slowest (s)"] == pytest.approx(2 * row["fastest (s)"])


def test_short_jobs_and_other_runs_do_not_answer() -> None:
    short = falling(1, 1.0, 0.01)
    short = replace(short, losses=short.losses[: LEAST_STEPS - 1])
    assert analyse("convergence", [short]).summary.startswith("Not measured. Run `fathom scale NAME --ranks 1,2")
    assert analyse("convergence", [falling(1, 1.0, 0.01)]).summary.startswith("Only one job of each workload")


def test_the_time_to_the_same_loss_is_drawn_job_by_job() -> None:
    finding = analyse("convergence", [falling(1, 1.0, 0.01), falling(2, 1.0, 0.001)])
    _, bars = finding.charts
    table = rows(finding, "Items and time to the same loss")
    assert bars.kind == "bar"
    assert dict(zip(bars.series[0].x, bars.series[0].y, strict=True)) == {row["job"]: row["time (s)"] for row in table}
    assert len(analyse("convergence", [falling(1, 1.0, 0.01)]).charts) == 1


def test_jobs_of_other_batches_are_other_jobs() -> None:
    groups = groups_of([falling(2, 0.1, 0.01, batch=batch) for batch in (16, 64)])
    assert [(group.name, len(group.courses)) for group in groups] == [
        ("ddp, weak, 2 ranks (batch 16)", 1),
        ("ddp, weak, 2 ranks (batch 64)", 1),
    ]
