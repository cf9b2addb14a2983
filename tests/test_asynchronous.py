"""Asynchronous and hybrid training: staleness is bounded, nothing is lost; on real ranks in test_strategies.py."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from fathom.core.errors import BadOption, UnknownName
from fathom.core.ranks import strategy_named, strategy_shown
from fathom.engine.ranks.group import Clock
from fathom.engine.ranks.server import Server
from fathom.engine.ranks.strategies.asynchronous import Asynchronous
from fathom.engine.ranks.strategies.hybrid import Hybrid
from fathom.engine.ranks.timeline import StepSpans
from fathom.measure.ranks import _Measured, _steps_of_all
from fathom.workloads.base import workload_class


class Log:
    """A server whose weights are the sum of what came, and what each worker was answered."""

    def __init__(self, workers: int, bound: int) -> None:
        self.total = 0.0
        self.answers: list[tuple[int, float]] = []
        self.server = Server(self._apply, workers, bound)

    def _apply(self, gradients: Tensor) -> None:
        self.total += float(gradients.sum())

    def push(self, worker: int) -> bool:
        """Whether the answer came at once."""
        before = len(self.answers)
        self.server.push(worker, torch.ones(1), lambda: self.answers.append((worker, self.total)))
        return (worker, self.total) in self.answers[before:]


def test_a_worker_too_far_ahead_waits_for_the_slowest() -> None:
    log = Log(workers=2, bound=1)
    assert log.push(0)  # clocks 1 and 0
    assert not log.push(0)  # 2 and 0: one too far
    assert log.push(1)  # 2 and 1: both are answered
    assert log.answers == [(0, 1.0), (0, 3.0), (1, 3.0)]


def test_without_slack_workers_go_in_step() -> None:
    log = Log(workers=3, bound=0)
    assert not log.push(2)
    assert not log.push(0)
    assert log.push(1)
    assert sorted(worker for worker, _ in log.answers) == [0, 1, 2]
    assert {total for _, total in log.answers} == {3.0}


def test_nobody_waits_for_a_worker_that_has_finished() -> None:
    log = Log(workers=2, bound=0)
    assert not log.push(0)
    log.server.finish(1)
    assert log.answers == [(0, 1.0)]
    assert log.server.running == {0}
    assert log.push(0)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_in_any_order_every_update_is_applied_once_and_none_is_staler_than_the_bound(bound: int) -> None:
    """Workers that may push do so in a random order; each waits for its answer, as ranks do."""
    chance, workers, updates = random.Random(bound), 4, 50
    log, clocks = Log(workers, bound), [0] * workers
    waiting: set[int] = set()
    while min(clocks) < updates:
        ready = [worker for worker in range(workers) if worker not in waiting and clocks[worker] < updates]
        worker = chance.choice(ready)
        before = len(log.answers)
        clocks[worker] += 1
        waiting.add(worker)
        log.push(worker)
        waiting -= {answered for answered, _ in log.answers[before:]}
        free = [clocks[each] for each in range(workers) if each not in waiting]
        assert max(free) - min(clocks) <= bound
        if clocks[worker] == updates and worker not in waiting:
            log.server.finish(worker)
    assert log.total == workers * updates
    assert max(log.server.staleness) <= (workers - 1) * (2 * bound + 1)


def test_what_does_not_fit_is_refused() -> None:
    memnet = workload_class("memnet").configured("tiny")
    assert Hybrid(group_size=3).refusal(memnet, 4) == "cannot divide 4 ranks into groups of 3"
    assert Hybrid(group_size=2).refusal(memnet, 4) is None
    with pytest.raises(BadOption, match="larger ones are strategy hybrid"):
        Asynchronous.configured({"group_size": 2})
    with pytest.raises(BadOption, match="staleness at least 0"):
        Hybrid.configured({"staleness": -1})
    with pytest.raises(UnknownName, match="did you mean staleness"):
        Asynchronous.configured({"stalenes": 1})


def test_names_as_people_write_them() -> None:
    names = ["async", "local-sgd", "ddp", "my-package.module:Class"]
    assert [strategy_named(name) for name in names] == ["asynchronous", "local_sgd", "ddp", "my-package.module:Class"]
    assert [strategy_shown(strategy_named(name)) for name in names] == names, "reports have them as they are typed"


def test_rates_of_asynchronous_ranks_add_up_over_time() -> None:
    """Two ranks whose steps of 10 and 30 ms change places: each has made two in 40 ms, and so has the job."""
    moments = [[(0.0, 0.010), (0.010, 0.040)], [(0.0, 0.030), (0.030, 0.040)]]
    spans = [[StepSpans(begin, end, [], [], 0) for begin, end in each] for each in moments]
    everyone = [_Measured(each, [1.0, 1.0], False, 0.0, Clock()) for each in spans]
    assert sum(_steps_of_all(everyone, 0, synchronous=False)) == pytest.approx(0.040)
    assert _steps_of_all(everyone, 0, synchronous=True) == pytest.approx([0.030, 0.030])
    assert _steps_of_all(everyone, 1, synchronous=False) == pytest.approx([0.015, 0.015])
