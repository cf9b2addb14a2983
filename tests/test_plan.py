"""Plans: combinations ranked by time, energy and cost, what limits them, what cannot be, and the Cookbook's rules."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from energy_records import energy_of, metered_record

from fathom.core.errors import BadOption
from fathom.predict import catalogue, rules
from fathom.predict.communication import Link, fastest
from fathom.predict.estimate import Estimate, Interval, estimate
from fathom.predict.measured_energy import joules_per_item
from fathom.predict.plan import (
    AT_TDP,
    COST,
    ENERGY,
    MEASURED,
    NETWORKS,
    TIME,
    Grid,
    Job,
    Plan,
    cannot_join,
    plan,
    usual_links,
)
from fathom.predict.target import CUDAGRAPH, HostCosts, Target, gigabytes
from fathom.trace.step_work import GradientReady, OpWork, StepWork

FAST = Target(
    name="H100 SXM", gpu=True, flop_per_s={"fp32": 10e12, "bf16": 40e12}, bytes_per_s=1e12, memory_bytes=8e9, tdp_w=700
)
SLOW = Target(name="K40", gpu=True, flop_per_s={"fp32": 1e12}, bytes_per_s=1e12, memory_bytes=4e9, tdp_w=200)
NETWORK = catalogue.interconnect("Ethernet 10")
HOUR_S = 3600.0


def work(precision: str = "fp32", batch: int = 100, *, kind: str = "MatMul", flop_per_item: float = 1e9) -> StepWork:
    """One op forward, one backward, of 1 GFLOP an item together; 100 MB of gradients at the end; 10 MB an item."""
    dtype = {"fp32": "float", "bf16": "BFloat16"}[precision]
    half = flop_per_item * batch / 2
    ops = [
        OpWork(op="aten::mm", type=kind, part=part, shapes="", dtypes=dtype, flop=half, bytes=0.0)
        for part in ("forward", "backward")
    ]
    return StepWork(
        workload="made up",
        phase="train",
        precision=precision,
        batch=batch,
        item="image",
        ops=tuple(ops),
        sequence=(0, 1),
        gradients=(GradientReady(2, 100_000_000),),
        peak_bytes=batch * 10_000_000,
    )


def steps(target: Target, precision: str, batch: int) -> StepWork:
    return work(precision, batch)


def predict(step: StepWork, target: Target, count: int, link: Link | None) -> Estimate:
    return estimate(step, target, count=count, link=link, interval=Interval(1.0, 3.0))


def planned(job: Job, **changes: object) -> Plan:
    fields = {"targets": [FAST, SLOW], "counts": (1, 2), "interconnects": [NETWORK], "batches": (100,)}
    return plan(job, Grid(**(fields | changes)), steps, predict)  # type: ignore[arg-type]


def test_the_time_of_a_job_is_its_steps_times_the_predicted_step() -> None:
    found = planned(Job(items=1000, epochs=3), targets=[SLOW], counts=(1,), precisions=("fp32",))
    (only,) = found.choices
    assert only.estimate.step_s == pytest.approx(0.1)  # 100 GFLOP at 1 TFLOP/s
    assert only.seconds == pytest.approx(10 * 3 * 0.1)
    assert [only.low_s, only.high_s] == pytest.approx([3.0, 9.0])


def test_an_epoch_that_does_not_divide_ends_with_a_whole_step() -> None:
    assert Job(items=1001).steps(100) == 11
    assert Job(items=1001, epochs=2).steps(100) == 22
    assert Job(items=1).steps(100) == 1


def test_the_fastest_is_first_and_each_choice_has_energy_and_cost() -> None:
    found = planned(Job(items=36_000_000, prices={"K40": 0.5}), counts=(1,))
    assert [(each.device, each.precision) for each in found.choices] == [
        ("H100 SXM", "bf16"),
        ("H100 SXM", "fp32"),
        ("K40", "fp32"),
    ]
    slow = found.choices[-1]
    assert slow.seconds == pytest.approx(10 * HOUR_S)
    assert slow.cost == pytest.approx(5.0)
    assert slow.energy_j == pytest.approx(200 * 10 * HOUR_S)
    assert slow.energy_is == AT_TDP
    assert found.choices[0].cost is None  # no price was given, and none is assumed
    assert found.best(COST) is slow
    assert found.best(TIME) is found.choices[0]
    assert found.best(ENERGY) is found.choices[0]


def test_measured_energy_goes_before_the_bound_and_holds_for_one_device_alone() -> None:
    grid = Grid(targets=[FAST], counts=(1, 2), interconnects=[NETWORK], batches=(100,), precisions=("bf16",))
    found = plan(Job(items=1000), grid, steps, predict, {("H100 SXM", "bf16", 100): 2.5})
    by_count = {each.count: each for each in found.choices}
    assert (by_count[1].energy_j, by_count[1].energy_is) == (2500.0, MEASURED)
    assert by_count[2].energy_is == AT_TDP


def test_measured_energy_is_not_held_against_that_at_a_tdp() -> None:
    asked: dict[str, Any] = {"targets": [FAST, SLOW], "counts": (1,), "batches": (100,), "precisions": ("fp32",)}
    of_slow = {("K40", "fp32", 100): 1e-3}  # far below its TDP
    found = plan(Job(items=1e6, within_s=1e9), Grid(**asked), steps, predict, of_slow)
    least = found.best(ENERGY)
    assert least is not None
    assert least.device == found.advised().device == "H100 SXM", "both at their TDP"
    found = plan(Job(items=1e6), Grid(**asked), steps, predict, of_slow | {("H100 SXM", "fp32", 100): 1.0})
    least = found.best(ENERGY)
    assert least is not None
    assert (least.device, least.energy_is) == ("K40", MEASURED), "both measured"


def test_several_devices_send_their_gradients() -> None:
    found = planned(Job(items=1e6), targets=[FAST], precisions=("fp32",))
    alone, two = sorted(found.choices, key=lambda each: each.count)
    sent = fastest("all-reduce", 2, 100_000_000, Link.of(NETWORK))[1]
    assert two.estimate.exposed_s == pytest.approx(sent)  # all of it: the only gradient is ready at the end
    assert two.seconds == pytest.approx(alone.seconds / 2 * (0.01 + sent) / 0.01)
    assert two.estimate.bound_by == "communication"
    assert alone.interconnect is None


@pytest.mark.parametrize(
    ("within_h", "advised"),
    [
        (None, "1 x H100 SXM, batch 100 each, bf16"),  # the fastest
        (6.0, "1 x H100 SXM, batch 100 each, bf16"),  # K40 takes 10 h
        (11.0, "1 x H100 SXM, batch 100 each, bf16"),  # K40 keeps it only if the prediction is right
        (31.0, "1 x K40, batch 100 each, fp32"),  # the cheapest, also at the upper end of its interval
    ],
)
def test_within_a_time_limit_the_cheapest_is_advised(within_h: float | None, advised: str) -> None:
    within = None if within_h is None else within_h * HOUR_S
    job = Job(items=36_000_000, within_s=within, prices={"K40": 0.1, "H100 SXM": 50.0})
    assert str(planned(job, counts=(1,)).advised()) == advised


def test_without_prices_the_least_energy_is_advised_within_a_limit() -> None:
    thrifty = replace(SLOW, tdp_w=10.0)
    job = Job(items=36_000_000, within_s=40 * HOUR_S)
    assert planned(job, targets=[FAST, thrifty], counts=(1,)).advised().device == "K40"


def test_the_next_best_change_is_of_one_axis() -> None:
    found = planned(Job(items=1e6), counts=(1, 2), batches=(100, 400))
    slow = next(each for each in found.choices if str(each) == "1 x K40, batch 100 each, fp32")
    axis, better = found.next_best(slow) or ("", None)
    assert axis == "device"
    assert str(better) == "1 x H100 SXM, batch 100 each, fp32"
    two = next(each for each in found.choices if str(each) == "2 x H100 SXM on Ethernet 10, batch 100 each, fp32")
    axis, better = found.next_best(two) or ("", None)
    assert (axis, str(better)) == ("count", "1 x H100 SXM, batch 100 each, fp32")  # its communication takes longer
    assert found.next_best(found.choices[0]) is None


def test_a_change_beyond_the_budget_is_not_the_next_best() -> None:
    """1 h on an H100 for 5, 10 h on a K40 for 1; a K40 in bf16 does not exist."""
    prices = {"K40": 0.1, "H100 SXM": 5.0}
    for budget, better in ((None, "device"), (4, None)):
        found = planned(Job(items=36_000_000, prices=prices, budget=budget), counts=(1,), precisions=("fp32",))
        slow = next(each for each in found.choices if each.device == "K40")
        assert (found.next_best(slow) or (None,))[0] == better


def test_one_device_instead_of_two_is_a_change_of_the_count() -> None:
    found = planned(Job(items=1e6), targets=[FAST], precisions=("fp32",))
    two = next(each for each in found.choices if each.count == 2)
    assert found.next_best(two) == ("count", found.choices[0])


def test_a_graph_removes_what_the_host_does_per_op() -> None:
    launched = replace(FAST, host=HostCosts(forward_s=0.5, backward_s=0.5, step_s=0.001))
    found = planned(Job(items=100), targets=[launched], counts=(1,), precisions=("fp32",))
    steps = {each.engine: each.estimate.step_s for each in found.choices}
    assert steps == {"eager": pytest.approx(1.001), CUDAGRAPH: pytest.approx(0.01)}
    assert {each.engine for each in planned(Job(items=100)).choices} == {"eager"}  # nothing is known to remove


# what cannot be


def test_what_does_not_fit_says_what_it_needs() -> None:
    found = planned(Job(items=1e6), targets=[SLOW], counts=(1,), batches=(100, 500), precisions=("fp32", "bf16"))
    assert [each.batch for each in found.choices] == [100]
    assert [*map(str, found.impossible)] == [
        "batch 500 in fp32 on K40: needs 5 GB, K40 has 4 GB",
        "bf16 on K40: no bf16 peak of K40 is known",
    ]


def test_nothing_possible_gives_the_reasons() -> None:
    with pytest.raises(BadOption, match=r"^no combination is possible: batch 900 in fp32 on K40: needs 9 GB"):
        planned(Job(items=1e6), targets=[SLOW], batches=(900,), precisions=("fp32",)).advised()


def test_a_time_that_nothing_keeps_names_the_fastest() -> None:
    with pytest.raises(BadOption) as raised:
        planned(Job(items=36_000_000, within_s=360), targets=[SLOW], counts=(1,), precisions=("fp32",)).advised()
    told = "no setting takes 0.1 h or less: the fastest, 1 x K40, batch 100 each, fp32, takes 10 h"
    assert str(raised.value) == told


def test_a_budget_that_nothing_keeps_names_the_cheapest() -> None:
    job = Job(items=36_000_000, budget=2, prices={"K40": 0.5})
    with pytest.raises(BadOption) as raised:
        planned(job, counts=(1,)).advised()
    told = "no setting keeps the budget of 2: the cheapest, 1 x K40, batch 100 each, fp32, costs 5 and takes 10 h"
    assert str(raised.value) == told


def test_a_device_without_a_price_keeps_no_budget() -> None:
    job = Job(items=36_000_000, budget=6, prices={"K40": 0.5})
    assert {each.device for each in planned(job, counts=(1,)).allowed} == {"K40"}


def test_a_budget_needs_prices() -> None:
    with pytest.raises(BadOption, match="--budget needs prices, such as --price h100=2.5"):
        Job(items=1, budget=5)


@pytest.mark.parametrize(
    ("items", "limit"), [(0, "above 0"), (-1, "above 0"), (float("nan"), "above 0"), (1e30, "below 1e+18")]
)
def test_items_are_above_zero_and_below_a_limit(items: float, limit: str) -> None:
    with pytest.raises(BadOption, match=re.escape(f"--items must be {limit}, not ")):
        Job(items=items)


@pytest.mark.parametrize(
    ("device", "count", "link", "why"),
    [
        ("K40", 2, "NVLink 4", "K40 has no NVLink"),
        ("P100", 2, "NVLink 4", "P100 has NVLink 1"),
        ("P100", 8, "NVLink 1", None),
        ("P100", 16, "NVLink 1", "NVLink joins the devices of one server, 8 at most; more need a network"),
        ("P100", 16, "PCIe 3", "PCIe joins the devices of one server, 8 at most; more need a network"),
        ("P100", 16, "InfiniBand EDR", None),
        ("K40", 2, "PCIe 5", "K40 has PCIe 3"),
        ("K20", 2, "PCIe 3", "K20 has PCIe 2"),
        ("H100 SXM", 2, "PCIe 3", None),  # an older slot
        ("NVIDIA L40S", 2, "PCIe 5", None),  # in no catalogue: nobody knows
    ],
)
def test_what_an_interconnect_cannot_join(device: str, count: int, link: str, why: str | None) -> None:
    assert cannot_join(device, count, link) == why


def test_only_what_was_asked_for_is_refused() -> None:
    """By default each device is compared on links that it has, and more devices than a server holds on networks."""
    assert planned(Job(items=1), targets=[FAST], interconnects=None, counts=(16,)).impossible == []
    asked = planned(
        Job(items=1), targets=[SLOW], interconnects=[catalogue.interconnect("NVLink 4")], precisions=("fp32",)
    )
    assert [*map(str, asked.impossible)] == ["2 x K40 on NVLink 4: K40 has no NVLink"]


# the Cookbook's rules


def checked(host: rules.Host | None = None, count: int = 4, kind: str = "MatMul", flop: float = 1e6) -> dict[str, str]:
    step = work(kind=kind, flop_per_item=flop)
    link = Link.of(NETWORK) if count > 1 else None
    found = rules.checks(step, FAST, predict(step, FAST, count, link), NETWORK.name if link else None, host)
    assert {each.source for each in found} == {rules.SOURCE}
    return {each.detail: each.verdict for each in found}


def test_rules_are_requirements_of_a_machine_that_is_not_here() -> None:
    found = checked()
    assert found.pop("8 CPU threads for 4 x H100 SXM") == rules.NEEDED
    assert found.pop("64 GB of RAM for 4 x H100 SXM") == rules.NEEDED
    (detail,) = found
    assert detail.startswith("a small fully connected model; ")
    assert detail.endswith(" % of the step is communication that Ethernet 10 does not hide (Fathom's limit: 10 %)")
    assert found[detail] == rules.FAILS


@pytest.mark.parametrize(("threads", "ram", "verdict"), [(8, 64e9, rules.HOLDS), (7, 63e9, rules.FAILS)])
def test_rules_are_checked_on_this_machine(threads: int, ram: float, verdict: str) -> None:
    found = checked(rules.Host(threads, ram))
    assert found[f"{threads} CPU threads, 8 needed"] == verdict
    assert found[f"{gigabytes(ram)} of RAM, 64 GB needed"] == verdict


def test_a_large_model_hides_its_communication() -> None:
    found = checked(kind="Conv2D", flop=1e12)
    detail = (
        "not a small fully connected model; 1 % of the step is communication that Ethernet 10 does not hide "
        "(Fathom's limit: 10 %)"
    )
    assert found[detail] == rules.HOLDS


def test_one_device_sends_nothing_and_a_cpu_needs_no_gpu_memory() -> None:
    assert checked(count=1)["one device sends nothing"] == rules.NOT_CONCERNED
    cpu = replace(FAST, gpu=False)
    assert rules.cpu_threads(cpu, 1, rules.Host()).verdict == rules.NOT_CONCERNED
    assert rules.host_memory(cpu, 1, rules.Host()).verdict == rules.NOT_CONCERNED


def test_the_cookbooks_observation_on_its_own_networks() -> None:
    """Small and dense is told by FLOP of an item: 0.2 GFLOP of the acoustic model, not a transformer's many."""
    assert rules.is_small_dense(work(flop_per_item=0.2e9))
    assert not rules.is_small_dense(work(flop_per_item=20e9))
    assert not rules.is_small_dense(work(kind="Conv2D", flop_per_item=0.2e9))


