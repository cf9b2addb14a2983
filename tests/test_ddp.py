"""ddp: the losses of a single worker on the same global batch, no item twice, bytes and cores as they must be.

Tolerance: 1e-4 relative over four steps in fp32: sums over a batch are taken in another order, nothing else differs.
"""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from ranked_jobs import records_of

from fathom.core.errors import BadOption, UnknownName
from fathom.core.heartbeat import Heartbeat
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.data.base import InMemory, ShuffledBatches, feed
from fathom.engine.ranks.drag import Drag
from fathom.engine.ranks.session import local_spec
from fathom.engine.ranks.strategies.ddp import Ddp
from fathom.engine.ranks.timeline import Timeline
from fathom.engine.session import Session
from fathom.experiments import ranks as jobs
from fathom.workloads.base import workload_class

TOLERANCE = 1e-4
STEPS = {"warmup": 1, "steps": 3}
CALM: dict[str, dict[str, Any]] = {  # without what is random in the network: each rank would draw its own
    "alexnet": {"dropout": 0.0},
    "memnet": {"noise": 0.0},
}


def ddp(workload: str, **changes: Any) -> RunSpec:
    fields: dict[str, Any] = {"ranks": 2, "strategy": "ddp", "scaling": "strong", "device": "cpu", "preset": "tiny"}
    return RunSpec(workload=workload, options=CALM[workload], **{**fields, **STEPS, **changes})


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Each job once: starting ranks takes seconds."""
    specs = {
        "memnet": ddp("memnet"),
        "alexnet": ddp("alexnet"),
        "accumulated": ddp("alexnet", strategy_options={"accumulate": 4, "bucket_mb": 0.05}),
        "accumulated sum": ddp("memnet", strategy_options={"accumulate": 2}),
        "bf16": ddp("alexnet", strategy_options={"wire": "bf16"}),
        "weak": ddp("memnet", scaling="weak"),
        "slow": ddp("memnet", slow_rank=(1, 1.5), slow_link=(0, 1.5)),
    }
    records = records_of(list(specs.values()), 2, tmp_path_factory.mktemp("ddp"))
    return dict(zip(specs, records, strict=True))


def single(workload: str, **changes: Any) -> list[float]:
    """The losses of one worker without torch.distributed, as long as the jobs."""
    spec = RunSpec(workload=workload, device="cpu", preset="tiny", options={**CALM[workload], **changes})
    with Session(spec).setup() as session:
        return [float(loss) for loss in session.run(STEPS["warmup"] + STEPS["steps"])]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("job", "workload"),
    [
        ("memnet", "memnet"),
        ("alexnet", "alexnet"),
        ("accumulated", "alexnet"),
        ("accumulated sum", "memnet"),
        ("slow", "memnet"),
    ],
)
def test_losses_are_those_of_one_worker_on_the_same_global_batch(
    found: dict[str, Record], job: str, workload: str
) -> None:
    alone = single(workload)
    assert alone[0] != pytest.approx(alone[-1], rel=10 * TOLERANCE)  # else equal losses would say nothing
    assert found[job].losses == pytest.approx(alone, rel=TOLERANCE)


def test_weak_scaling_is_one_worker_with_a_batch_twice_as_large(found: dict[str, Record]) -> None:
    assert found["weak"].items_per_step == 32
    assert found["weak"].losses == pytest.approx(single("memnet", batch=32), rel=TOLERANCE)


def test_bf16_gradients_change_losses_a_little_and_halve_the_bytes(found: dict[str, Record]) -> None:
    plain, short = found["alexnet"], found["bf16"]
    assert short.losses[0] == pytest.approx(plain.losses[0], rel=1e-6)  # before the first exchange
    assert short.losses != pytest.approx(plain.losses, rel=1e-9)
    assert short.losses == pytest.approx(plain.losses, rel=0.02)
    assert wire_bytes(short) * 2 == wire_bytes(plain)


def wire_bytes(record: Record) -> int:
    assert record.ranks is not None
    (found,) = {count for each in record.ranks.series for count in each.wire_bytes}
    return found


@pytest.mark.parametrize("job", ["memnet", "alexnet", "accumulated", "weak"])
def test_each_rank_sends_every_gradient_once(found: dict[str, Record], job: str) -> None:
    """2 (n - 1) / n of the message, which for two ranks is the message: 4 bytes for each weight."""
    record = found[job]
    assert record.parameters
    assert wire_bytes(record) == 4 * record.parameters


@pytest.mark.parametrize("job", ["memnet", "alexnet", "accumulated", "bf16", "weak", "slow"])
def test_every_rank_has_its_steps_and_their_parts_add_up(found: dict[str, Record], job: str) -> None:
    record = found[job]
    assert record.outcome == "ok"
    assert record.ranks is not None
    assert [each.rank for each in record.ranks.series] == [0, 1]
    for each in record.ranks.series:
        assert len(each.step_s) == len(record.step_s) == STEPS["steps"]
        for parts in zip(each.compute_s, each.exposed_s, each.wait_s, each.step_s, strict=True):
            assert sum(parts[:3]) == pytest.approx(parts[3])
        assert all(part > 0 for part in each.compute_s)
        assert all(seconds <= slowest + 1e-9 for seconds, slowest in zip(each.step_s, record.step_s, strict=True))
    assert Record.from_json(record.to_json()) == record


def test_many_buckets_are_many_operations_and_some_are_hidden(found: dict[str, Record]) -> None:
    record = found["accumulated"]
    assert record.ranks is not None
    assert record.ranks.settings["accumulate"] == 4
    assert sum(sum(each.hidden_s) for each in record.ranks.series) > 0


def test_a_slow_rank_sleeps_for_a_multiple_of_what_it_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("time.sleep", sleep)
    drag = Drag(3.0)
    drag.begin()
    now[0] += 2.0
    drag.pull()
    drag.pull()  # nothing was computed since
    assert slept == [4.0, 0.0]
    Drag(1.0).pull()
    assert slept == [4.0, 0.0]


def test_a_slow_link_lengthens_every_operation_of_its_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = [10.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    timeline = Timeline(torch.device("cpu"), Heartbeat(tmp_path / "beat"), ranks=2, slower=3.0)
    timeline.begin_step()
    begun = timeline.begin("all-reduce", 100)
    now[0] += 2.0
    timeline.done(begun)
    timeline.exposed_since(begun)
    timeline.end_step()
    (step,) = timeline.spans()
    assert step.communication == step.exposed == [(10.0, 16.0)]
    assert step.wire_bytes == 100


def test_all_ranks_together_see_every_item_once_an_epoch() -> None:
    items, batch, ranks = 60, 5, 3
    one_epoch = items // (batch * ranks)
    dataset = InMemory(value=torch.arange(items))
    for epoch in range(3):
        seen: list[int] = []
        for rank in range(ranks):
            batches = feed(dataset.share_of(rank, ranks), batch, torch.device("cpu"), seed=7)
            for each in islice(batches, epoch * one_epoch, (epoch + 1) * one_epoch):
                seen += each["value"].tolist()
        assert sorted(seen) == list(range(items))
    assert dataset.share == (0, 1)  # the shares are copies


def test_the_batches_of_all_ranks_are_the_global_batch_also_across_epochs() -> None:
    whole = list(islice(iter(ShuffledBatches(50, 12, seed=3)), 9))
    parts = [list(islice(iter(ShuffledBatches(50, 4, 3, share=(rank, 3))), 9)) for rank in range(3)]
    assert whole == [list(chain(*same)) for same in zip(*parts, strict=True)]
    later = list(islice(iter(ShuffledBatches(50, 4, 3, start=5, share=(1, 3))), 4))
    assert later == parts[1][5:9]


def test_bucketed_utterances_are_divided_too() -> None:
    from fathom.data._utterance_batches import by_length

    spec = RunSpec(workload="speech", preset="tiny")
    source = workload_class("speech").configured("tiny").synthetic(0)
    assert spec.ranks is None
    device = torch.device("cpu")
    whole = [batch["phones"].tolist() for batch in islice(by_length(source, 4, device, 0), 6)]
    shares = [islice(by_length(source.share_of(rank, 2), 4, device, 0), 3) for rank in (0, 1)]
    found = [batch["phones"].tolist() for same in zip(*shares, strict=True) for batch in same]
    assert found == whole


def test_a_global_batch_that_cannot_be_divided_is_refused() -> None:
    spec = ddp("memnet", ranks=3)
    with pytest.raises(BadOption, match="global batch of 16 cannot be divided among 3 ranks"):
        local_spec(spec, 16)
    assert local_spec(ddp("memnet", ranks=4), 16).batch == 4
    assert local_spec(ddp("memnet", ranks=4, scaling="weak"), 16).batch == 16


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"wire": "fp8"}, "no wire 'fp8'"),
        ({"accumulate": 0}, "accumulate must be at least 1"),
        ({"accumulate": 1.5}, "is such as 1, not 1.5"),
        ({"bucket": 1}, "no option of strategy ddp 'bucket'; did you mean bucket_mb"),
        ({"find_unused": 1}, "is such as False, not 1"),
    ],
)
def test_wrong_options_of_a_strategy_are_one_line(options: dict[str, Any], problem: str) -> None:
    with pytest.raises((BadOption, UnknownName), match=problem):
        Ddp.configured(options)


def test_a_batch_that_cannot_be_accumulated_is_refused_with_the_reason() -> None:
    refusal = Ddp(accumulate=5).refusal(workload_class("memnet").configured("tiny"), 2)
    assert refusal == "cannot accumulate over 5 equal parts of a rank's batch of 16"


def test_one_rank_is_the_same_work_in_weak_and_strong_scaling() -> None:
    weak, strong = (ddp("memnet", ranks=1, scaling=scaling) for scaling in ("weak", "strong"))
    assert weak.id == strong.id
    assert RunSpec.from_json(weak.to_json()) == weak
    assert ddp("memnet", slow_rank=[1, 2]).slow_rank == (1, 2.0)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"ranks": 0}, "ranks must be at least 1"),
        ({"ranks": None}, "strategy needs a number of ranks"),
        ({"scaling": "wide"}, "no scaling 'wide'"),
        ({"slow_rank": (2, 2.0)}, "slow_rank must be of rank 0 to 1, not 2"),
        ({"slow_link": (1, 0.5)}, "slow_link is 1 to 1000 times slower"),
    ],
)
def test_wrong_ranks_are_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises((BadOption, UnknownName), match=problem):
        ddp("memnet", **fields)


def test_every_rank_of_a_series_has_the_cores_that_the_largest_job_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "usable_cores", lambda: 16)
    specs = jobs.plan(ddp("memnet", slow_rank=(1, 2.0)), ["memnet"], [1, 2, 8])
    assert [(spec.ranks, spec.threads, spec.slow_rank) for spec in specs] == [
        (1, 2, None),
        (2, 2, (1, 2.0)),
        (8, 2, (1, 2.0)),
    ]
    with pytest.raises(BadOption, match="no job has the slow rank 1"):
        jobs.plan(ddp("memnet", slow_rank=(1, 2.0)), ["memnet"], [1])
    with pytest.raises(UnknownName, match="no strategy 'ddq'; did you mean ddp"):
        jobs.plan(ddp("memnet", strategy="ddq"), ["memnet"], [1])


def test_records_go_to_a_file_and_old_ones_have_no_ranks(found: dict[str, Record], tmp_path: Path) -> None:
    document = found["memnet"].to_json()
    del document["ranks"]
    for name in ("ranks", "strategy", "scaling", "strategy_options", "slow_rank"):
        del document["spec"][name]
    assert Record.from_json(document).ranks is None
