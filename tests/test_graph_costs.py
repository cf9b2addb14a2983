"""What a CUDA graph saves: found from steps in graphs, and taken off the calls that have kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fathom.predict.campaign import Campaign, TimedCall
from fathom.predict.estimate import estimate
from fathom.predict.evaluation import UNSEEN_WORKLOAD, evaluate
from fathom.predict.graph_costs import fit_graphs
from fathom.predict.other_batches import Case, Corrected
from fathom.predict.predictors.names import EFFICIENCY, ROOFLINE
from fathom.predict.predictors.op_by_op import OpByOp
from fathom.predict.predictors.roofline import Roofline
from fathom.predict.probe import Probe
from fathom.predict.target import CUDAGRAPH, GraphCosts, Target
from fathom.trace.step_work import OpWork, StepWork

SAVED_S, COPIES_S = 0.9e-6, 3e-6
KERNEL_S, VIEW_S = 3e-6, 12e-9  # of a call alone


def probe(at: int, factor: float = 1.0) -> Probe:
    """So many calls of a kernel, as many views, and one long kernel in some."""
    ops_s = at * (KERNEL_S + VIEW_S) + (at % 3) * 1e-4
    return Probe(
        name=f"random {at}", phase="infer", calls={"forward": 2 * at}, ops_s=ops_s, step_s=ops_s, kernel_calls=at,
        graph_s=factor * (ops_s - at * SAVED_S + COPIES_S),
    )  # fmt: skip


PROBES = [probe(at) for at in range(4, 40)]
OPS = tuple(
    OpWork(
        op=name, type="Add", part="forward", shapes=f"[{at}]", dtypes="float", flop=1.0, bytes=4.0, spec=f"{name} {at}"
    )
    for at in range(10) for name in ("add", "view")
)  # fmt: skip
STEP = StepWork(
    workload="net", phase="infer", precision="fp32", batch=8, item="item", ops=OPS, sequence=tuple(range(20))
)  # fmt: skip
CALLS = [
    TimedCall(work=op, seconds=KERNEL_S if op.op == "add" else VIEW_S, sources=("random 1",)) for op in OPS
]  # fmt: skip
CAMPAIGN = Campaign(
    machine="device", device="cuda:0", threads=None, torch="2.13", started="2026", flop_per_s={"fp32": 1e14},
    bytes_per_s=4e12, calls=CALLS, probes=PROBES,
)  # fmt: skip
IN_GRAPH_S = 10 * (KERNEL_S - SAVED_S + VIEW_S) + COPIES_S


def test_what_a_graph_saves_is_found_although_one_step_was_timed_beside_another_program() -> None:
    found = fit_graphs([*PROBES, probe(50, factor=3.0)])
    assert (found.saved_s, found.step_s) == pytest.approx((SAVED_S, COPIES_S), rel=1e-3)


def test_graphs_slower_than_their_calls_save_nothing_and_few_steps_say_nothing() -> None:
    assert fit_graphs([replace(each, graph_s=2 * each.ops_s) for each in PROBES]).saved_s == 0
    assert fit_graphs(PROBES[:5]) == GraphCosts()
    assert fit_graphs([replace(each, graph_s=None) for each in PROBES]) == GraphCosts(), "those of an earlier version"


def test_a_step_in_a_graph_saves_it_at_each_kernel_and_at_no_view() -> None:
    target, timed = CAMPAIGN.target(), OpByOp(CALLS, Roofline())
    eager, graph = (estimate(STEP, each, predictor=timed) for each in (target, target.executed_by(CUDAGRAPH)))
    assert eager.device_s == pytest.approx(10 * (KERNEL_S + VIEW_S))
    assert graph.device_s == pytest.approx(IN_GRAPH_S, rel=1e-3)
    assert graph.roofline_s == eager.roofline_s, "the baseline has ceilings alone"


def test_a_call_shorter_than_what_is_saved_takes_no_time() -> None:
    costs = GraphCosts(saved_s=5e-6)
    assert [costs.in_graph(each) for each in (VIEW_S, 2e-6, 6e-6)] == pytest.approx([VIEW_S, 0.0, 1e-6])


def test_measured_steps_in_graphs_are_predicted_with_it_and_the_roofline_without() -> None:
    scores = evaluate(CAMPAIGN, [Case(STEP, IN_GRAPH_S, CUDAGRAPH)], [EFFICIENCY, ROOFLINE])
    errors = {each.predictor: each.error for each in scores if each.situation != UNSEEN_WORKLOAD}
    assert errors == pytest.approx({"op by op": 0.0}, abs=1e-3)
    (roofline,) = (each.predicted_s for each in scores if each.predictor == ROOFLINE)
    bare = replace(CAMPAIGN.target(), graphs=GraphCosts(), engine=CUDAGRAPH)
    assert roofline == sum(Roofline().seconds(STEP, bare))


def test_a_step_corrected_by_other_batches_saves_that_much_more() -> None:
    target = replace(Target(name="gpu", gpu=True, flop_per_s={"fp32": 1e14}, bytes_per_s=4e12), engine=CUDAGRAPH)
    target = replace(target, graphs=GraphCosts(SAVED_S, COPIES_S))
    timed = OpByOp(CALLS, Roofline())
    corrected = Corrected(timed, 2.0)
    longer = estimate(STEP, corrected.target(target), predictor=corrected).step_s
    assert longer == pytest.approx(2 * estimate(STEP, target, predictor=timed).step_s, rel=1e-2)
