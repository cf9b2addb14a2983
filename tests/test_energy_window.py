"""The window of an energy run: its number of steps follows from the step time and from how often the meters update."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from metering import every, renewed, samples

from fathom.core.energy import COUNTER, ESTIMATE, POWER
from fathom.core.spec import RunSpec
from fathom.machine.sampler import Samples
from fathom.measure import window
from fathom.measure.energy import least_updates


class Machine:
    """A clock that only steps move on, a sampler that looks at it, and a counter that is renewed every so often."""

    def __init__(self, step_s: Iterator[float], update_s: float = 0.1, kind: str = COUNTER) -> None:
        self.now, self.step_s, self.update_s, self.kind = 100.0, step_s, update_s, kind
        self.passes: list[int] = []

    def steps(self, session: Any, steps: int, progress: Any = None) -> window.Pass:
        self.passes.append(steps)
        begun, seconds = self.now, [next(self.step_s) for _ in range(steps)]
        self.now += sum(seconds)
        return window.Pass([(begun, self.now)], seconds, [0.5] * steps)

    def peek(self) -> Samples | None:
        if self.kind == "none":
            return None
        moments = every(0.05, math.floor(self.now * 20) / 20, begin=99.0)
        counter = renewed(lambda at: 300 * at, every(self.update_s, self.now))
        curve = {"watts": lambda at: 300.0} if self.kind in (POWER, ESTIMATE) else {"joules": counter}
        return samples(moments, kind=self.kind, **curve)


def forever(step_s: float) -> Iterator[float]:
    while True:
        yield step_s


def run(machine: Machine, monkeypatch: pytest.MonkeyPatch, step_s: float, **spec: Any) -> window.Pass:
    monkeypatch.setattr(window, "_steps", machine.steps)
    session: Any = SimpleNamespace(spec=RunSpec(workload="autoenc", kind="energy", **spec))
    sampler: Any = machine
    return window._window(session, sampler, step_s, lambda done, total: None)


@pytest.mark.parametrize(("step_s", "steps"), [(0.01, 550), (0.0002, 27_500), (2.0, 5)])
def test_the_number_of_steps_follows_from_the_step_time(
    step_s: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five seconds and a tenth, and five steps whatever they take."""
    machine = Machine(forever(step_s))
    found = run(machine, monkeypatch, step_s)
    assert machine.passes == [steps]
    assert len(found.seconds) == len(found.results) == steps
    assert found.ended - found.begun == pytest.approx(steps * step_s)


