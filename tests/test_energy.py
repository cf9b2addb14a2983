"""From readings to joules, on traces whose energy is known exactly; and when there is no number, or an invalid one."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
from metering import every, renewed, samples

from fathom.core.energy import BOARD, COUNTER, ESTIMATE, POWER, Energy, MeterEnergy, PowerTrace
from fathom.core.record import Record
from fathom.machine.sampler import Samples
from fathom.measure.energy import energy_of, missing

STEPS = ("steps", 2.0, 8.0)


def measured(seen: Samples, *moments: tuple[str, float, float], steps: int = 100) -> Energy:
    found = energy_of(seen, moments or (STEPS,), steps)
    assert found is not None, missing(seen, moments or (STEPS,))
    return found


def test_constant_power_by_a_counter_is_exact() -> None:
    found = measured(samples(every(0.05, 10), joules=lambda at: 300 * at, watts=lambda at: 300.0))
    part = found.parts[0]
    assert part.joules == pytest.approx(1800)
    assert part.mean_w == pytest.approx(300)
    assert part.integrated_j == pytest.approx(1800)
    assert part.gap == pytest.approx(0)
    assert part.updates == 121
    assert part.uncovered_s == 0
    assert found.per_step_j == pytest.approx(18)
    assert found.delay_product == pytest.approx(1800 * 6)
    assert found.sampler_cpu_s == pytest.approx(0.006)
    assert found.invalid == []


@pytest.mark.parametrize("late", [0.0, 0.013, 0.049])
def test_what_comes_after_the_steps_is_not_mixed_in(late: float) -> None:
    """Power falls from 700 W to 100 W where the steps end, wherever the readings lie around that moment."""
    counter = renewed(lambda at: 700 * min(at, 8.0) + 100 * max(0.0, at - 8.0), every(0.1, 10, 0.07))
    moments = every(0.05, 10, late)
    found = measured(samples(moments, joules=counter, watts=lambda at: 700.0 if at <= 8.0 else 100.0))
    assert found.parts[0].joules == pytest.approx(4200, rel=0.01)
    assert found.parts[0].integrated_j == pytest.approx(4200)
    assert found.invalid == []


def test_ramp_is_integrated_to_the_square_of_the_period() -> None:
    """P = 50 t: 25 (8^2 - 2^2) = 1500 J. The counter's line through its updates is as near."""
    moments = every(0.05, 10, 0.01)
    found = measured(samples(moments, joules=lambda at: 25 * at * at, watts=lambda at: 50 * at))
    most = 2 * 50 * 0.05 * 0.05  # at both ends the slope of power, times the period, for the period
    assert found.parts[0].joules == pytest.approx(1500, abs=7 * most)
    assert found.parts[0].integrated_j == pytest.approx(1500, abs=most)
    assert found.parts[0].peak_w == pytest.approx(50 * 7.96)


@pytest.mark.parametrize("seed", range(20))
def test_counter_that_is_renewed_every_100_ms_with_jitter(seed: int) -> None:
    """An update is seen up to a period late, at either end: 0.05 s of 6 s."""
    chance = random.Random(seed)
    updates = list(accumulate(0.1 + chance.uniform(-0.02, 0.02) for _ in range(120)))
    moments = [at + chance.uniform(0, 0.004) for at in every(0.05, 10)]
    found = measured(samples(moments, joules=renewed(lambda at: 400 * at, updates), watts=lambda at: 400.0))
    assert found.parts[0].joules == pytest.approx(2400, rel=0.06 / 6)
    assert 55 <= found.parts[0].updates <= 65
    assert found.invalid == []


def test_too_few_updates_are_invalid() -> None:
    found = measured(
        samples(every(0.05, 10), joules=renewed(lambda at: 400 * at, every(0.5, 10)), watts=lambda at: 400)
    )
    assert found.parts[0].updates == 13
    assert found.invalid == ["13 updates of the counter of GPU 0, 50 are needed"]
    slow = measured(samples(every(0.5, 10), watts=lambda at: 80.0, kind=POWER))
    assert slow.joules == pytest.approx(480)
    assert slow.invalid == ["13 readings of the power of GPU 0, 50 are needed"]


def test_a_window_that_is_too_short_is_invalid() -> None:
    found = measured(samples(every(0.01, 10), joules=lambda at: 400 * at), ("steps", 2.0, 6.9))
    assert found.joules == pytest.approx(400 * 4.9)
    assert found.invalid == ["4.9 s measured, 5 s are needed"]


@pytest.mark.parametrize(("factor", "valid"), [(1.049, True), (0.951, True), (1.06, False), (0.94, False)])
def test_counter_and_power_that_disagree_are_invalid(factor: float, valid: bool) -> None:
    found = measured(samples(every(0.05, 10), joules=lambda at: 100 * at, watts=lambda at: 100 * factor))
    assert found.joules == pytest.approx(600), "the counter comes first"
    assert found.parts[0].gap == pytest.approx(factor - 1)
    reason = f"{100 * (factor - 1):+.2g} % between integrated power and the counter of GPU 0"
    assert found.invalid == ([] if valid else [reason])


