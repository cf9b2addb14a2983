"""Training by a recipe on several ranks: synchronous ones learn what one worker learns; curves and their comparison."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ranked_jobs import in_this_process, records_of
from test_ranks_finding import job, rows

from fathom.analysis.finding import analyse
from fathom.analysis.rank_quality import common_quality, tasks_of
from fathom.cli.commands._scale_ranks import _trained
from fathom.cli.commands.scale import _refuse_without_ranks
from fathom.core.errors import BadOption
from fathom.core.record import Learning, Point, Record
from fathom.core.spec import RunSpec
from fathom.engine.session import Session
from fathom.training.trainer import held_out_for, recipe_for

CALM = {"noise": 0.0, "clip_norm": 1e6, "learning_rate": 0.001, "halving": 1, "epochs": 4, "linear_epochs": 0}
EVALUATIONS = 2
JOBS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "one group": {"strategy": "hybrid", "strategy_options": {"group_size": 2}},  # the server applies the schedule
    "local": {"strategy": "local_sgd", "strategy_options": {"period": 4}},
    "async": {"strategy": "asynchronous", "strategy_options": {"staleness": 1}},
}


def training(**changes: Any) -> RunSpec:
    fields: dict[str, Any] = {"workload": "memnet", "kind": "training", "preset": "tiny", "device": "cpu"}
    fields |= {"ranks": 2, "scaling": "strong", "evaluations": EVALUATIONS, "options": CALM}
    return RunSpec(**{**fields, **changes})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    records = records_of([training(**each) for each in JOBS.values()], 2, tmp_path_factory.mktemp("training"))
    return dict(zip(JOBS, records, strict=True))


@pytest.fixture(scope="module")
def alone() -> tuple[list[float], list[float], float]:
    """Qualities in validation, losses of an item and the test result of one worker, the recipe's steps by hand."""
    spec = RunSpec(workload="memnet", preset="tiny", device="cpu", options=CALM)
    recipe = recipe_for(replace(training(), ranks=None, scaling=None))
    with Session(spec).setup() as session:
        held_out = held_out_for(session, recipe)
        steps = -(-len(session.state.source) // 16)
        assert session.state.optimizer is not None
        schedule = recipe.schedule(session.workload, session.state.optimizer, EVALUATIONS * steps)
        qualities, losses, weights = [], [], []
        for _ in range(EVALUATIONS):
            total = torch.zeros(())
            for _ in range(steps):
                total += session.train_step()
                schedule.step()  # type: ignore[union-attr]
            losses.append(float(total) / steps / 16)
            session.state.model.eval()
            qualities.append(recipe.evaluate(session.workload, session.state, held_out.validation))
            weights.append({name: value.clone() for name, value in session.state.model.state_dict().items()})
            session.state.model.train()
        session.state.model.load_state_dict(weights[qualities.index(min(qualities))])
        session.state.model.eval()
        return qualities, losses, recipe.evaluate(session.workload, session.state, held_out.test)


@pytest.mark.parametrize("name", ["ddp", "one group"])
def test_synchronous_ranks_learn_what_one_worker_learns(
    found: dict[str, Record], alone: tuple[list[float], list[float], float], name: str
) -> None:
    learning = learning_of(found[name])
    qualities, losses, tested = alone
    assert losses[-1] < 0.9 * losses[0]  # else equal losses would say nothing
    assert [point.loss for point in learning.curve] == pytest.approx(losses, rel=1e-3)  # rounding grows over the steps
    assert [point.quality for point in learning.curve] == pytest.approx(qualities, abs=0.5)
    assert learning.quality == pytest.approx(tested, abs=0.5)


@pytest.mark.parametrize("name", JOBS)
def test_a_curve_has_items_of_all_ranks_and_validation_is_apart_from_the_test(
    found: dict[str, Record], name: str
) -> None:
    record = found[name]
    learning = learning_of(record)
    assert record.outcome == "ok"
    assert record.items_per_step == 16
    steps = learning.curve[0].items // 16
    assert [point.items for point in learning.curve] == [16 * steps * number for number in (1, 2)]
    assert all(point.seconds < later.seconds for point, later in zip(learning.curve, learning.curve[1:], strict=False))
    assert (learning.curve_split, learning.split) == ("validation", "test")
    qualities = [point.quality for point in learning.curve]
    assert learning.selected == 1 + qualities.index(min(qualities))
    assert learning.departures[0].startswith("2 ranks by ")
    assert "one network, trained batch by batch" in learning.departures
    assert Record.from_json(record.to_json()) == record


def learning_of(record: Record) -> Learning:
    assert record.learning is not None
    return record.learning


def test_a_strategy_without_whole_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="^strategy tensor has no rank with the whole network"):
        in_this_process(training(strategy="tensor"), tmp_path)


