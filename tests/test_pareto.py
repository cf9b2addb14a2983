"""Pareto front and recommendations: exact on points, careful with noise, and right on a card whose optimum is known."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest
import simulated_nvml as nvml
from scipy.optimize import brentq
from simulated_card import Card, Model, Work

from fathom.analysis.pareto import (
    Choice,
    beats,
    least_delay_product,
    least_energy,
    least_energy_near_full_speed,
    pareto_front,
)
from fathom.experiments.capping import sweep
from fathom.experiments.journal import Journal
from fathom.machine.governor import find_governors
from fathom.machine.meter import Target
from fathom.machine.meters.nvml import Nvml

TARGET = Target(gpu_uuids=(nvml.UUID,))


def point(setting: str, seconds: float, joules: float) -> Choice:
    """Known exactly: six runs that are the same."""
    return Choice(setting, (seconds,) * 6, (joules,) * 6)


def test_one_run_of_each_decides_only_what_trials_may_not_differ_by() -> None:
    capped, free = Choice("300 W", (1.2,), (9.97,)), Choice("no cap", (1.0,), (10.0,))
    assert least_energy([capped, free], free).choice is free
    assert least_energy([Choice("300 W", (1.2,), (8.0,)), free], free).choice.setting == "300 W"


def noisy(setting: str, seconds: float, joules: float, chance: random.Random, share: float = 0.001) -> Choice:
    times, energies = ([value * chance.gauss(1.0, share) for _ in range(5)] for value in (seconds, joules))
    return Choice(setting, tuple(times), tuple(energies))


def names(choices: list[Choice]) -> list[str]:
    return [choice.setting for choice in choices]


# --- points


def test_the_front_of_points_is_exact() -> None:
    choices = [point("e", 5, 1), point("d", 4, 3), point("c", 3, 3), point("b", 2, 4), point("a", 1, 9)]
    assert names(pareto_front(choices)) == ["a", "b", "c", "e"]


def test_ties_stay_together() -> None:
    twins = [point("a", 1, 2), point("b", 1, 2), point("slower", 1.5, 2), point("hungrier", 1, 3)]
    assert names(pareto_front(twins)) == ["a", "b"]
    assert pareto_front([]) == []


@pytest.mark.parametrize("seed", range(20))
def test_the_front_of_many_points_is_that_of_a_sweep_along_time(seed: int) -> None:
    chance = random.Random(seed)
    choices = [point(str(number), chance.randint(1, 12), chance.randint(1, 12)) for number in range(40)]
    expected, lowest = [], float("inf")
    for seconds, joules in sorted({(choice.seconds[0], choice.joules[0]) for choice in choices}):
        if joules < lowest:
            expected.append((seconds, joules))
            lowest = joules
    assert sorted({(choice.seconds[0], choice.joules[0]) for choice in pareto_front(choices)}) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_front_is_never_empty_and_holds_the_front_of_the_medians(seed: int) -> None:
    chance = random.Random(seed)
    choices = [
        noisy(str(number), chance.uniform(1, 2), chance.uniform(1, 2), chance, chance.choice([0.001, 0.05, 0.3]))
        for number in range(12)
    ]
    front = pareto_front(choices)
    medians = [point(choice.setting, choice.time.median, choice.energy.median) for choice in choices]
    assert set(names(pareto_front(medians))) <= set(names(front))
    assert all(any(beats(other, choice) for other in front) for choice in choices if choice not in front)


# --- noise


def test_what_runs_do_not_tell_apart_stays_on_the_front() -> None:
    full = Choice("full", (10.0, 10.1, 9.9), (700.0, 705.0, 695.0))
    near = Choice("near", (10.02, 10.12, 9.92), (701.0, 706.0, 696.0))  # worse in both, within the noise
    worse = Choice("worse", (10.05, 10.15, 9.95), (900.0, 905.0, 895.0))
    assert names(pareto_front([full, near, worse])) == ["full", "near"]


def test_of_equal_energies_the_fastest_is_recommended_and_the_others_are_named() -> None:
    full = Choice("700 W", (10.0, 10.1, 9.9), (702.0, 707.0, 697.0))
    cap = Choice("600 W", (12.0, 12.1, 11.9), (700.0, 705.0, 695.0))
    found = least_energy([full, cap], full)
    assert (found.choice, found.equals, found.energy_ratio, found.time_ratio) == (full, [cap], 1.0, 1.0)


def test_within_so_much_of_full_speed() -> None:
    full, slightly, far = point("700 W", 10, 7000), point("500 W", 10.4, 5600), point("300 W", 14, 4900)
    choices = [full, slightly, far]
    assert least_energy(choices, full).choice is far
    assert least_energy_near_full_speed(choices, full).choice is slightly
    assert least_energy_near_full_speed(choices, full, slower=0.01).choice is full
    assert least_energy_near_full_speed([far], full).choice is full, "nothing is fast enough"
    found = least_delay_product(choices, full)
    assert (found.choice, found.energy_ratio, found.time_ratio) == (slightly, 0.8, 1.04)


def test_a_product_is_of_each_run_by_itself() -> None:
    """A run that takes longer at less power has the same product: it is known better than time and energy are."""
    choice = Choice("x", (1.0, 2.0, 4.0), (4.0, 2.0, 1.0))
    assert (choice.delay_product.low, choice.delay_product.median, choice.delay_product.high) == (4.0, 4.0, 4.0)


@pytest.mark.parametrize(("seconds", "joules"), [((), ()), ((1.0,), (1.0, 2.0))])
def test_every_run_has_a_time_and_an_energy(seconds: tuple[float, ...], joules: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="x: "):
        Choice("x", seconds, joules)


# --- a card whose optimum is known

STEPS = 200  # of a simulated run: some half a minute


def measured(driver: nvml.Driver, work: Work, setting: str) -> Choice:
    """Seconds and joules of some steps, by the card's counter as the meter reads it."""
    (meter,) = Nvml.find(TARGET)
    driver.card.work = work
    driver.clock.sleep(2.0)  # warm-up: the clock has settled
    before, begun_s, done = meter.read().joules, driver.clock.now_s, driver.card.state.steps
    while driver.card.state.steps < done + STEPS:
        driver.clock.sleep(0.1)
        after = meter.read().joules
    assert before is not None
    assert after is not None
    driver.card.work = None
    steps = driver.card.state.steps - done
    per_step = [value / steps for value in (driver.clock.now_s - begun_s, after - before)]
    return point(setting, *per_step)


