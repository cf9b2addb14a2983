"""The energy of a run: power over time by meter, and joules over the measured steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

COUNTER, POWER, ESTIMATE = "counter", "power", "estimate"  # how a meter knows: it counts, it shows watts, or it guesses
BOARD = "board"  # a scope that holds all others: reported beside their sum, not in it
IDLE, SETUP, WARM_UP, STEPS = "idle", "setup", "warm-up", "steps"  # the stretches of a run

LEAST_S = 5.0  # of a window, for its energy to be valid
LEAST_UPDATES = 50  # of a counter in it
LARGEST_GAP = 0.05  # between a counter and integrated power, of the counter


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
    seconds: list[float]  # since the run's first section began
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
    updates: int = 0  # of the counter, in the window

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
    traces: list[PowerTrace] = field(default_factory=list)

    @property
    def joules(self) -> float:
        """Over all meters; a board's sensor, which holds the others, counts only where it is alone."""
        devices = [part.joules for part in self.parts if part.scope != BOARD]
        return sum(devices or [part.joules for part in self.parts])

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
        return any(part.kind == ESTIMATE for part in self.parts)

    @property
    def invalid(self) -> list[str]:
        """Why the energy is not to be trusted, the number first; none for a valid window."""
        found = []
        if self.window_s < LEAST_S:
            found.append(f"{self.window_s:.3g} s measured, {LEAST_S:g} s are needed")
        for part in self.parts:
            if part.kind == COUNTER and part.updates < LEAST_UPDATES:
                found.append(f"{part.updates} updates of the counter of {part.scope}, {LEAST_UPDATES} are needed")
            if part.gap is not None and abs(part.gap) > LARGEST_GAP:
                found.append(f"{100 * part.gap:+.2g} % between integrated power and the counter of {part.scope}")
        return found
