"""A simulated GPU: P ~ V^2 f, a power limit and locked clocks that act with a lag, temperature, an energy counter.

All of it runs on a clock that the test moves, so that a minute on the card takes milliseconds. The answers are known:
under a clock f the power of a workload is static + activity x dynamic x (V/Vmax)^2 x (f/fmax), its step takes
compute / f + the rest, and a power limit is the highest clock whose power is within it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache

TICK_S = 0.01
COUNTER_S = 0.1  # how often the energy counter is renewed
HOT_C, COOL_C = 87.0, 85.0  # clocks are lowered above the first, and raised again below the second
RESPONSE_S = 0.03  # in which the clock covers most of the way to where the limits put it


class SimulatedClock:
    """As much of the module time as is asked for; sleeping moves it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float, /) -> None:
        self.now_s += seconds


@dataclass(frozen=True)
class Model:
    """What a card is made of."""

    low_mhz: float = 345.0
    high_mhz: float = 1980.0
    step_mhz: float = 15.0
    static_w: float = 90.0
    dynamic_w: float = 600.0  # at the highest clock and full activity
    voltage_floor: float = 0.0  # of the highest voltage: below this clock share, a lower clock lowers no voltage
    leak_per_c: float = 0.0  # by how much static power grows per degree above the ambient
    ambient_c: float = 30.0
    c_per_w: float = 0.06
    warms_in_s: float = 20.0

    @property
    def clocks(self) -> list[float]:
        count = round((self.high_mhz - self.low_mhz) / self.step_mhz)
        return [self.low_mhz + self.step_mhz * number for number in range(count + 1)]

    def power_w(self, clock_mhz: float, activity: float, temperature_c: float | None = None) -> float:
        share = clock_mhz / self.high_mhz
        warmer = 0.0 if temperature_c is None else temperature_c - self.ambient_c
        dynamic = activity * self.dynamic_w * max(self.voltage_floor, share) ** 2 * share
        return self.static_w * (1 + self.leak_per_c * warmer) + dynamic


@dataclass(frozen=True)
class Work:
    """A step: seconds of compute at 1 GHz, and seconds of waiting for memory and for launches, whatever the clock."""

    compute_s: float = 0.0
    memory_s: float = 0.0
    launch_s: float = 0.0
    activities: tuple[float, float, float] = (1.0, 0.5, 0.05)  # of these three: what switches meanwhile

    def parts_s(self, clock_mhz: float) -> tuple[float, float, float]:
        return self.compute_s * 1000 / clock_mhz, self.memory_s, self.launch_s

    def step_s(self, clock_mhz: float) -> float:
        return sum(self.parts_s(clock_mhz))

    def activity(self, clock_mhz: float) -> float:
        """Its mean over a step."""
        parts = zip(self.parts_s(clock_mhz), self.activities, strict=True)
        return sum(part * activity for part, activity in parts) / self.step_s(clock_mhz)

    def step_j(self, model: Model, clock_mhz: float) -> float:
        return self.step_s(clock_mhz) * model.power_w(clock_mhz, self.activity(clock_mhz))


@cache
def capped_clock(model: Model, work: Work, limit_w: float, highest_mhz: float, temperature_c: float) -> float:
    """The highest clock whose power is within the limit; the lowest there is where none is."""
    for clock in reversed(model.clocks):
        fits = model.power_w(clock, work.activity(clock), temperature_c) <= limit_w
        if clock <= highest_mhz and fits:
            return clock
    return model.low_mhz


@dataclass
class State:
    """What changes: settings that a driver keeps after its clients have died, and physics."""

    limit_w: float = 700.0
    locked_mhz: float | None = None
    late: list[tuple[float, str, float | None]] = field(default_factory=list)  # when, which setting, what to
    lag_s: float = 0.0  # of settings
    rounds_w: float = 0.0  # to multiples of this
    faults: dict[str, int] = field(default_factory=dict)  # NVML function -> the error that it gives
    calls: int = 0
    lost_after: int | None = None  # calls
    sets: list[tuple[str, float | None]] = field(default_factory=list)  # what clients have asked for
    at_s: float = 0.0
    clock_mhz: float = 345.0
    thermal_mhz: float = 1980.0
    temperature_c: float = 30.0
    joules: float = 0.0
    shown_j: float = 0.0
    shown_at_s: float = 0.0
    steps: float = 0.0


class Card:
    """The physics, moved on to a moment."""

    limits_w = (200.0, 700.0)

    def __init__(self, model: Model | None = None, state: State | None = None, noise_w: float = 4.0) -> None:
        self.model, self.state, self.noise_w = model or Model(), state or State(), noise_w
        self.work: Work | None = None
        self._chance = random.Random(0)

    @property
    def power_w(self) -> float:
        clock = self.state.clock_mhz
        activity = self.work.activity(clock) if self.work else 0.0
        return self.model.power_w(clock, activity, self.state.temperature_c)

    @property
    def instant_w(self) -> float:
        return max(0.0, self.power_w + self._chance.gauss(0.0, self.noise_w))

    def set(self, what: str, value: float | None) -> None:
        """ "limit_w" or "locked_mhz", at once or late."""
        if what == "limit_w" and value is not None and self.state.rounds_w:
            value = self.state.rounds_w * round(value / self.state.rounds_w)
        self.state.sets.append((what, value))
        self.state.late.append((self.state.at_s + self.state.lag_s, what, value))
        self._take_effect()

    def advance(self, now_s: float) -> None:
        state = self.state
        if not state.at_s:
            state.at_s = state.shown_at_s = now_s
        while state.at_s < now_s - 1e-9:
            self._tick(min(TICK_S, now_s - state.at_s))
        self._take_effect()

    def _tick(self, tick_s: float) -> None:
        state, model = self.state, self.model
        self._take_effect()
        self._heat(tick_s)
        target = self._target()
        state.clock_mhz += (target - state.clock_mhz) * min(1.0, tick_s / RESPONSE_S)
        power = self.power_w
        if self.work:
            state.steps += tick_s / self.work.step_s(state.clock_mhz)
        state.joules += power * tick_s
        rest = model.ambient_c + model.c_per_w * power
        state.temperature_c += (rest - state.temperature_c) * tick_s / model.warms_in_s
        state.at_s += tick_s
        if state.at_s - state.shown_at_s >= COUNTER_S - 1e-9:
            state.shown_at_s, state.shown_j = state.at_s, state.joules

    def _target(self) -> float:
        if self.work is None:
            return self.model.low_mhz
        highest = min(self.state.locked_mhz or self.model.high_mhz, self.state.thermal_mhz)
        temperature = round(self.state.temperature_c) if self.model.leak_per_c else self.model.ambient_c
        return capped_clock(self.model, self.work, self.state.limit_w, highest, temperature)

    def _heat(self, tick_s: float) -> None:
        moved = 1000 * tick_s if self.state.temperature_c < COOL_C else -1000 * tick_s
        if not COOL_C <= self.state.temperature_c <= HOT_C:
            wanted = self.state.thermal_mhz + moved
            self.state.thermal_mhz = min(self.model.high_mhz, max(self.model.low_mhz, wanted))

    def _take_effect(self) -> None:
        due = [entry for entry in self.state.late if entry[0] <= self.state.at_s + 1e-9]
        for entry in due:
            setattr(self.state, entry[1], entry[2])
            self.state.late.remove(entry)
