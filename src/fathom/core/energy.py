"""The energy of a run: power over time by meter, and joules over the measured steps."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

from fathom.core.thinning import extremes

COUNTER, POWER, ESTIMATE = "counter", "power", "estimate"  # how a meter knows: it counts, it shows watts, or it guesses
BOARD = "board"  # a scope that holds all others: reported beside their sum, not in it
IDLE, SETUP, WARM_UP, STEPS = "idle", "setup", "warm-up", "steps"  # the stretches of a run

LEAST_S = 5.0  # of a window, for its energy to be valid
LEAST_UPDATES = 50  # of a counter in it, or readings of power
LARGEST_GAP = 0.05  # between a counter and integrated power, of the counter
LARGEST_UNCOVERED = 0.02  # of the window: parts without readings, filled in from the readings beside them
POINTS = 600  # of a trace in a record


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a meter shows at one moment; None where it does not show it."""

    joules: float | None = None  # since some moment in the past
    watts: float | None = None
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    throttles: int | None = None  # bits of fingerprint.THROTTLES


@dataclass(frozen=True, kw_only=True)
class PowerTrace:
    """The readings of one meter over a run, column by column."""

    meter: str  # what is read, in words: "NVML"
    scope: str  # of what: "GPU 0", "CPU package 1", "DRAM 0", "board"
    kind: str  # counter, power or estimate
    seconds: list[float]  # since the first sample, or the run's first section where that began earlier
    joules: list[float | None] = field(default_factory=list)  # since the first reading
    watts: list[float | None] = field(default_factory=list)
    clock_mhz: list[float | None] = field(default_factory=list)
    memory_clock_mhz: list[float | None] = field(default_factory=list)
    temperature_c: list[float | None] = field(default_factory=list)
    throttles: list[int | None] = field(default_factory=list)

    @property
    def power(self) -> list[tuple[float, float]]:
        """Seconds and watts: as shown, or for a counter alone the rise from one of its updates to the next."""
        shown = [(at, watts) for at, watts in zip(self.seconds, self.watts, strict=False) if watts is not None]
        if shown:
            return shown
        read = [(at, joules) for at, joules in zip(self.seconds, self.joules, strict=False) if joules is not None]
        changes = read[:1] + [after for before, after in pairwise(read) if after[1] != before[1]]
        return [(after[0], (after[1] - before[1]) / (after[0] - before[0])) for before, after in pairwise(changes)]

    @property
    def clock(self) -> list[tuple[float, float]]:
        """Seconds and MHz."""
        return [(at, mhz) for at, mhz in zip(self.seconds, self.clock_mhz, strict=False) if mhz is not None]

    def thinned(self, most: int = POINTS) -> PowerTrace:
        """At most so many of its readings, unchanged: the first, the last, and least and most watts between."""
        if len(self.seconds) <= most:
            return self
        chosen = extremes(self.watts or [None] * len(self.seconds), most)
        names = [each.name for each in fields(self) if isinstance(getattr(self, each.name), list)]
        thin: dict[str, Any] = {
            name: [values[at] for at in chosen] for name in names if (values := getattr(self, name))
        }
        return replace(self, **thin)


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A named part of the run, on the traces' clock."""

    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class MeterEnergy:
    """What one meter counted over the measured steps."""

    meter: str
    scope: str
    kind: str
    joules: float
    mean_w: float
    peak_w: float | None = None
    idle_w: float | None = None  # before the run, measured apart and never subtracted
    integrated_j: float | None = None  # of the watts, where a counter has both
    updates: int = 0  # of the counter, or readings of power, in the window
    uncovered_s: float = 0.0  # of the window: without readings

    @property
    def gap(self) -> float | None:
        """How far integrated power is from the counter, of the counter."""
        return None if self.integrated_j is None or not self.joules else self.integrated_j / self.joules - 1


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Energy over the measured steps of a run."""

    window_s: float
    steps: int
    parts: list[MeterEnergy]
    period_s: float  # of the sampler
    sampler_cpu_s: float | None = None  # what sampling itself took of a core, over the window
    stretches: list[Stretch] = field(default_factory=list)
    traces: list[PowerTrace] = field(default_factory=list)  # thinned to POINTS, but for those of `fathom energy`
    problems: list[str] = field(default_factory=list)  # meters that were lost, samples that could not be written

    @property
    def counted(self) -> list[MeterEnergy]:
        """The parts that add up to the total. A board's sensor, which holds the others, counts only where it is alone.

        Of several such sensors, it is the one that shows most: it holds most of the board.
        """
        devices = [part for part in self.parts if part.scope != BOARD]
        return devices or sorted(self.parts, key=lambda part: part.joules)[-1:]

    @property
    def joules(self) -> float:
        """Over all meters that count."""
        return sum(part.joules for part in self.counted)

    @property
    def mean_w(self) -> float:
        return self.joules / self.window_s

    @property
    def per_step_j(self) -> float:
        return self.joules / self.steps

    @property
    def delay_product(self) -> float:
        """EDP = energy to solution times time, in joule seconds."""
        return self.joules * self.window_s

    @property
    def estimated(self) -> bool:
        return any(part.kind == ESTIMATE for part in self.counted)

    @property
    def invalid(self) -> list[str]:
        """Why the energy is not to be trusted, the number first; none for a valid window."""
        found = list(self.problems)
        if self.window_s < LEAST_S:
            found.append(f"{self.window_s:.3g} s measured, {LEAST_S:g} s are needed")
        if self.joules <= 0:
            found.append(f"{self.joules:g} J metered")
        for part in self.counted:
            if part.kind != ESTIMATE and part.updates < LEAST_UPDATES:
                what = "updates of the counter" if part.kind == COUNTER else "readings of the power"
                found.append(f"{part.updates} {what} of {part.scope}, {LEAST_UPDATES} are needed")
            if part.uncovered_s > LARGEST_UNCOVERED * self.window_s:
                found.append(f"{part.uncovered_s:.2g} of {self.window_s:.3g} s without readings of {part.scope}")
            if part.gap is not None and abs(part.gap) > LARGEST_GAP:
                found.append(f"{100 * part.gap:+.2g} % between integrated power and the counter of {part.scope}")
        return found
