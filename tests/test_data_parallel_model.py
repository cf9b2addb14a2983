"""Step time of data-parallel training: buckets, overlap, weak and strong scaling, asynchronous servers."""

from __future__ import annotations

import operator
import random
from functools import partial

import pytest

from fathom.analysis.scaling_law import STRONG, WEAK, law
from fathom.core.errors import BadOption
from fathom.predict.communication import Link, seconds
from fathom.predict.scaling import (
    MIB,
    Bucket,
    Gradient,
    LocalStep,
    asynchronous,
    buckets,
    curve,
    synchronous,
    without_overlap,
)

GRADIENTS = [Gradient(1.0, MIB), Gradient(1.0, 30 * MIB), Gradient(1.0, 10 * MIB)]
LOCAL = LocalStep(forward_s=2.0, gradients=GRADIENTS, update_s=0.5)


def test_buckets_close_with_the_gradient_that_fills_them() -> None:
    assert buckets(GRADIENTS) == [Bucket(1.0, MIB), Bucket(2.0, 30 * MIB), Bucket(3.0, 10 * MIB)]
    small = [Gradient(0.5, 10 * MIB) for _ in range(7)]
    assert buckets(small) == [Bucket(0.5, 10 * MIB), Bucket(2.0, 30 * MIB), Bucket(3.5, 30 * MIB)]
    assert buckets(GRADIENTS, bucket_bytes=100 * MIB, first_bytes=100 * MIB) == [Bucket(3.0, 41 * MIB)]
    assert buckets([]) == []
    with pytest.raises(BadOption, match="more than 0 bytes"):
        buckets(GRADIENTS, bucket_bytes=0)


@pytest.mark.parametrize(
    ("each_s", "exposed", "hidden"),
    [  # backward takes 3 s; buckets are ready after 1, 2 and 3 s
        (0.0, 0.0, 0.0),
        (0.5, 0.5, 1.0),
        (1.0, 1.0, 2.0),
        (2.0, 4.0, 2.0),
    ],
)
def test_exposed_communication_by_hand(each_s: float, exposed: float, hidden: float) -> None:
    step = synchronous(LOCAL, lambda _: each_s)
    assert (step.exposed_s, step.hidden_s) == (exposed, hidden)
    assert step.step_s == LOCAL.compute_s + exposed == 5.5 + exposed


def test_overlap_never_takes_longer_and_hides_no_more_than_the_backward_pass() -> None:
    numbers = random.Random(7)
    for _ in range(200):
        local = LocalStep(1.0, [Gradient(numbers.random(), numbers.randrange(1, 60 * MIB)) for _ in range(12)])
        per_byte = 10 ** numbers.uniform(-10, -6)
        step, plain = (model(local, partial(operator.mul, per_byte)) for model in (synchronous, without_overlap))
        assert step.communication_s == pytest.approx(plain.communication_s)  # without latency
        assert step.step_s <= plain.step_s + 1e-9
        assert 0 <= step.exposed_s <= step.communication_s + 1e-12
        assert step.hidden_s <= local.backward_s + 1e-9
        last = buckets(local.gradients)[-1]
        assert step.exposed_s >= last.size_bytes * per_byte - 1e-9  # nothing can hide the last bucket


def fixed_and_per_item(batch: int) -> LocalStep:
    return LocalStep(forward_s=0.1, gradients=[Gradient(0.009 * batch, MIB)])


def test_strong_scaling_without_communication_is_amdahls_law() -> None:
    found = curve(fixed_and_per_item, 100, [1, 2, 4, 10], lambda *_: 0.0, STRONG)
    assert [each.batch for each in found] == [100, 50, 25, 10]
    for each in found:
        assert each.speedup == pytest.approx(law(0.1, each.ranks, STRONG))
        assert each.efficiency == pytest.approx(each.speedup / each.ranks)


def test_weak_scaling_keeps_the_step_and_loses_what_is_exposed() -> None:
    ideal = curve(fixed_and_per_item, 100, [1, 8], lambda *_: 0.0, WEAK)
    assert [(each.batch, each.efficiency) for each in ideal] == [(100, 1.0), (100, 1.0)]
    link = Link(0.0, MIB)
    (one, four) = curve(
        fixed_and_per_item, 100, [1, 4], lambda n, size: seconds("all-reduce", "ring", n, size, link), WEAK
    )
    assert one.step.exposed_s == 0.0
    assert four.step.exposed_s == pytest.approx(1.5)
    assert four.efficiency == pytest.approx(1.0 / 2.5)  # t1 / tN
    assert four.items_per_s == pytest.approx(400 / 2.5)


def test_the_slowest_rank_has_the_larger_part() -> None:
    (found,) = curve(fixed_and_per_item, 10, [3], lambda *_: 0.0, STRONG)
    assert found.batch == 4
    with pytest.raises(BadOption, match="weak or strong"):
        curve(fixed_and_per_item, 10, [3], lambda *_: 0.0, "medium")
    with pytest.raises(BadOption, match="from 1"):
        curve(fixed_and_per_item, 10, [0], lambda *_: 0.0, WEAK)


def test_asynchronous_training_is_bound_by_its_workers_then_by_the_servers() -> None:
    link = Link(0.0, 100.0)  # a push of 10 bytes takes 0.1 s
    few = asynchronous(2, 0.8, 10, link)
    assert few.updates_per_s == pytest.approx(2.0)
    assert (few.limit, few.staleness) == ("workers", 1.0)
    many = asynchronous(50, 0.8, 10, link)
    assert many.updates_per_s == pytest.approx(10.0)
    assert many.limit == "server links"
    assert asynchronous(50, 0.8, 10, link, servers=4).updates_per_s == pytest.approx(40.0)
    assert asynchronous(50, 0.8, 10, link, servers=8).limit == "workers"
    assert asynchronous(50, 0.8, 10, link, apply_s=0.5).limit == "server updates"
    with pytest.raises(BadOption):
        asynchronous(0, 1.0, 10, link)
    with pytest.raises(BadOption, match="no rate"):
        asynchronous(1, 0.0, 0, link)


def test_asynchronous_rates_never_fall_with_workers_or_servers() -> None:
    link = Link(1e-5, 1e9)
    for servers in (1, 2, 4):
        rates = [asynchronous(n, 0.1, 1e8, link, servers=servers, apply_s=0.01).updates_per_s for n in range(1, 40)]
        assert rates == sorted(rates)
