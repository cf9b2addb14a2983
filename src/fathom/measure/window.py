"""A run for its energy: an idle baseline, setup, warm-up, and one window of steps that is long enough for its meters.

The number of steps is not given but follows from the measured step time. The sampler runs from before the baseline to
after the last step, and each part of the run has a name on its clock.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fathom.core.energy import IDLE, LEAST_S, LEAST_UPDATES, SETUP, STEPS, WARM_UP
from fathom.core.events import OnProgress, throttled
from fathom.core.record import Record, Sections
from fathom.core.spec import RunSpec
from fathom.engine.session import Session, Step
from fathom.machine.clock import StepClock, wait
from fathom.machine.devices import resolve, wake
from fathom.machine.disturbance import Watch
from fathom.machine.meter import Target
from fathom.machine.sampler import PERIOD_S, Sampler
from fathom.measure.energy import energy_of, least_updates, missing
from fathom.measure.loop import as_record

IDLE_S = 5.0  # of the baseline, where the spec does not say
MARGIN = 1.1  # of the window: steps may become a little faster, and its ends may fall between two updates
WARM_S = 1.0  # of steps after the first ones: the window is planned by their time
LEAST_STEPS = 5  # of a window, whatever a step takes
EXTENSIONS = 3  # of a window that came out too short, at most
LONGEST_S = 60.0  # of a window that waits for updates of a counter: one that is slower leaves it invalid
BATCHES = 10  # of following steps, whose means tell how well the step time of the window is known
STUDENT = 2.26  # 97.5 % quantile of Student's t with one degree of freedom less
KNOWN = 0.01  # half of the 95 % interval of the mean step time, of the mean: a third of what trials may differ by
LONGEST_UNSTEADY_S = 30.0  # of a window that waits for it: steps that a host delays may never come that close


Moment = tuple[str, float, float]  # a named part of the run, on the clock of time.monotonic()


@dataclass
class Pass:
    """Steps, and when they began and ended on the clock of time.monotonic(): once, or in several stretches."""

    stretches: list[tuple[float, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)  # losses, or the last output of inference

    @property
    def begun(self) -> float:
        return self.stretches[0][0]

    @property
    def ended(self) -> float:
        return self.stretches[-1][1]

    @property
    def length_s(self) -> float:
        """Without what was done between two stretches."""
        return math.fsum(end - begin for begin, end in self.stretches)


def measured(spec: RunSpec, progress: OnProgress, begun: float) -> Record:
    """The record of an energy run; its imports began at `begun`, on the clock of time.perf_counter()."""
    device = resolve(spec.device, spec.precision)
    period_s, import_s = spec.period_s or PERIOD_S, time.perf_counter() - begun
    with Sampler(Target.of(device, estimates=spec.estimates), period_s) as sampler:
        idle = _idle(spec, sampler)  # before the session: an accelerator with a context is not idle
        setup_begun = time.monotonic()
        with Session(spec) as session:
            wake(session.device)
            session.setup()
            set_up = time.monotonic()
            watch = Watch(session.device)
            warm = _warm_up(session)
            window = _window(session, sampler, _recent(warm), progress)
            watch.look()
            samples = sampler.stop()
            sections = Sections(import_s=import_s, setup_s=set_up - setup_begun, first_step_s=warm.seconds[0])
            results = [*warm.results, *window.results] if spec.phase == "train" else window.results
            record = as_record(session, sections, warm.seconds, window.seconds, results, [])
            watch.look()
    moments = [*idle, (SETUP, setup_begun, set_up), (WARM_UP, warm.begun, warm.ended)]
    moments += [(STEPS, begin, end) for begin, end in window.stretches]
    energy = energy_of(samples, moments, len(window.seconds), most_points=None) if samples else None
    notes = [f"energy not metered: {why}" for why in missing(samples, moments)] if samples and energy is None else []
    disturbance = watch.disturbance()
    if device.type == "cpu" and (spec.clock_cap_mhz or spec.power_cap_w):
        disturbance = replace(disturbance, cpu_slowdown=None)  # which is what the cap is for
    return replace(record, disturbance=disturbance, energy=energy, notes=[*record.notes, *notes])


def _idle(spec: RunSpec, sampler: Sampler) -> list[Moment]:
    """Nothing runs while it is metered; no baseline where nothing is."""
    seconds = IDLE_S if spec.idle_s is None else spec.idle_s
    if not sampler.metering or not seconds:
        return []
    begun = time.monotonic()
    time.sleep(seconds)
    return [(IDLE, begun, time.monotonic())]


def _warm_up(session: Session) -> Pass:
    """The spec's warm-up steps, and then others for a second, so that the last of them show the step time."""
    done = _steps(session, max(1, session.spec.warmup))
    while len(done.seconds) < LEAST_STEPS or done.ended - done.begun < WARM_S:
        left_s = max(0.0, WARM_S - (done.ended - done.begun))
        more = max(LEAST_STEPS - len(done.seconds), math.ceil(left_s / _recent(done)), 1)
        _extend(done, _steps(session, min(more, 2 * len(done.seconds))))  # the first steps say little of the later
    return done


def _window(session: Session, sampler: Sampler, step_s: float, progress: OnProgress) -> Pass:
    """One pass of as many steps as the window needs by the step time.

    More follow where it came out too short: for the meters, or as the steps differ too much for their mean to be known.
    """
    needed_s = session.spec.window_s or LEAST_S
    window = _steps(session, max(LEAST_STEPS, math.ceil(MARGIN * needed_s / step_s)), progress)
    for _ in range(EXTENSIONS):
        length_s = window.length_s
        if (updates := least_updates(sampler.peek(), window.begun, window.ended)) is not None:
            needed_s = max(needed_s, min(LONGEST_S, length_s * LEAST_UPDATES / max(1, updates)))
            if session.spec.window_s is None and _uncertainty(window.seconds) > KNOWN:
                needed_s = max(needed_s, min(LONGEST_UNSTEADY_S, 2 * length_s))
        if length_s >= needed_s:
            break
        more = math.ceil((MARGIN * needed_s - length_s) / _recent(window))
        _extend(window, _steps(session, more, progress))
    return window


def _uncertainty(seconds: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean, of the mean: by the means of batches, as steps are correlated."""
    size = len(seconds) // BATCHES
    if size == 0:
        return 0.0  # a handful of long steps: the window is five of them already
    means = [statistics.fmean(seconds[at * size : (at + 1) * size]) for at in range(BATCHES)]
    return STUDENT * statistics.stdev(means) / math.sqrt(BATCHES) / statistics.fmean(means)


def _steps(session: Session, steps: int, progress: OnProgress = lambda done, total: None) -> Pass:
    clock, report = StepClock(session.device, marks=1 + steps), throttled(progress)
    wait(session.device)
    begun, ended, marked = time.monotonic(), 0.0, itertools.count(1)

    def timed(step: Step) -> None:
        nonlocal ended
        step.run()
        clock.mark()
        report(number := next(marked), steps)
        if number == steps:
            wait(session.device)
            ended = time.monotonic()  # before the losses are read, of which there may be ten thousands

    clock.begin()
    results = list(session.run(steps, on_step=timed))
    return Pass([(begun, ended)], clock.seconds(), results)


def _extend(done: Pass, more: Pass) -> None:
    done.stretches += more.stretches
    done.seconds += more.seconds
    done.results += more.results


def _recent(done: Pass) -> float:
    """The median of the last steps."""
    return statistics.median(done.seconds[-LEAST_STEPS:])
