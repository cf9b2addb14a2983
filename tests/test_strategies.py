"""fsdp, local_sgd, hybrid, asynchronous: losses against one worker's on the same global batch, and what they send.

One launch of two ranks runs these, a sweep and the collective operations: to load torch takes longer than the jobs.

Tolerance: 1e-4 relative over four steps in fp32, as for ddp.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ranked_jobs import records_of
from test_ddp import TOLERANCE, ddp, single, wire_bytes
from test_ranks_finding import rows
from test_sweeps import TABLE

from fathom.analysis.finding import analyse
from fathom.core.errors import BadOption, UnknownName
from fathom.core.ranks import OPERATIONS
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.engine.ranks.base import strategy_class
from fathom.engine.ranks.strategies.fsdp import Fsdp
from fathom.engine.ranks.strategies.local_sgd import LocalSgd
from fathom.experiments import ranks as jobs
from fathom.experiments.ranks import collectives
from fathom.measure import collectives as measured
from fathom.workloads.base import workload_class

CLIPPED = {"clip_norm": 0.1}  # less than any gradient here


def by(strategy: str, workload: str, **options: Any) -> RunSpec:
    return ddp(workload, strategy=strategy, strategy_options=options)


def clipped(spec: RunSpec) -> RunSpec:
    return replace(spec, options={**spec.options, **CLIPPED})


def swept() -> list[RunSpec]:
    base = RunSpec(workload="memnet", preset="tiny", device="cpu", ranks=2, strategy="hybrid", scaling="weak", steps=30)
    tried = jobs.combinations({"group_size": [1, 2], "staleness": [0, 2]})
    return [spec for each in tried for spec in jobs.plan(replace(base, strategy_options=each), ["memnet"], [2])]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    sweep = {f"sweep {number}": spec for number, spec in enumerate(swept())}
    (operations,) = collectives([2], "cpu", 64, 4096, OPERATIONS)
    specs = {
        "fsdp": by("fsdp", "alexnet"),
        "fsdp by children": by("fsdp", "alexnet", units="children"),
        "fsdp sum": by("fsdp", "memnet"),
        "local every step": by("local_sgd", "alexnet", period=1),
        "local": by("local_sgd", "alexnet", period=2),
        "one group": by("hybrid", "alexnet", group_size=2),
        "one group sum": by("hybrid", "memnet", group_size=2),
        "clipped by ddp": clipped(ddp("memnet")),
        "clipped by fsdp": clipped(by("fsdp", "alexnet")),
        "clipped in a group": clipped(by("hybrid", "alexnet", group_size=2)),
        "clipped in a group, sum": clipped(by("hybrid", "memnet", group_size=2)),
        "asynchronous": by("asynchronous", "memnet", staleness=1),
        "collectives": operations,
        **sweep,
    }
    records = records_of(list(specs.values()), 2, tmp_path_factory.mktemp("strategies"))
    return dict(zip(specs, records, strict=True))


@pytest.mark.parametrize(
    ("job", "workload"),
    [
        ("fsdp", "alexnet"),
        ("fsdp by children", "alexnet"),
        ("fsdp sum", "memnet"),
        ("local every step", "alexnet"),  # the mean of weights after one step of SGD is a step by the mean gradient
    ],
)
def test_losses_are_those_of_one_worker_on_the_same_global_batch(
    found: dict[str, Record], job: str, workload: str
) -> None:
    assert found[job].losses == pytest.approx(single(workload), rel=TOLERANCE)


@pytest.mark.parametrize(
    ("job", "workload"),
    [
        ("clipped by ddp", "memnet"),
        ("clipped by fsdp", "alexnet"),
        ("clipped in a group", "alexnet"),
        ("clipped in a group, sum", "memnet"),
    ],
)
def test_gradients_are_clipped_when_those_of_all_ranks_are_together(
    found: dict[str, Record], job: str, workload: str
) -> None:
    alone = single(workload, **CLIPPED)
    assert alone[-1] != pytest.approx(single(workload)[-1], rel=10 * TOLERANCE)
    assert found[job].losses == pytest.approx(alone, rel=TOLERANCE)


def test_local_sgd_departs_from_one_worker_between_its_averages(found: dict[str, Record]) -> None:
    alone = single("alexnet")
    assert found["local"].losses[0] == pytest.approx(alone[0], rel=TOLERANCE)
    assert found["local"].losses[-1] != pytest.approx(alone[-1], rel=TOLERANCE)


def test_local_sgd_sends_its_weights_once_a_period_and_nothing_else(found: dict[str, Record]) -> None:
    record = found["local"]
    assert record.ranks is not None
    assert record.parameters
    every_other = [4 * record.parameters, 0, 4 * record.parameters]  # steps 2, 3 and 4; the first is warm-up
    assert [each.wire_bytes for each in record.ranks.series] == [every_other] * 2
    for each in record.ranks.series:
        assert each.exposed_s[1] == each.wait_s[1] == 0


def test_fsdp_sends_as_much_as_ddp_where_weights_are_gathered_once(found: dict[str, Record]) -> None:
    """All-gather and reduce-scatter are the halves of an all-reduce; both pad the last part to equal sizes."""
    record = found["fsdp sum"]
    assert record.parameters
    assert 4 * record.parameters <= wire_bytes(record) <= 4.2 * record.parameters


def test_fsdp_gathers_children_again_for_the_backward_pass(found: dict[str, Record]) -> None:
    assert wire_bytes(found["fsdp by children"]) > 1.4 * wire_bytes(found["fsdp"])


@pytest.mark.parametrize("job", ["fsdp", "fsdp by children", "local every step", "local"])
def test_parts_of_every_step_add_up(found: dict[str, Record], job: str) -> None:
    record = found[job]
    assert record.ranks is not None
    assert record.outcome == "ok"
    for each in record.ranks.series:
        for parts in zip(each.compute_s, each.exposed_s, each.wait_s, each.step_s, strict=True):
            assert sum(parts[:3]) == pytest.approx(parts[3])


def test_parameters_are_those_of_the_whole_network(found: dict[str, Record]) -> None:
    assert len({found[job].parameters for job in ("fsdp", "fsdp by children", "local")}) == 1


@pytest.mark.parametrize(("job", "workload"), [("one group", "alexnet"), ("one group sum", "memnet")])
def test_one_group_of_all_ranks_is_one_worker_on_the_global_batch(
    found: dict[str, Record], job: str, workload: str
) -> None:
    assert found[job].losses == pytest.approx(single(workload), rel=TOLERANCE)


def test_asynchronous_ranks_send_gradients_and_receive_weights(found: dict[str, Record]) -> None:
    record = found["asynchronous"]
    assert record.outcome == "ok"
    assert record.ranks is not None
    assert record.parameters
    sent = {each.rank: set(each.wire_bytes) for each in record.ranks.series}
    served = sent.pop(0)  # the server is in its process, and sends weights in whatever step rank 0 is
    assert {size % (4 * (record.parameters + 1)) for size in served} == {0}
    assert sum(served) > 0
    assert all(counts == {4 * (record.parameters + 1)} for counts in sent.values())
    assert sent
    assert all(seconds == 0 for each in record.ranks.series for seconds in each.wait_s)
    assert any(note.startswith("staleness: mean") for note in record.notes)
    assert any("harmonic mean" in note for note in record.notes)


def test_a_sweep_of_tiny_jobs_is_answered_by_convergence(found: dict[str, Record]) -> None:
    jobs.check_fit(swept())
    records = [record for job, record in found.items() if job.startswith("sweep ")]
    table = rows(analyse("convergence", records), TABLE)
    assert [(row["group size"], row["staleness bound"]) for row in table] == [(1, 0), (1, 2), (2, 0), (2, 2)]
    assert all(row["items"] > 0 and row["time (s)"] > 0 for row in table)


def test_two_ranks_measure_every_operation_and_check_its_results(found: dict[str, Record], tmp_path: Path) -> None:
    record = found["collectives"]
    assert record.outcome == "ok"
    assert record.ranks is not None
    assert [(each.operation, each.message_bytes) for each in record.ranks.collectives] == [
        (name, size) for name in OPERATIONS for size in (64, 256, 1024, 4096)
    ]
    assert all(each.wrong == 0 and len(each.sample_s) == measured.SAMPLES for each in record.ranks.collectives)
    Store(tmp_path / "records").add(record)
    assert next(Store(tmp_path / "records").records()).ranks == record.ranks


def test_a_workload_that_does_not_fit_is_refused_with_the_reason() -> None:
    deepq = workload_class("deepq").configured("tiny")
    assert "acts between its updates" in str(Fsdp().refusal(deepq, 2))
    assert Fsdp().refusal(workload_class("vgg").configured("tiny"), 2) is None


def test_wrong_options_are_one_line() -> None:
    with pytest.raises(BadOption, match="period must be at least 1"):
        LocalSgd.configured({"period": 0})
    with pytest.raises(UnknownName, match="no units 'layer'"):
        Fsdp.configured({"units": "layer"})
    with pytest.raises(UnknownName, match="did you mean fsdp"):
        strategy_class("fsdpp")
