"""An engine beside eager in one process: step times in turns, what it took to start, and whether results agree."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

FIRST_STEPS = 8  # timed as one: compilation, export and capture happen in these
COMPARED_STEPS = 20  # whose losses are compared
FACTOR = 3.0  # an engine may differ by so many times what rounding changes
FLOORS = {"fp32": 1e-4, "tf32": 1e-3, "fp16": 1e-3, "bf16": 1e-2}  # ... and by this, relative, in any case
FAR = 10.0  # times the floor: where rounding has carried runs so far apart, it is chance at which step they differ most
TINY = 1e-30  # of a loss: a difference relative to less is no number
# of one value, relative: half of its last digit
ROUNDING = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-9}


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """One engine's part of a trial, from equal weights and on equal batches."""

    start_s: float  # of the first FIRST_STEPS steps together
    turn_step_s: list[float]  # seconds a step, the mean of each turn
    steps: int  # in all turns
    losses: list[float] = field(default_factory=list)  # of the first COMPARED_STEPS steps; none in inference
    peak_device_bytes: int | None = None  # beyond what was allocated before it
    energy_j: float | None = None  # by counters, of metered_steps; None where nothing counts
    metered_steps: int | None = None  # in a window after the turns; None in older records, which counted over the turns
    busy_s: float | None = None  # of a step: at least one kernel or copy running; None on a CPU
    turn_update_s: list[float] = field(default_factory=list)  # of an update alone, where a step also acts

    @property
    def step_s(self) -> float:
        return statistics.median(self.turn_step_s)

    @property
    def preparation_s(self) -> float:
        """What the first steps took beyond as many later ones."""
        return max(0.0, self.start_s - FIRST_STEPS * self.step_s)

    @property
    def busy(self) -> float | None:
        """The share of a step in which the GPU works."""
        return None if self.busy_s is None else self.busy_s / self.step_s

    @property
    def step_j(self) -> float | None:
        return None if self.energy_j is None else self.energy_j / (self.metered_steps or self.steps)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What the record's engine and eager did in one process.

    Rounding differs between engines, and training can amplify it without bound. Eager is therefore also run from
    weights that are rounded otherwise and, where the run's precision is a lower one, in fp32: an engine agrees where it
    stays, at every step, within some times of what that changes up to the next, or at any step once runs are far apart.
    In training the losses are compared, in inference the outputs of the first step and of the last of FIRST_STEPS.
    """

    eager: EngineRun
    engine: EngineRun
    rounded_losses: list[list[float]] = field(default_factory=list)  # of eager, rounded otherwise
    output_difference: float | None = None  # of inference, relative to the largest output; None in training
    mismatch: str | None = None  # of outputs that have no difference: others than eager's, or of another shape
    rounded_output_difference: float | None = None

    @property
    def speedups(self) -> list[float]:
        """Eager's step time over the engine's, turn by turn."""
        return _ratios(self.eager.turn_step_s, self.engine.turn_step_s)

    @property
    def speedup(self) -> float:
        return statistics.median(self.speedups)

    @property
    def update_speedups(self) -> list[float]:
        """The same of updates alone."""
        return _ratios(self.eager.turn_update_s, self.engine.turn_update_s)

    @property
    def pays_back_after(self) -> float | None:
        """Steps after which the time to start is regained; None where the engine's steps are no faster."""
        if self.speedup <= 1:
            return None
        gain_s = self.eager.step_s * (1 - 1 / self.speedup)
        return max(0.0, self.engine.preparation_s - self.eager.preparation_s) / gain_s

    def difference(self) -> float | None:
        """The largest, of all steps that are compared; None of outputs that cannot be."""
        if self.mismatch is not None:
            return None
        if self.output_difference is not None:
            return self.output_difference
        return max(_relative(self.engine.losses, self.eager.losses), default=0.0)

    def disagreement(self, precision: str) -> str | None:
        """Where the engine differs by more than it may; None where it agrees."""
        if self.mismatch is not None:
            return self.mismatch
        floor = FLOORS[precision]
        if self.output_difference is not None:
            allowed = max(floor, FACTOR * (self.rounded_output_difference or 0.0))
            return _disagreement("the outputs differ", self.output_difference, allowed)
        rounded = (_relative(losses, self.eager.losses) for losses in self.rounded_losses)
        changes = [max(0.0, *of_step) for of_step in zip(*rounded, strict=True)]
        for step, found in enumerate(_relative(self.engine.losses, self.eager.losses)):
            # two runs may be near each other at a step by chance: after the first, what rounding changes by the next,
            # and once it has carried runs far apart, by any
            caused = max(changes[: step + 1 + bool(step)], default=0.0)
            allowed = max(floor, FACTOR * (max(changes) if caused > FAR * floor else caused))
            if told := _disagreement(f"the loss of step {step} differs", found, allowed):
                return told
        return None


def _disagreement(what: str, found: float, allowed: float) -> str | None:
    return None if found <= allowed else f"{what} by {found:.2g}, {allowed:.2g} is allowed"


def _ratios(eager: list[float], engine: list[float]) -> list[float]:
    return [one / other for one, other in zip(eager, engine, strict=True)]


def _relative(found: list[float], expected: list[float]) -> list[float]:
    """The difference of each value, relative to the largest that is expected up to there: a loss may come near zero."""
    largest, differences = 0.0, []
    for one, other in zip(found, expected, strict=True):
        largest = max(largest, abs(other))
        differences.append(abs(one - other) / largest if largest > TINY else abs(one - other))
    return differences