def test_a_pause_of_sampling_costs_a_counter_nothing_and_power_its_validity() -> None:
    """The machine was busy from 4 to 4.5 s; power doubled then, and only the counter knows."""
    moments = [at for at in every(0.05, 10) if not 4.0 < at < 4.5]
    counted = measured(samples(moments, joules=lambda at: 100 * at + 100 * min(max(at - 4, 0), 0.5)))
    assert counted.joules == pytest.approx(650)
    assert counted.invalid == []
    shown = measured(samples(moments, watts=lambda at: 100.0, kind=POWER))
    assert shown.parts[0].uncovered_s == pytest.approx(0.5)
    assert shown.invalid == ["0.5 of 6 s without readings of GPU 0"]
    both = measured(samples(moments, joules=lambda at: 100 * at, watts=lambda at: 100.0))
    assert both.parts[0].integrated_j is None, "nothing to compare with"


@pytest.mark.parametrize(("begin", "end", "uncovered"), [(7.81, 9.0, 0.2), (1.0, 2.19, 0.2), (7.0, 9.0, None)])
def test_a_pause_across_an_end_of_the_window_is_not_covered(begin: float, end: float, uncovered: float | None) -> None:
    """There power changes, and no line through the counter knows how."""
    moments = [at for at in every(0.05, 10) if not begin < at < end]

    def joules(at: float) -> float:
        return 100 * at + 200 * min(max(at - 2.0, 0.0), 6.0)

    seen = samples(moments, joules=joules)
    if uncovered is None:
        assert energy_of(seen, (STEPS,), 100) is None, "a sixth of the window is too much"
        return
    found = measured(seen)
    assert found.parts[0].uncovered_s == pytest.approx(uncovered)
    assert found.invalid == ["0.2 of 6 s without readings of GPU 0"]


def test_an_idle_baseline_with_a_pause_is_none() -> None:
    moments = [at for at in every(0.05, 10) if not 0.2 < at < 2.2]
    seen = samples(moments, joules=lambda at: 100 * at + 200 * max(at - 2.0, 0.0))
    assert measured(seen, ("idle", 0.0, 2.0), ("steps", 2.2, 8.2)).parts[0].idle_w is None


def test_sampling_that_begins_late_says_how_late() -> None:
    found = measured(samples(every(0.05, 10, 2.4), joules=lambda at: 100 * at))
    assert found.parts[0].uncovered_s == pytest.approx(0.45)  # the first reading is no update
    assert found.joules == pytest.approx(600), "filled in with the power that follows"
    assert found.invalid == ["0.45 of 6 s without readings of GPU 0"]


@pytest.mark.parametrize("kind", [COUNTER, POWER])
def test_a_card_that_is_lost_in_the_middle_has_no_number(kind: str) -> None:
    def joules(at: float) -> float | None:
        return 100 * at if kind == COUNTER and at < 6 else None

    def watts(at: float) -> float | None:
        return 100.0 if at < 6 else None

    lost = samples(every(0.05, 10), joules=joules, watts=watts, kind=kind)
    assert energy_of(lost, [STEPS], 100) is None
    assert missing(lost, [STEPS]) == [
        "3.95 of 6 s covered by readings of GPU 0 (a meter): its energy is not known",
    ]


def test_where_one_of_two_meters_is_lost_the_total_is_invalid() -> None:
    both = samples(every(0.05, 10), joules=lambda at: 100 * at)
    both.head.meters.append(("RAPL", "CPU package 0", COUNTER))
    for line in both.samples:
        line.readings.append([50 * line.at, *[None] * 5] if line.at < 3 else [])
    found = measured(both)
    assert [part.scope for part in found.parts] == ["GPU 0"]
    assert found.invalid == ["0.95 of 6 s covered by readings of CPU package 0 (RAPL): its energy is not known"]


def test_a_counter_that_was_set_back_gives_way_to_power() -> None:
    def joules(at: float) -> float:
        return 100 * at if at < 5 else 100 * (at - 5)

    found = measured(samples(every(0.05, 10), joules=joules, watts=lambda at: 90.0))
    assert found.joules == pytest.approx(540)
    assert found.parts[0].kind == POWER
    alone = samples(every(0.05, 10), joules=joules)
    assert energy_of(alone, [STEPS], 1) is None


def test_gaps_between_chunks_of_steps_are_no_steps() -> None:
    """500 W while steps run, 100 W between: three chunks, 1.5 s and 2 s and 3 s long."""
    chunks = [(1.0, 2.5), (4.0, 6.0), (7.0, 10.0)]

    def power(at: float) -> float:
        return 500.0 if any(begin <= at <= end for begin, end in chunks) else 100.0

    def counter(at: float) -> float:
        return 100 * at + sum(400 * max(0.0, min(at, end) - begin) for begin, end in chunks)

    seen = samples(every(0.02, 12), joules=counter, watts=power)
    found = measured(seen, ("setup", 0.0, 0.5), *(("steps", begin, end) for begin, end in chunks))
    assert found.window_s == pytest.approx(6.5)
    assert found.joules == pytest.approx(500 * 6.5)
    assert found.parts[0].integrated_j == pytest.approx(500 * 6.5)
    assert found.invalid == []


