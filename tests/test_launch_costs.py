"""What the host needs for each op call on a GPU: as timed beside a fixed loop, whatever speed the core had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sample_records import GPU, LAPTOP, op_row, record_of

from fathom.core.disturbance import Disturbance
from fathom.measure.calibration import run as running
from fathom.measure.calibration.op_times import OpTime
from fathom.measure.calibration.run import Runner
from fathom.predict.campaign import Campaign, TimedCall, launches_of
from fathom.predict.choice import Choice
from fathom.predict.estimate import Interval, estimate
from fathom.predict.evaluation import OP_BY_OP, UNSEEN_WORKLOAD, evaluate
from fathom.predict.from_records import beside_steps_s, usable
from fathom.predict.host_costs import fit_host
from fathom.predict.launches import Launches
from fathom.predict.other_batches import Case, corrected
from fathom.predict.predictors.efficiency import Efficiency
from fathom.predict.predictors.names import EFFICIENCY, ROOFLINE
from fathom.predict.probe import Probe
from fathom.predict.target import CUDAGRAPH
from fathom.trace.step_work import OpWork, StepWork

LOOP_S = 1e-4  # of the fixed loop on a core at its full speed


def op(name: str, size: int, part: str = "forward") -> OpWork:
    return OpWork(
        op=name, type="Add", part=part, shapes=f"[{size}]", dtypes="float", flop=float(size), bytes=4.0 * size,
        spec=f"{name} {size}",
    )  # fmt: skip


def call(work: OpWork, loops: float, source: str, slow: float = 1.0) -> TimedCall:
    """Launched while the core was so many times slower than it can be."""
    return TimedCall(
        work=work, seconds=1e-6, host_s=loops * slow * LOOP_S, loop_s=slow * LOOP_S, sources=(source,)
    )  # fmt: skip


def step(ops: list[OpWork], phase: str = "infer") -> StepWork:
    return StepWork(
        workload="net", phase=phase, precision="fp32", batch=8, item="item", ops=tuple(ops),
        sequence=tuple(range(len(ops))),
    )  # fmt: skip


def probes() -> list[Probe]:
    """A launch takes 0.9 of what it took alone, a step 0.2 loops, a training step 5 more; half of them on a slow core.

    Training steps have twice as many calls of the backward pass, which cost no more than others.
    """
    return [
        Probe(
            name=f"random {at}", phase=phase, calls={"forward": at, "backward": 2 * at * (phase == "train")},
            ops_s=1e-6, cold_bytes=0.0, loop_s=slow * LOOP_S, launch_loops=0.1 * at,
            step_s=slow * LOOP_S * (0.09 * at + 0.2 + 5 * (phase == "train")),
        )
        for at in range(10, 30) for phase in ("train", "infer") for slow in (1 + at % 2,)
    ]  # fmt: skip


def campaign(calls: list[TimedCall]) -> Campaign:
    return Campaign(
        machine="device", device="cuda:0", threads=None, torch="2.13", started="2026", flop_per_s={"fp32": 1e14},
        bytes_per_s=4e12, calls=calls, probes=probes(),
    )  # fmt: skip


def test_a_call_has_its_own_launch_another_the_median_of_its_op_and_an_unknown_op_that_of_all() -> None:
    found = Launches.of([(op("add", at), loops) for at, loops in enumerate([1.0, 2.0, 30.0])] + [(op("mul", 0), 8.0)])
    assert [found.loops(op("add", 2)), found.loops(op("add", 99)), found.loops(op("mul", 99))] == [30, 2, 8]
    assert found.loops(op("sin", 1)) == 5, "between the two ops"
    assert Launches().loops(op("add", 1)) == 0


def test_a_launch_is_the_same_whether_the_core_was_slow_or_fast() -> None:
    slow, fast = call(op("add", 1), 3.0, "random 1", slow=2.0), call(op("add", 2), 3.0, "random 1")
    assert (slow.host_s, fast.host_s) == pytest.approx((6e-4, 3e-4))
    found = launches_of([slow, fast, replace(fast, work=op("mul", 1), loop_s=None)])
    assert found.by_op == pytest.approx({"add": 3.0}), "a call of an earlier version says nothing"


def test_costs_of_launches_and_steps_are_found_at_the_full_speed_of_the_host() -> None:
    found = fit_host(probes(), gpu=True)
    assert found.launch_s_per_loop == pytest.approx(0.9 * LOOP_S, rel=1e-6)
    assert [found.step_s, found.training_s] == pytest.approx([0.2 * LOOP_S, 5 * LOOP_S], rel=1e-6)
    assert (found.forward_s, found.backward_s, found.optimizer_s) == (0, 0, 0)


def test_a_campaign_of_an_earlier_version_is_fitted_by_counts_of_calls() -> None:
    old = [replace(each, launch_loops=None) for each in probes()]
    found = fit_host(old, gpu=True)
    assert found.launch_s_per_loop == 0 < found.forward_s


def test_a_step_takes_what_the_launches_of_its_own_ops_take() -> None:
    """Ten calls that take 1 us on the GPU: 0.5 loops each to launch, or 4."""
    calls = [call(op("cheap", at), 0.5, "random 1") for at in range(10)]
    calls += [call(op("dear", at), 4.0, "random 1") for at in range(10)]
    target = campaign(calls).target()
    cheap, dear = ([op(name, 100 + at) for at in range(10)] for name in ("cheap", "dear"))
    assert estimate(step(cheap), target).step_s == pytest.approx((0.9 * 5 + 0.2) * LOOP_S, rel=1e-4)
    assert estimate(step(dear), target).step_s == pytest.approx((0.9 * 40 + 0.2) * LOOP_S, rel=1e-4)
    assert estimate(step(dear, "train"), target).step_s == pytest.approx((0.9 * 40 + 5.2) * LOOP_S, rel=1e-4)
    assert estimate(step(dear), target.executed_by(CUDAGRAPH)).host_s == pytest.approx(0.2 * LOOP_S, rel=1e-4)


def test_a_step_is_predicted_at_the_speed_that_its_host_had() -> None:
    """The same step on a core that takes twice as long, and in a graph; records of earlier versions do not say."""
    calls = [call(op("add", at), 1.0, "random 1") for at in range(30)]
    ops = [op("add", 100 + at) for at in range(10)]
    full_s = (0.9 * 10 + 0.2) * LOOP_S
    slow = Case(step(ops), 2 * full_s, loop_s=2 * LOOP_S, slow_host=True)
    cases = [slow, Case(step(ops), full_s), Case(step(ops), 0.4 * LOOP_S, CUDAGRAPH, 2 * LOOP_S)]
    scores = evaluate(campaign(calls), cases, [EFFICIENCY])
    assert [each.error for each in scores] == pytest.approx([0, 0, 0], abs=1e-3)
    old = replace(campaign(calls), probes=[replace(each, launch_loops=None) for each in probes()])
    assert len(evaluate(old, cases, [EFFICIENCY])) == 2, "its costs are of a host whose speed is not known"
    target = campaign(calls).target()
    other = replace(slow, step=replace(slow.step, batch=4))
    correction = corrected(step(ops), [other], target, Efficiency.fitted([], target))
    assert correction is not None
    assert correction.factor == pytest.approx(1, abs=1e-3)
    unknown = Choice(old.target(), Efficiency.fitted([], old.target()), Interval(), [])
    (note,) = unknown.corrected_by([other, Case(replace(step(ops), batch=2), full_s)], step(ops)).notes
    assert note.endswith("at batch 2"), "the other one's host was slow by what nobody knows here"


@pytest.mark.parametrize(
    ("seen", "counts"),
    [
        (Disturbance(), True),
        (Disturbance(cpu_slowdown=2.0, step_loops_s=(2 * LOOP_S,)), True),
        (Disturbance(cpu_slowdown=2.0, loop_s=2 * LOOP_S), False),  # before and after the steps, in older records
        (Disturbance(cpu_slowdown=2.0, step_loops_s=(2 * LOOP_S,), steal=0.1), False),
        (Disturbance(cpu_slowdown=2.0, step_loops_s=(2 * LOOP_S,), gpu_shared=True), False),
    ],
)
def test_a_slow_host_alone_does_not_keep_a_gpu_step_from_being_compared(seen: Disturbance, counts: bool) -> None:
    on_cpu, on_gpu = (
        record_of(rows=[op_row("Add", 0.1, place=place)], place=place, spec={"kind": "profiled"}, disturbance=seen)
        for place in (LAPTOP, GPU)
    )
    assert bool(usable([on_gpu], slow_host=True)) is counts
    on_a_slow_core = seen.loop_s is not None and not seen.by_others
    assert bool(usable([on_cpu], slow_host=True)) is (on_a_slow_core or seen == Disturbance())
    assert bool(usable([on_gpu])) is bool(usable([on_cpu])) is (seen == Disturbance())


def compared_in(campaign: Campaign, cases: list[Case]) -> set[int]:
    """By their batches."""
    return {each.batch for each in evaluate(campaign, cases, [ROOFLINE]) if each.situation == UNSEEN_WORKLOAD}


@pytest.mark.parametrize(("loop_s", "compared"), [(2.0, 3), (2.4, 3), (1.65, 3), (2.6, 2), (1.5, 2), (None, 3)])
def test_a_step_of_a_cpu_is_compared_if_its_core_was_as_fast_as_in_the_calibration(
    loop_s: float | None, compared: int
) -> None:
    """Slow or not; where the calibration does not say how fast that was, undisturbed steps count."""
    calls = [replace(call(op("add", at), 1.0, "random 1"), loop_s=2.0) for at in range(30)]
    found = replace(campaign(calls), device="cpu", probes=[])
    cases = [
        Case(replace(step([op("add", 100 + slow)]), batch=1 + slow), 1.0, loop_s=2.0, slow_host=slow)
        for slow in (False, True)
    ]
    last = Case(replace(step([op("add", 99)]), batch=4), 1.0, loop_s=loop_s)
    assert len(compared_in(found, [*cases, last])) == compared
    unknown = replace(found, calls=[replace(each, loop_s=None) for each in calls])
    assert len(compared_in(unknown, [*cases, last])) == 2


def test_the_speed_of_a_host_is_that_between_its_steps() -> None:
    seen = Disturbance(loop_s=3 * LOOP_S, step_loops_s=(LOOP_S, 9 * LOOP_S, 2 * LOOP_S))
    assert beside_steps_s(record_of(disturbance=seen)) == 2 * LOOP_S
    assert beside_steps_s(record_of(disturbance=replace(seen, step_loops_s=()))) == 3 * LOOP_S
    assert beside_steps_s(record_of()) is None


def test_an_unseen_workload_is_predicted_without_its_own_launches() -> None:
    """They take ten times as long as those of the same op elsewhere: only who timed them knows."""
    own = [op("add", at) for at in range(10)]
    calls = [call(each, 10.0, "net@8 infer") for each in own]
    calls += [call(op("add", 100 + at), 1.0, "random 1") for at in range(30)]
    scores = evaluate(campaign(calls), [Case(step(own), (0.9 * 100 + 0.2) * LOOP_S)], [EFFICIENCY])
    errors = {each.situation: each.error for each in scores}
    assert errors[OP_BY_OP] == pytest.approx(0, abs=1e-3)
    assert errors[UNSEEN_WORKLOAD] == pytest.approx(9.2 / 90.2 - 1, abs=1e-3)


def test_calls_and_steps_of_an_earlier_version_are_timed_again_and_kept_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU that this test makes believe in; each call takes a second of the budget."""
    timed: list[str] = []

    def time_call(spec: str, device: torch.device) -> OpTime:
        timed.append(spec)
        return OpTime(2e-6, 2e-5, LOOP_S)

    monkeypatch.setattr(running, "time_call", time_call)
    monkeypatch.setattr(running, "step_s", lambda *_: 0.5)
    monkeypatch.setattr(running, "graph_s", lambda *_: 0.25)
    monkeypatch.setattr(running, "PROBES", 2)
    monkeypatch.setattr(running, "DEEP_PROBES", 0)
    monkeypatch.setattr(Runner, "_gpu", True)
    monkeypatch.setattr(Runner, "_steps", lambda *_: iter(()))  # those of the probes suffice

    def run(left: Campaign, budget_s: float) -> Campaign:
        before = len(timed)
        runner = Runner(torch.device("cpu"), tmp_path / "c", budget_s, left, clock=lambda: float(len(timed) - before))
        return runner.run([], ("fp32",))

    empty = replace(campaign([]), device="cpu", probes=[])
    whole = run(empty, 300.0)
    assert [each.launch_loops for each in whole.calls] == pytest.approx([0.2] * len(whole.calls))
    assert len(whole.probes) == 4
    first = whole.probes[0]
    in_graphs = [(each.graph_s, each.kernel_calls == sum(each.calls.values())) for each in whole.probes]
    assert in_graphs == [(None, False), (0.25, True)] * 2, "inference alone, in which each call took 2 us"
    assert first.launch_loops == pytest.approx(0.2 * sum(first.calls.values()))
    assert len(timed) == len(set(timed)), "nothing twice"

    old = replace(
        whole,
        calls=[replace(each, loop_s=None, seconds=1.0) for each in whole.calls],
        probes=[replace(each, launch_loops=None) for each in whole.probes],
    )
    some = run(old, 10.0)
    assert [(each.name, each.phase) for each in some.probes] == [(each.name, each.phase) for each in whole.probes]
    again = [each for each in some.calls if each.launch_loops is not None]
    assert len(some.calls) == len(whole.calls)
    assert [each.seconds for each in again] == [2e-6] * 10
    assert {each.work.spec: each.sources for each in some.calls} == {each.work.spec: each.sources for each in old.calls}
    assert run(some, 300.0).probes[0].launch_loops == first.launch_loops
    without_graphs = replace(whole, probes=[replace(each, graph_s=None, kernel_calls=None) for each in whole.probes])
    assert sorted(each.phase for each in run(without_graphs, 300.0).probes if each.graph_s) == ["infer", "infer"]
    not_captured = replace(whole, probes=[replace(each, graph_s=None) for each in whole.probes])
    assert not any(each.graph_s for each in run(not_captured, 300.0).probes), "it is not tried again"