def swept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, governor: str, values: list[float], work: Work
) -> list[Choice]:
    driver = nvml.with_card(monkeypatch, Card(Model()))
    found = find_governors(governor, TARGET)
    journal = Journal(tmp_path / "capping.json")
    choices = sweep(found, values, lambda value: measured(driver, work, f"{value:g}"), journal, driver.clock)
    assert (driver.card.state.limit_w, driver.card.state.locked_mhz) == (700.0, None)
    return choices


def optimum_mhz(work: Work, power_of_time: int) -> float:
    """Where E x T^n is least: with V ~ f, the root of its derivative.

    T = W/f + M, E = W (S/f + D f^2) + M (S + a D f^3), with D the dynamic power at 1 MHz; n is 0 for ETS, 1 for EDP.
    """
    model = Model()
    wait_s = work.memory_s + work.launch_s
    active = (work.memory_s * work.activities[1] + work.launch_s * work.activities[2]) / wait_s if wait_s else 0.0
    static, dynamic, compute = model.static_w, model.dynamic_w / model.high_mhz**3, work.compute_s * 1000

    def slope(f: float) -> float:
        time, energy = compute / f + wait_s, work.step_j(model, f)
        time_slope = -compute / f**2
        energy_slope = compute * (-static / f**2 + 2 * dynamic * f) + 3 * wait_s * active * dynamic * f**2
        return energy_slope * time**power_of_time + power_of_time * energy * time ** (power_of_time - 1) * time_slope

    return float(brentq(slope, 1.0, 10 * model.high_mhz))