def test_steps_that_came_out_faster_are_followed_by_more(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(forever(0.005))
    found = run(machine, monkeypatch, 0.01)
    first, second = machine.passes
    assert first == 550
    assert second == pytest.approx(550, abs=1), "2.75 s were too short by half"
    assert found.ended - found.begun == pytest.approx(5.5, abs=0.01)


def test_a_slow_counter_makes_the_window_longer_until_it_has_fifty_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(forever(0.01), update_s=0.4)
    found = run(machine, monkeypatch, 0.01)
    updates = least_updates(machine.peek(), found.begun, found.ended)
    assert updates is not None
    assert 50 <= updates <= 60


def test_a_counter_that_is_far_too_slow_does_not_hold_the_run_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(forever(0.01), update_s=30.0)
    found = run(machine, monkeypatch, 0.01)
    assert found.ended - found.begun <= window.MARGIN * window.LONGEST_S + 0.1
    assert len(machine.passes) <= 1 + window.EXTENSIONS


def drifting() -> Iterator[float]:
    """A host that is slower and faster by a tenth for two seconds at a time."""
    elapsed = 0.0
    while True:
        step_s = 0.011 if int(elapsed) % 4 < 2 else 0.009
        elapsed += step_s
        yield step_s


def test_steps_that_a_host_delays_by_the_second_make_the_window_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(drifting())
    found = run(machine, monkeypatch, 0.01)
    assert len(machine.passes) > 1
    assert found.ended - found.begun <= 1.2 * window.MARGIN * window.LONGEST_UNSTEADY_S, (
        "as long as its last steps told"
    )
    assert window._uncertainty(found.seconds) < window._uncertainty(found.seconds[: machine.passes[0]])
    asked = Machine(drifting())
    run(asked, monkeypatch, 0.01, window_s=6)
    assert asked.passes == [660], "a user's own length is kept"


def test_noise_of_single_steps_does_not_make_the_window_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other step takes a fifth longer: the mean of hundreds is known all the same."""
    machine = Machine(itertools.cycle([0.009, 0.011]))
    run(machine, monkeypatch, 0.01)
    assert len(machine.passes) == 1


@pytest.mark.parametrize("kind", ["none", ESTIMATE])
def test_without_a_meter_the_window_is_five_seconds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(forever(0.01), kind=kind)
    run(machine, monkeypatch, 0.01)
    assert machine.passes == [550]


def test_the_spec_may_ask_for_a_longer_window(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(forever(0.01))
    run(machine, monkeypatch, 0.01, window_s=20)
    assert machine.passes == [2200]


def test_warm_up_goes_on_for_a_second_and_its_last_steps_are_the_step_time(monkeypatch: pytest.MonkeyPatch) -> None:
    first = iter([3.0, 0.5])

    def steps() -> Iterator[float]:
        yield from first
        yield from forever(0.02)

    machine = Machine(steps())
    monkeypatch.setattr(window, "_steps", machine.steps)
    session: Any = SimpleNamespace(spec=RunSpec(workload="autoenc", kind="energy", warmup=2))
    warm = window._warm_up(session)
    assert warm.seconds[:2] == [3.0, 0.5]
    assert window._recent(warm) == 0.02, "not that of the first steps, which compile and allocate"
    quick = Machine(forever(0.001))
    monkeypatch.setattr(window, "_steps", quick.steps)
    warm = window._warm_up(session)
    assert 1.0 <= warm.ended - warm.begun <= 1.3
    assert warm.ended - warm.begun == pytest.approx(0.001 * len(warm.seconds))


@pytest.mark.parametrize(("idle_s", "metering", "slept"), [(None, True, [5.0]), (2.0, True, [2.0])])
def test_the_baseline_is_measured_where_there_is_a_meter(
    idle_s: float | None, metering: bool, slept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep: list[float] = []
    monkeypatch.setattr("fathom.measure.window.time.sleep", asleep.append)
    sampler: Any = SimpleNamespace(metering=metering)
    ((name, begin, end),) = window._idle(RunSpec(workload="autoenc", kind="energy", idle_s=idle_s), sampler)
    assert (name, asleep) == ("idle", slept)
    assert end >= begin


@pytest.mark.parametrize(("idle_s", "metering"), [(0, True), (None, False)])
def test_there_is_no_baseline_without_a_meter_or_where_none_is_wanted(
    idle_s: float | None, metering: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fathom.measure.window.time.sleep", lambda seconds: pytest.fail("slept"))
    sampler: Any = SimpleNamespace(metering=metering)
    assert window._idle(RunSpec(workload="autoenc", kind="energy", idle_s=idle_s), sampler) == []


@pytest.mark.gpu
def test_a_gpu_that_is_looked_up_has_no_context_yet() -> None:
    """The baseline is metered after that: a context would raise the clocks and the power of an idle card."""
    program = """
import os, pynvml, torch
from fathom.machine.devices import resolve
from fathom.machine.meter import Target
target = Target.of(resolve("cuda:0"))
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByUUID(target.gpu_uuids[0])
used = lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used
before = used()
torch.zeros(1, device="cuda:0")
print(used() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 100 * 2**20, "the context came with the first tensor, and takes hundreds of MB"


def test_what_is_done_between_and_behind_the_steps_is_not_in_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take a second each; reading the losses takes five."""
    clock = SimpleNamespace(now=0.0)

    def step() -> None:
        clock.now += 1.0

    def ran(steps: int, on_step: Any) -> list[float]:
        for _ in range(steps):
            on_step(SimpleNamespace(run=step))
        clock.now += 5.0
        return [0.5] * steps

    monkeypatch.setattr(window, "time", SimpleNamespace(monotonic=lambda: clock.now))
    session: Any = SimpleNamespace(device=torch.device("cpu"), run=ran)
    done = window._steps(session, 3)
    clock.now += 2.0
    window._extend(done, window._steps(session, 2))
    assert done.stretches == [(0.0, 3.0), (10.0, 12.0)]
    assert (done.length_s, len(done.seconds), len(done.results)) == (5.0, 5, 5)