# measured energy


def test_measured_joules_are_those_of_valid_eager_uncapped_runs() -> None:
    """3 J a step of 100 items, on the H200 of the sample records; 0.03 J an item."""
    found = joules_per_item([metered_record()], "autoenc", "train", "small")
    assert found == {("H200", "fp32", 100): pytest.approx(0.03)}
    assert joules_per_item([metered_record()], "vgg", "train", "small") == {}
    assert joules_per_item([metered_record()], "autoenc", "train", "paper") == {}
    capped = metered_record(spec={"power_cap_w": 300})
    compiled = metered_record(spec={"engine": "compile"})
    short = metered_record(energy=energy_of(3.0, 0.01, window_s=1.0))
    other = metered_record(spec={"options": {"latent": 400}})
    real = metered_record(spec={"data": "mnist"})
    assert joules_per_item([capped, compiled, short, other, real], "autoenc", "train", "small") == {}


def test_memory_in_words() -> None:
    assert [gigabytes(each) for each in (4.752e9, 80e9, 999e9, 12_413e9)] == ["4.75 GB", "80 GB", "999 GB", "12,413 GB"]


def test_measured_joules_are_of_all_threads() -> None:
    alone = metered_record(spec={"threads": 1}, per_step_j=9.0)
    found = joules_per_item([metered_record(), alone], "autoenc", "train", "small")
    assert found == {("H200", "fp32", 100): pytest.approx(0.03)}