def test_the_optimum_of_pure_compute_is_the_textbooks() -> None:
    """E = W (S/f + D f^2): f^3 = S / 2D; E x T = W^2 (S/f^2 + D f): f^3 = 2S / D."""
    model, work = Model(), Work(compute_s=0.1)
    share = model.static_w / model.dynamic_w
    assert optimum_mhz(work, 0) == pytest.approx(model.high_mhz * (share / 2) ** (1 / 3))
    assert optimum_mhz(work, 1) == pytest.approx(model.high_mhz * (2 * share) ** (1 / 3))


def product(work: Work, power_of_time: int, clock_mhz: float) -> float:
    return work.step_j(Model(), clock_mhz) * work.step_s(clock_mhz) ** power_of_time


CLOCKS = [600.0, 750.0, 840.0, 900.0, 1050.0, 1200.0, 1320.0, 1500.0, 1740.0, 1980.0]
WORKS = [
    Work(compute_s=0.1),
    Work(compute_s=0.1, memory_s=0.05),
    Work(compute_s=0.05, launch_s=0.1),
]


@pytest.mark.parametrize("work", WORKS)
def test_a_sweep_of_clocks_finds_the_settings_that_the_model_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, work: Work
) -> None:
    choices = swept(monkeypatch, tmp_path, "nvml_locked_clocks", CLOCKS, work)
    for choice in choices:
        clock = float(choice.setting)
        assert choice.seconds[0] == pytest.approx(work.step_s(clock), rel=0.01)
        assert choice.joules[0] == pytest.approx(work.step_j(Model(), clock), rel=0.01)
    full = choices[-1]
    for found, power_of_time in ((least_energy(choices, full), 0), (least_delay_product(choices, full), 1)):
        exact = optimum_mhz(work, power_of_time)
        index = CLOCKS.index(float(found.choice.setting))
        around = [0.0, *CLOCKS, float("inf")][index : index + 3]
        assert around[0] <= exact <= around[2], "the optimum lies beside the clock that was found"
        assert index == CLOCKS.index(min(CLOCKS, key=partial(product, work, power_of_time)))
        assert found.energy_ratio < 1


def test_a_memory_bound_workload_saves_energy_under_a_power_cap_and_loses_no_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    choices = swept(monkeypatch, tmp_path, "nvml_power_limit", [200.0, 300.0, 700.0], Work(memory_s=0.1))
    found = least_energy_near_full_speed(choices, choices[-1], slower=0.01)
    assert found.choice.setting == "200"
    assert found.time_ratio == pytest.approx(1.0, rel=0.01)
    assert found.energy_ratio == pytest.approx(200 / 390, rel=0.03), "it draws 390 W at full clock"


def test_a_launch_bound_workload_is_below_every_cap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    choices = swept(monkeypatch, tmp_path, "nvml_power_limit", [200.0, 300.0, 700.0], Work(launch_s=0.1))
    assert [choice.seconds[0] for choice in choices] == pytest.approx([0.1] * 3, rel=0.01)
    assert [choice.joules[0] for choice in choices] == pytest.approx([12.0] * 3, rel=0.01), "120 W, whatever the cap"


def test_a_compute_bound_workload_trades_time_for_energy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = [200.0, 300.0, 400.0, 500.0, 600.0, 700.0]
    choices = swept(monkeypatch, tmp_path, "nvml_power_limit", values, Work(compute_s=0.1))
    assert names(pareto_front(choices)) == ["700", "600", "500", "400", "300", "200"]
    full = choices[-1]
    assert least_energy(choices, full).choice.setting == "200"
    assert least_delay_product(choices, full).choice.setting == "300"
    for choice in choices:
        assert choice.joules[0] / choice.seconds[0] <= float(choice.setting) * 1.01, "no cap is exceeded"
