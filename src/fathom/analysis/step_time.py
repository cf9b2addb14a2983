"""The step time of runs, as every table and command states it: the median after warm-up, with what its interval claims.

An unsteady run has no steady state: all of its timed steps count, and the medians before and after its last change of
level stand beside its median.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from fathom.analysis.statistics import Interval, median_interval, steady_state
from fathom.core.formatting import number, seconds
from fathom.core.record import Record

UNSTEADY = "unsteady"


class Timed(Protocol):
    """A record of any kind that has warm-up and timed steps."""

    @property
    def warmup_s(self) -> list[float]: ...

    @property
    def step_s(self) -> list[float]: ...


def settled_steps(run: Timed) -> list[float]:
    """The timed steps after warm-up; all of them where the series has no steady state."""
    steady = steady_state([*run.warmup_s, *run.step_s])
    if steady.label == UNSTEADY:
        return run.step_s
    return run.step_s[max(0, steady.start - len(run.warmup_s)) :]


def step_time(runs: Sequence[Timed]) -> Interval:
    """Of launches of one configuration, at least one of them, each with timed steps."""
    return median_interval([settled_steps(run) for run in runs])


def throughput(runs: Sequence[Record]) -> float | None:
    """Items per second of wall time: those of all timed steps after warm-up, over all the time of these steps.

    One over the median would leave out what stops a few steps for long, such as a CPU quota. None where the runs have
    no such steps, or do not say how many items a step has.
    """
    counted = [(run.items_per_step, settled_steps(run)) for run in runs]
    elapsed = sum(sum(steps) for _, steps in counted)
    items = sum((per_step or 0) * len(steps) for per_step, steps in counted)
    return items / elapsed if items and elapsed else None


def levels(run: Timed) -> tuple[float, float] | None:
    """Of an unsteady run, the medians before and after its last change of level, in seconds; None of any other."""
    return steady_state([*run.warmup_s, *run.step_s]).levels


def levels_in_words(run: Record) -> str:
    """unsteady: 51.0 then 38.9 ms; "" for a run that is not."""
    found = levels(run)
    return f"{UNSTEADY}: {' then '.join(number(1000 * level) for level in found)} ms" if found else ""


def bounds_in_words(step: Interval, runs: Sequence[Record]) -> str:
    """The interval in milliseconds with what it claims, and which of its runs are unsteady."""
    bounds = f"{number(1000 * step.low)} – {number(1000 * step.high)} {step.claim}"
    return "; ".join([no_interval(step) or bounds, *_unsteady(runs)])


def in_words(run: Record) -> str:
    """The headline of one run: 12.3 ms (95 % interval 12.1 ms to 12.6 ms within this process)."""
    step = step_time([run])
    bounds = f"95 % interval {seconds(step.low)} to {seconds(step.high)} {step.claim}"
    shown = [no_interval(step) or bounds, *_unsteady([run])]
    return f"{seconds(step.median)} ({'; '.join(shown)})"


def no_interval(step: Interval) -> str:
    """Why it has none that says anything; "" where it has one."""
    if not math.isfinite(step.high):
        return "one step: no interval"
    return "" if step.bounded else f"no interval: too scattered {step.claim}"


def _unsteady(runs: Sequence[Record]) -> list[str]:
    """Both levels of a single run; of several, how many are unsteady."""
    if len(runs) == 1:
        return list(filter(None, [levels_in_words(runs[0])]))
    many = sum(levels(run) is not None for run in runs)
    return [f"{many} of {len(runs)} {UNSTEADY}"] if many else []
