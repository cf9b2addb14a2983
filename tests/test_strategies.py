"""fsdp and local_sgd: their losses against one worker's and ddp's on the same global batch, and what they send.

Tolerance: 1e-4 relative over four steps in fp32, as for ddp.
"""

from __future__ import annotations

from typing import Any

import pytest
from ranked_jobs import records_of
from test_ddp import TOLERANCE, ddp, single, wire_bytes

from fathom.core.errors import BadOption, UnknownName
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.engine.ranks.base import strategy_class
from fathom.engine.ranks.strategies.fsdp import Fsdp
from fathom.engine.ranks.strategies.local_sgd import LocalSgd
from fathom.workloads.base import workload_class


def by(strategy: str, workload: str, **options: Any) -> RunSpec:
    return ddp(workload, strategy=strategy, strategy_options=options)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    specs = {
        "fsdp": by("fsdp", "alexnet"),
        "fsdp by children": by("fsdp", "alexnet", units="children"),
        "fsdp sum": by("fsdp", "memnet"),
        "local every step": by("local_sgd", "alexnet", period=1),
        "local": by("local_sgd", "alexnet", period=2),
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