def test_a_chunk_that_is_shorter_than_an_update_is_interpolated() -> None:
    counter = renewed(lambda at: 100 * at, every(0.1, 10))
    found = measured(samples(every(0.05, 10), joules=counter), ("steps", 1.01, 1.03), ("steps", 2.0, 8.0))
    assert found.joules == pytest.approx(602, rel=0.01)


def test_idle_power_is_reported_apart_and_never_subtracted() -> None:
    def counter(at: float) -> float:
        return 60 * min(at, 5.0) + 300 * max(0.0, at - 5.0)

    found = measured(samples(every(0.05, 12), joules=counter), ("idle", 0.0, 5.0), ("steps", 5.5, 11.5))
    assert found.parts[0].idle_w == pytest.approx(60, rel=0.01)
    assert found.joules == pytest.approx(1800)


def part(scope: str, joules: float, kind: str = COUNTER) -> MeterEnergy:
    return MeterEnergy(meter="m", scope=scope, kind=kind, joules=joules, mean_w=joules / 6, updates=60)


def test_a_board_holds_the_others_and_counts_only_alone() -> None:
    def total(*parts: MeterEnergy) -> float:
        return Energy(window_s=6, steps=1, parts=list(parts), period_s=0.05).joules

    assert total(part("GPU 0", 600), part("CPU package 0", 300), part(BOARD, 1200)) == 900
    assert total(part(BOARD, 1200), part(BOARD, 400)) == 1200, "the one that holds most of the board"


def test_what_a_board_lacks_does_not_make_the_others_invalid() -> None:
    slow = MeterEnergy(meter="IPMI", scope=BOARD, kind=POWER, joules=1200, mean_w=200, updates=6)
    assert Energy(window_s=6, steps=1, parts=[part("GPU 0", 600), slow], period_s=0.05).invalid == []
    assert Energy(window_s=6, steps=1, parts=[slow], period_s=0.05).invalid == [
        "6 readings of the power of board, 50 are needed"
    ]


def test_an_estimate_says_so() -> None:
    found = measured(samples(every(0.05, 10), watts=lambda at: 60.0, kind=ESTIMATE, scope="CPU"))
    assert found.estimated
    assert found.joules == pytest.approx(360)


def test_a_record_keeps_600_points_with_the_extremes_and_the_ends() -> None:
    def power(at: float) -> float:
        return {1.0: 999.0, 7.77: 1.0}.get(round(at, 3), 100.0)

    seen = samples(every(0.01, 100), joules=lambda at: 100 * at, watts=power)
    found = measured(seen, ("steps", 2.0, 98.0))
    trace = found.traces[0]
    assert len(trace.seconds) == len(trace.watts) == len(trace.joules) <= 600
    assert trace.clock_mhz == []
    assert (trace.seconds[0], trace.seconds[-1]) == (0.0, 100.0)
    assert {max(map(float, filter(None, trace.watts))), min(map(float, filter(None, trace.watts)))} == {999.0, 1.0}
    assert all(joules == pytest.approx(100 * at) for at, joules in zip(trace.seconds, trace.joules, strict=True))
    full = energy_of(seen, [("steps", 2.0, 98.0)], 1, most_points=None)
    assert full is not None
    assert len(full.traces[0].seconds) == 10001
    assert full.joules == found.joules, "counted before it was thinned"


def test_thinning_leaves_a_counter_alone_evenly_spread() -> None:
    joules: list[float | None] = [*every(1, 10000)]
    seconds = every(0.1, 1000)
    trace = PowerTrace(meter="RAPL", scope="CPU package 0", kind=COUNTER, seconds=seconds, joules=joules)
    thin = trace.thinned(100)
    assert 50 <= len(thin.seconds) <= 100
    apart = [after - before for before, after in zip(thin.seconds, thin.seconds[1:], strict=False)]
    assert max(apart) < 1000 / 45
    assert trace.thinned(10001) is trace


def test_energy_survives_the_way_through_a_record_file(on_the_laptop: None) -> None:
    from sample_records import LAPTOP, MACHINES

    from fathom.core.spec import RunSpec

    found = measured(samples(every(0.05, 10), joules=lambda at: 100 * at, watts=lambda at: 100.0))
    record = Record(
        spec=RunSpec(workload="autoenc"),
        machine=MACHINES[LAPTOP],
        device="cpu",
        outcome="ok",
        energy=found,
        step_s=[0.1],
    )
    assert Record.from_json(record.to_json(), "here").energy == found
