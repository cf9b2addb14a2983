"""The step clock: what is between two stretches of steps is the time of none of them."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest
import torch

from fathom.core.spec import RunSpec
from fathom.machine.clock import StepClock
from fathom.measure import loop
from fathom.measure.stopping import StoppingRule


def test_steps_are_timed_from_mark_to_mark_and_pauses_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 1.0, 3.0, 100.0, 104.0, 200.0, 200.5])
    monkeypatch.setattr("fathom.machine.clock.time", SimpleNamespace(perf_counter=lambda: next(moments)))
    clock = StepClock(torch.device("cpu"))
    for stretch in (2, 1, 1):
        clock.begin()
        for _ in range(stretch):
            clock.mark()
    assert clock.seconds() == [1.0, 2.0, 4.0, 0.5]


@pytest.mark.parametrize("warmup", [0, 2])
def test_asking_how_well_the_median_is_known_is_no_step(warmup: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes at every look at the clock, a thousand while the interval is computed."""
    ticks = count()
    asked = []

    def never_known(rule: StoppingRule, steps_s: list[float]) -> float:
        asked.append(len(steps_s))
        for _ in range(1000):
            next(ticks)
        return float("inf")

    monkeypatch.setattr("fathom.machine.clock.time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    monkeypatch.setattr(StoppingRule, "half_width", never_known)
    spec = RunSpec(workload="autoenc", preset="tiny", device="cpu", warmup=warmup, steps=40, budget_s=1e6)
    record = loop.measure(spec)
    assert asked == [5, 10, 20, 40]
    assert record.warmup_s == [1.0] * warmup
    assert record.step_s == [1.0] * 40


def test_a_record_keeps_nanoseconds_and_every_float32_of_the_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """All 17 digits of a float doubled the files of runs with many steps, and told nothing."""
    ticks = count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) / 3)
    monkeypatch.setattr("fathom.machine.clock.time", clock)
    record = loop.measure(RunSpec(workload="autoenc", preset="tiny", device="cpu", warmup=1, steps=3))
    assert record.warmup_s + record.step_s == [0.333333333] * 4
    assert len(set(record.losses)) == 4
    assert all(len(repr(loss)) <= len("0.") + 9 + len("0") for loss in record.losses)
    assert [torch.tensor(loss).item() for loss in record.losses] == pytest.approx(record.losses, rel=1e-8)
