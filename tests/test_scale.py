"""Cores: which are taken, in what order, and what the speed-ups of bound runs say."""

from __future__ import annotations

import json

import pytest
from sample_records import MACHINES, record_of

from fathom import scale
from fathom.analyses import cores
from fathom.errors import BadOption
from fathom.machine import Cpu, cpu_numbers
from fathom.record import Record
from fathom.spec import RunSpec

TWO_NODES = [Cpu(number, core=number % 4, node=(number % 4) // 2) for number in range(8)]  # 4 cores of 2 threads


def test_cores_are_taken_one_thread_each_and_node_by_node() -> None:
    assert scale.spread(TWO_NODES, 1) == (0,)
    assert scale.spread(TWO_NODES, 2) == (0, 1)  # node 0 alone
    assert scale.spread(TWO_NODES, 4) == (0, 1, 2, 3)  # every core once
    assert scale.spread(TWO_NODES, 6) == (0, 1, 2, 3, 4, 5)  # then second threads, of node 0 first


def test_shared_cores_are_full_ones() -> None:
    assert scale.packed(TWO_NODES, 2) == (0, 4)
    assert scale.packed(TWO_NODES, 4) == (0, 1, 4, 5)
    assert scale.packed([Cpu(0, 0, 0), Cpu(1, 1, 0)], 2) == ()


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3", [0, 1, 2, 3]), ("0,4", [0, 4]), ("7", [7]), ("0-1,6-7", [0, 1, 6, 7])]
)
def test_the_systems_lists_are_read(text: str, numbers: list[int]) -> None:
    assert cpu_numbers(text) == numbers


def test_the_plan_binds_with_matching_threads_and_with_those_of_the_whole_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale, "topology", lambda: TWO_NODES)
    specs = scale.plan(RunSpec(workload=""), ["vgg"], [1, 2, 8]).specs
    assert [(spec.cores, spec.threads) for spec in specs] == [
        ((0,), 1),
        ((0,), 8),
        ((0, 1), 2),
        ((0, 1), 8),
        ((0, 4), 2),
        (tuple(range(8)), 8),
    ]
    assert {spec.device for spec in specs} == {"cpu"}
    assert RunSpec.from_json(json.loads(json.dumps(specs[0].to_json()))) == specs[0]
    with pytest.raises(BadOption, match="may use 8 cores; cannot run on 9"):
        scale.plan(RunSpec(workload=""), ["vgg"], [9])


def bound(count: int, step_s: float, threads: int | None, numbers: list[int] | None = None) -> Record:
    numbers = numbers or list(range(count))
    cpu = {**MACHINES["laptop"]["cpu"], "affinity": numbers, "cores": sorted({n % 4 for n in numbers}), "nodes": [0]}
    spec = {"cores": tuple(numbers), "threads": threads, "device": "cpu"}
    return record_of("vgg", spec=spec, machine={"cpu": cpu, "gpus": []}, step_s=[step_s] * 20, warmup_s=[])


RUNS = [bound(1, 8.0, 1), bound(2, 5.0, 2), bound(2, 10.0, 4), bound(4, 4.0, 4), bound(2, 6.4, 2, [0, 4])]


def test_efficiency_is_speed_up_over_cores() -> None:
    (curve,) = cores.curves_of(RUNS)
    found = {(point.count, point.way): (curve.speedup(point), curve.efficiency(point)) for point in curve.points}
    assert found == {
        (1, "matching"): (1.0, 1.0),
        (2, "matching"): (1.6, 0.8),
        (2, "all"): (0.8, 0.4),
        (2, "two a core"): (1.25, 0.625),
        (4, "matching"): (2.0, 0.5),
    }
    finding = cores.analyse(RUNS)
    worth = dict(zip(finding.tables[0].columns, finding.tables[0].rows[0], strict=True))
    assert (worth["cores"], worth["speed-up"], worth["efficiency (%)"]) == (4, 2.0, 50.0)
    assert worth["all/matching"] == 2.0
    assert "vgg makes good use of the cores" in finding.summary.lower()
    assert not any("hardware threads, so that" in note for note in finding.notes)


def test_on_one_core_and_on_all_a_pool_for_all_is_drawn_with_the_matching_runs() -> None:
    (curve,) = cores.curves_of(RUNS)
    assert [(point.count, point.way) for point in curve.along("all")] == [
        (1, "matching"),
        (2, "all"),
        (4, "matching"),
    ]


def test_bound_runs_answer_no_other_question() -> None:
    from fathom.analyses import phases

    assert phases.analyse(RUNS).summary.startswith("Nothing to answer from")
    assert cores.analyse([record_of("vgg")]).summary.startswith("Nothing to answer from: no run bound to cores")
