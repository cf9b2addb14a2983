"""pipeline: losses and gradients of the whole network, bytes as they must be, and what does not fit is refused.

Tolerance: 1e-4 relative, of the losses of four steps and of every gradient, in fp32.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ranked_gradients import Errors
from ranked_jobs import in_this_process, records_and_gradients
from test_ddp import STEPS, TOLERANCE

from fathom.core.errors import BadOption, EngineError, UnknownName
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.engine.ranks.chain import NotAChain, chain_of, cut
from fathom.engine.ranks.session import local_spec
from fathom.engine.ranks.strategies.pipeline import Pipeline
from fathom.engine.session import Session
from fathom.workloads.base import workload_class

FOLDED = "ranked_models:Folded"
CALM: dict[str, dict[str, Any]] = {"alexnet": {"dropout": 0.0}}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpipe": ("alexnet", {}),
    "1f1b": ("alexnet", {"schedule": "1f1b", "microbatches": 4}),
    "one": ("residual", {"microbatches": 1}),
    "normalised": ("residual", {"microbatches": 2}),
    "sum, clipped": (FOLDED, {"microbatches": 4}),
    "sum, clipped, 1f1b": (FOLDED, {"microbatches": 8, "schedule": "1f1b"}),
}


def piped(workload: str, strategy_options: dict[str, Any], **changes: Any) -> RunSpec:
    fields: dict[str, Any] = {"ranks": 2, "strategy": "pipeline", "scaling": "strong", "device": "cpu"}
    fields |= {"preset": "tiny", "strategy_options": strategy_options, "options": CALM.get(workload, {})}
    return RunSpec(workload=workload, **{**fields, **STEPS, **changes})


def single(spec: RunSpec) -> list[float]:
    kind = workload_class(spec.workload).configured("tiny", **spec.options)
    with Session(local_spec(spec, kind.batch, "network")).setup() as session:
        return [float(loss) for loss in session.run(STEPS["warmup"] + STEPS["steps"])]  # type: ignore[arg-type]


COMPARED = [name for name in JOBS if name != "normalised"]


@pytest.fixture(scope="module")
def divided_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Record], dict[str, Errors]]:
    """Records and gradients by the same two ranks: starting them takes seconds."""
    specs = [piped(*job) for job in JOBS.values()]
    specs += [piped("deep_mnist", {}, scaling="weak"), piped("deep_mnist", {}, slow_rank=(1, 1.5))]
    compared = [piped(*JOBS[name]) for name in COMPARED]
    records, errors = records_and_gradients(specs, compared, 2, tmp_path_factory.mktemp("pipeline"))
    return dict(zip([*JOBS, "weak", "slow"], records, strict=True)), dict(zip(COMPARED, errors, strict=True))


@pytest.fixture(scope="module")
def found(divided_runs: tuple[dict[str, Record], dict[str, Errors]]) -> dict[str, Record]:
    return divided_runs[0]


@pytest.fixture(scope="module")
def gradients(divided_runs: tuple[dict[str, Record], dict[str, Errors]]) -> dict[str, Errors]:
    return divided_runs[1]


@pytest.mark.parametrize("job", ["gpipe", "1f1b", "sum, clipped", "sum, clipped, 1f1b", "weak", "slow"])
def test_losses_are_those_of_one_worker_on_the_same_batch(found: dict[str, Record], job: str) -> None:
    record = found[job]
    alone = single(record.spec)
    assert alone[0] != pytest.approx(alone[-1], rel=10 * TOLERANCE)  # else equal losses would say nothing
    assert record.losses == pytest.approx(alone, rel=TOLERANCE)


@pytest.mark.parametrize("job", COMPARED)
def test_gradients_are_those_of_the_whole_network_and_each_weight_is_on_one_rank(
    gradients: dict[str, Errors], job: str
) -> None:
    model = workload_class(JOBS[job][0]).configured("tiny").model()
    assert set(gradients[job]) == {name for name, _ in model.named_parameters()}
    for name, ranks in gradients[job].items():
        ((_, error),) = ranks
        assert error < TOLERANCE, name
    assert {rank for ranks in gradients[job].values() for rank, _ in ranks} == {0, 1}


def test_statistics_of_batch_normalisation_are_a_micro_batchs_and_that_is_said(found: dict[str, Record]) -> None:
    alone = single(found["one"].spec)
    assert found["one"].losses[0] == pytest.approx(alone[0], rel=TOLERANCE)
    assert found["normalised"].losses[0] != pytest.approx(alone[0], rel=TOLERANCE)
    said = "statistics of batch normalisation are those of a micro-batch, not of the batch"
    assert said in found["normalised"].notes
    assert said not in found["one"].notes
    assert said not in found["gpipe"].notes


@pytest.mark.parametrize("job", [*JOBS, "weak"])
def test_activations_travel_once_and_their_gradients_back(found: dict[str, Record], job: str) -> None:
    record = found[job]
    workload = replace(workload_class(record.spec.workload).configured("tiny"), batch=2)
    model = workload.model()
    links = chain_of(model, partial(workload.loss, model), workload.example())
    border = cut(links, 2)[0][-1].output
    assert record.ranks is not None
    assert record.items_per_step
    sent = record.items_per_step * border[0].numel() * 4
    clip = 4 if workload.clip_norm else 0  # the square of the gradients' norm: an all-reduce of one number
    assert {count for each in record.ranks.series for count in each.wire_bytes} == {sent + clip}


@pytest.mark.parametrize("job", [*JOBS, "weak", "slow"])
def test_parts_of_every_step_add_up_and_a_stage_is_blocked_by_the_other(found: dict[str, Record], job: str) -> None:
    record = found[job]
    assert record.outcome == "ok"
    assert record.ranks is not None
    assert [each.rank for each in record.ranks.series] == [0, 1]
    for each in record.ranks.series:
        assert each.losses == record.losses
        assert len(each.step_s) == STEPS["steps"]
        for parts in zip(each.compute_s, each.exposed_s, each.wait_s, each.step_s, strict=True):
            assert sum(parts[:3]) == pytest.approx(parts[3])
        assert min(each.compute_s) > 0
        assert all(wait + transfer > 0 for wait, transfer in zip(each.wait_s, each.exposed_s, strict=True))
    assert Record.from_json(record.to_json()) == record


def test_items_are_those_of_the_one_batch(found: dict[str, Record]) -> None:
    assert (found["gpipe"].items_per_step, found["weak"].items_per_step) == (16, 64)
    assert found["gpipe"].parameters == 325_114
    assert any(note.startswith("pipeline of 4 micro-batches; stages 0: normalise to ") for note in found["1f1b"].notes)


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        ("memnet", "takes several inputs"),
        ("seq2seq", "takes several inputs"),
        ("speech", "takes several inputs"),
        ("autoenc", "is not a sequence of modules: it gives several outputs"),
        ("text_cnn", "is not a sequence of modules: windows.window3 gets something else than windows.window1 gives"),
    ],
)
def test_a_workload_that_is_no_sequence_says_why(workload: str, reason: str) -> None:
    few = replace(workload_class(workload).configured("tiny"), batch=2)
    model = few.model()
    with pytest.raises(NotAChain, match=reason):
        chain_of(model, partial(few.loss, model), few.example())


def test_a_refusal_is_one_line_with_the_workload(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="^strategy pipeline cannot cut memnet: it takes several inputs"):
        in_this_process(piped("memnet", {}), tmp_path)  # one rank sees what each of two would


def test_batches_and_micro_batches_that_do_not_fit_are_refused() -> None:
    alexnet = workload_class("alexnet").configured("tiny")
    assert Pipeline().refusal(alexnet, 2) is None
    assert "also acts between its updates" in str(Pipeline().refusal(workload_class("deepq").configured("tiny"), 2))
    assert "batch of 16 into 3 equal" in str(Pipeline().refusal(alexnet, 3))
    assert "at least 4 micro-batches" in str(Pipeline(schedule="1f1b", microbatches=2).refusal(alexnet, 4))
    with pytest.raises(UnknownName, match="no schedule 'gpip'; did you mean gpipe"):
        Pipeline.configured({"schedule": "gpip"})
    with pytest.raises(BadOption, match="microbatches must be at least 1"):
        Pipeline.configured({"microbatches": -1})


def test_a_slow_link_cannot_be_injected() -> None:
    rank: Any = SimpleNamespace(timeline=SimpleNamespace(slow_link=object()))
    nothing: Any = None
    with pytest.raises(BadOption, match="strategy pipeline has no slow link"):
        Pipeline().prepare(rank, nothing, nothing, nothing)