def trained(ranks: int, qualities: list[float], seconds: float, *, target: float | None = -100.0) -> Record:
    curve = [
        Point(items=1000 * number, seconds=seconds * number, loss=1.0, quality=quality)
        for number, quality in enumerate(qualities, 1)
    ]
    learning = Learning(
        metric="bound",
        unit="nats",
        target=target,
        better="higher",
        protocol="",
        quality=qualities[-1] - 1,
        reached=None,
        seconds=curve[-1].seconds,
        items=curve[-1].items,
        energy_j=None,
        metered=None,
        curve=curve,
        data="mnist",
    )
    return replace(job(ranks, 1.0), step_s=[], losses=[], learning=learning)


def test_jobs_are_compared_at_the_recipes_target_where_all_reach_it() -> None:
    finding = analyse("convergence", [trained(1, [-150, -99, -98], 10.0), trained(2, [-140, -120, -100], 4.0)])
    one, two = rows(finding, "Items and time to the same quality in validation")
    assert (one["quality"], one["items"], one["time (s)"], one["test result"]) == (-100, 2000, 20, -99)
    assert (two["quality"], two["items"], two["time (s)"], two["launches that reach it"]) == (-100, 3000, 12, 1)
    assert "vgg on mnist to \u2212100 nats (the target) in validation: 12 s (ddp, weak, 2 ranks)" in finding.summary
    assert finding.summary.endswith(" One launch of each job: nothing is said of the next.")
    several = analyse("convergence", [trained(ranks, [-120, -98], 4.0) for ranks in (1, 2) for _ in range(2)])
    assert several.summary.endswith(" 2 launches or more a job.")
    assert [series.y for series in finding.charts[0].series][1] == [-140, -120, -100]


def test_else_at_the_best_that_every_launch_reaches() -> None:
    records = [trained(1, [-150, -99], 10.0), trained(2, [-140, -110], 4.0), trained(2, [-130, -120], 5.0)]
    ((task, jobs),) = tasks_of(records).items()
    assert common_quality(task, jobs) == -120
    assert [[point.items for point in each.to(task, -120)] for each in jobs] == [[2000], [2000, 2000]]
    assert [len(each.to(task, -100.0)) for each in jobs] == [1, 0]


def test_a_recipe_on_ranks_has_the_recipes_options_and_those_of_the_command() -> None:
    base = RunSpec(workload="", ranks=2, strategy="ddp", device="cpu", steps=50, budget_s=3.0, options={"latent": 5})
    spec = _trained(base, "autoenc", 7)
    assert (spec.kind, spec.evaluations, spec.preset, spec.batch) == ("training", 7, "paper", 1000)
    assert spec.options == {"adam": True, "learning_rate": 0.003, "warm_up": 0.01, "latent": 5}
    assert _trained(replace(base, batch=64), "autoenc", 7).batch == 64
    assert _trained(replace(base, preset="tiny"), "autoenc", 7).batch is None  # the preset's own


def test_training_options_need_ranks() -> None:
    with pytest.raises(BadOption, match="--evaluations needs --ranks"):
        _refuse_without_ranks({"data": None, "evaluations": 3})