def test_this_machine_has_the_links_and_the_energy_of_its_model() -> None:
    here = replace(Target.of(catalogue.device("H200")), name="here", listed="H200")
    assert (here.model, Target.of(catalogue.device("H200")).model) == ("H200", "H200")
    assert cannot_join(here.model, 2, "NVLink 4") is None
    assert cannot_join(here.name, 2, "NVLink 4") == "here has no NVLink"


@pytest.mark.parametrize(
    ("device", "own"), [("H100 PCIe", "PCIe 5"), ("MI300X", "PCIe 5"), ("K40", "PCIe 3"), ("H200", "NVLink 4")]
)
def test_devices_of_a_server_are_joined_by_their_own_link(device: str, own: str) -> None:
    assert [each.name for each in usual_links(Target.of(catalogue.device(device)))] == [own, *NETWORKS]


def test_cpus_are_hosts_that_networks_join() -> None:
    assert [each.name for each in usual_links(replace(SLOW, gpu=False))] == list(NETWORKS)


def test_a_batch_that_a_model_cannot_have_is_told_and_the_others_are_planned() -> None:
    def some(target: Target, precision: str, batch: int) -> StepWork:
        if batch == 1:
            raise BadOption("a batch of 1 has no variance")
        return work(precision, batch)

    found = plan(
        Job(items=1e6), Grid(targets=[FAST], counts=(1,), batches=(1, 100), precisions=("fp32",)), some, predict
    )
    assert {each.batch for each in found.choices} == {100}
    assert [(each.batch, each.why) for each in found.impossible] == [(1, "a batch of 1 has no variance")]


def test_coverage_is_of_one_device_in_eager() -> None:
    known = Interval(0.5, 2.0, 0.9)
    link = Link.of(NETWORK)
    alone, two = (estimate(work(), FAST, count=n, link=link, interval=known).coverage for n in (1, 2))
    assert (alone, two) == (0.9, None)
    slow_host = replace(FAST, host=HostCosts(forward_s=1.0, backward_s=1.0))
    found = plan(
        Job(items=1e6),
        Grid(targets=[slow_host], counts=(1,), batches=(100,)),
        steps,
        lambda step, target, count, link: estimate(step, target, count=count, link=link, interval=known),
    )
    assert {each.engine: each.estimate.coverage for each in found.choices} == {"eager": 0.9, CUDAGRAPH: None}
