"""A trial of an engine: eager and the engine side by side in one process, compared and then timed in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from fathom.core.events import OnProgress
from fathom.core.record import Record, Sections
from fathom.core.spec import EAGER, RunSpec
from fathom.core.trial import COMPARED_STEPS, FIRST_STEPS, ROUNDING, EngineRun, Trial
from fathom.data.base import Batch
from fathom.engine.session import Session
from fathom.machine.clock import wait
from fathom.machine.devices import wake
from fathom.machine.disturbance import Watch
from fathom.machine.meter import Counters, Target
from fathom.measure.loop import as_record, non_finite
from fathom.measure.profiling import busy_seconds
from fathom.workloads.base import Output

TURNS = 15  # of each side: three that were disturbed, all on one side, do not reach the 95 % interval of the median
FEWEST_TURNS = 7  # where steps are so long that the budget holds no more
BUDGET_S = 7.0  # of all turns together, where the spec does not say
ROUNDED = 2  # runs of eager that are rounded otherwise
BUSY_STEPS = 10  # under the profiler, for the time that the GPU works
METERED_S = 2.0  # of steps whose energy is counted; counters of some GPUs advance ten times a second


@dataclass
class Running:
    """A session that has done its first steps."""

    session: Session
    setup_s: float
    start_s: float
    results: list[Any]  # losses, or outputs: of the first step, and of one by which an engine captures what it does
    drew: bool = False  # whether its steps drew random numbers
    allocated: int | None = None  # bytes on the device before it was set up
    peak: int | None = None
    settle: Callable[[], None] = lambda: None  # before each turn: settings of the process that the two sides differ in

    def timed(self, steps: int) -> float:
        """Seconds of a step; they are waited for all together."""
        self.settle()
        wait(self.session.device)
        begun = time.perf_counter()
        self.session.run(steps)
        wait(self.session.device)
        return (time.perf_counter() - begun) / steps

    def timed_updates(self, batch: Batch, updates: int) -> float:
        """Seconds of an update on one batch."""
        self.settle()
        wait(self.session.device)
        begun = time.perf_counter()
        for _ in range(updates):
            self.session.engine.update(batch)
        wait(self.session.device)
        return (time.perf_counter() - begun) / updates


def measured(spec: RunSpec, progress: OnProgress, begun: float) -> Record:
    """The record of a trial; its imports began at `begun`, on the clock of time.perf_counter()."""
    import_s = time.perf_counter() - begun
    parts = 2 + ROUNDED + TURNS
    eager_spec = replace(spec, engine=EAGER)
    rounded = _rounded_otherwise(eager_spec, progress, parts) if spec.engine != EAGER else []
    with Session(eager_spec) as eager_session, Session(spec) as session:
        eager = started(eager_session)
        progress(ROUNDED + 1, parts)
        engine = started(session)
        progress(ROUNDED + 2, parts)
        sections = Sections(import_s=import_s, setup_s=engine.setup_s, first_step_s=None)
        record = as_record(session, sections, [], [], engine.results, [])
        for results in (eager.results, *rounded):
            if record.outcome == "ok" and (problem := non_finite(spec.phase, results)):
                record = replace(record, outcome="failed", reason=f"eager, beside the engine: {problem}")
        if record.outcome != "ok":
            return record  # there is nothing to compare with
        watch = Watch(session.device)
        both = [eager, engine]
        timed = in_turns(both, spec.budget_s or BUDGET_S, shown_by(progress))
        runs = [with_energy(run, running) for run, running in zip(timed, both, strict=True)]
        watch.look()
        trial = compared(Trial(eager=runs[0], engine=runs[1]), eager.results, engine.results, rounded)
        return replace(record, trial=trial, disturbance=watch.disturbance())


def shown_by(progress: OnProgress) -> OnProgress:
    """Turns, as the last parts of a trial."""
    return lambda turn, turns: progress(ROUNDED + 2 + turn, ROUNDED + 2 + turns)


def _rounded_otherwise(spec: RunSpec, progress: OnProgress, parts: int) -> list[list[Any]]:
    """What eager gives with weights rounded otherwise, and with the whole arithmetic in fp32.

    Where that is it already, other weights again.
    """
    rounded = []
    for number, precision in enumerate((spec.precision, "fp32"), start=1):
        with Session(replace(spec, precision=precision)) as session:
            rounded.append(started(session, rounding=number).results)
        progress(number, parts)
    return rounded


def compared(trial: Trial, eager: list[Any], engine: list[Any], rounded: list[list[Any]]) -> Trial:
    """With what agreement is judged by: losses in training, the difference of outputs in inference."""
    if trial.eager.losses:
        return replace(trial, rounded_losses=rounded)
    for found, expected in zip(engine, eager, strict=True):
        if (mismatch := _mismatch(found, expected)) is not None:
            return replace(trial, mismatch=mismatch)
    differences = [
        _difference(found, expected)
        for each in rounded
        for found, expected in zip(each, eager, strict=True)
        if _mismatch(found, expected) is None
    ]
    return replace(
        trial,
        output_difference=max(map(_difference, engine, eager)),
        rounded_output_difference=max(differences, default=0.0),
    )


def started(
    session: Session,
    rounding: int = 0,
    precision: str | None = None,
    steps: int = COMPARED_STEPS,
    within_s: float = math.inf,
) -> Running:
    """Set up, and run for the steps that are compared: after the first ones, as many as `within_s` seconds leave.

    With a seed for `rounding`, the weights are first rounded otherwise, to the run's or another precision.
    """
    wake(session.device)
    begun = time.perf_counter()
    allocated = _allocated(session.device)
    session.setup()
    if rounding:
        _round_otherwise(session, rounding, precision)
    wait(session.device)
    set_up = time.perf_counter()
    before = _random_state(session.device)
    results = _first_results(session)
    wait(session.device)
    start_s = time.perf_counter() - set_up
    drew = not torch.equal(before, _random_state(session.device))
    if session.spec.phase == "train":
        left = (within_s - start_s) * FIRST_STEPS / start_s
        results += session.run(max(0, int(min(steps - FIRST_STEPS, left))))
    running = Running(session, set_up - begun, start_s, results, drew, allocated=allocated)
    if allocated is not None:
        running.peak = torch.cuda.max_memory_allocated(session.device) - allocated
    return running


def _first_results(session: Session) -> list[Any]:
    """The losses of the first steps, or the outputs of the very first and the last, which captured engines replay.

    Later steps of an environment go their own way: it has been in other states then.
    """
    if session.spec.phase == "train":
        return list(session.run(FIRST_STEPS))
    kept: list[Any] = []
    workload = getattr(session, "workload", None)  # a user's own step has none
    for steps in (1, FIRST_STEPS - 1):
        (output,) = session.run(steps)
        if not kept or not (workload and workload.interactive):
            kept.append({name: value.clone() for name, value in output.items()})  # type: ignore[union-attr]
    return kept


def _random_state(device: torch.device) -> torch.Tensor:
    """Of the generator that steps on a device draw from."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _round_otherwise(session: Session, seed: int, precision: str | None = None) -> None:
    """Every weight larger or smaller by what rounding to the precision, the run's or another, may change."""
    unit = ROUNDING[precision or session.spec.precision or "fp32"]
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in session.state.weights:
            sign = torch.randint(2, weight.shape, generator=random).to(weight.device, weight.dtype) * 2 - 1
            # a factor of 1 + unit would itself be rounded to 1; what is kept in this precision has no half of a digit
            weight.add_(weight * sign, alpha=unit if weight.dtype == torch.float32 else 2 * unit)


def in_turns(both: list[Running], budget_s: float, on_turn: OnProgress) -> list[EngineRun]:
    """Turns of equal length, in which the one that begins alternates."""
    step_s = [max(1e-5, each.timed(3)) for each in both]
    turns_of_one = int(budget_s / sum(step_s))  # where each turn is a single step
    number = min(TURNS, max(FEWEST_TURNS, turns_of_one))
    steps = [max(1, round(budget_s / number / len(both) / each)) for each in step_s]
    batches = [_fixed_batch(each.session) for each in both]
    turns: list[list[float]] = [[] for _ in both]
    alone: list[list[float]] = [[] for _ in both]
    for turn in range(number):
        for side in (0, 1) if turn % 2 else (1, 0):
            turns[side].append(both[side].timed(steps[side]))
            if (batch := batches[side]) is not None:
                alone[side].append(both[side].timed_updates(batch, steps[side]))
        on_turn(turn + 1, number)
    return [
        EngineRun(
            start_s=each.start_s,
            turn_step_s=turns[side],
            steps=steps[side] * number,
            losses=each.results if each.session.spec.phase == "train" else [],
            peak_device_bytes=each.peak,
            turn_update_s=alone[side],
        )
        for side, each in enumerate(both)
    ]


def with_energy(run: EngineRun, running: Running) -> EngineRun:
    """Also with the time that a GPU works in a step."""
    energy_j, steps = _metered(running, round(METERED_S / run.step_s) or 1)
    return replace(run, energy_j=energy_j, metered_steps=steps, busy_s=_busy_s(running))


def _metered(running: Running, steps: int) -> tuple[float, int] | tuple[None, None]:
    """Joules of so many steps, by the counters of what they run on."""
    counters = Counters(Target.of(running.session.device))
    before = counters.joules()
    if before is None:
        return None, None
    running.timed(steps)
    after = counters.joules()
    return (None, None) if after is None else (after - before, steps)


def _busy_s(running: Running) -> float | None:
    running.settle()
    return busy_seconds(running.session, BUSY_STEPS)


def _fixed_batch(session: Session) -> Batch | None:
    """A batch to update with again and again, where a step does more than update: it acts in an environment."""
    workload = getattr(session, "workload", None)  # a user's own step has none
    if session.spec.phase != "train" or workload is None or not workload.interactive:
        return None
    state = session.state
    first, *_ = [next(state.batches) for _ in range(workload.updates_per_step)]
    workload.interact(state, None)  # the environment was set off, and has to be waited for before it is again
    return {name: column.clone() for name, column in first.items()}


def _mismatch(found: Output, expected: Output) -> str | None:
    """Why outputs cannot be compared value by value; None where they can."""
    if found.keys() != expected.keys():
        return f"the outputs are {', '.join(found)}, not {', '.join(expected)}"
    for name, value in expected.items():
        if found[name].shape != value.shape:
            return f"the output {name} has shape {list(found[name].shape)}, not {list(value.shape)}"
        own = found[name].to(value.device)
        infinite = ~value.isfinite()
        if not torch.equal(infinite, ~own.isfinite()) or not torch.equal(
            value[infinite], own.to(value.dtype)[infinite]
        ):
            return f"the output {name} is -inf elsewhere"  # what holds other infinities has failed before
    return None


def _difference(found: Output, expected: Output) -> float:
    """The largest of all outputs: of floats relative to their largest, of integers the share that differs."""
    return max((_of_output(found[name], value) for name, value in expected.items()), default=0.0)


def _of_output(found: torch.Tensor, expected: torch.Tensor) -> float:
    found = found.to(expected.device)
    if not expected.numel():
        return 0.0
    if not expected.is_floating_point():
        return float((found != expected).double().mean())
    finite = expected.isfinite()
    gap = (found.double() - expected.double())[finite].abs()
    largest = expected.double()[finite].abs().max() if finite.any() else torch.zeros(())
    return float(gap.max() / largest) if gap.numel() and largest > 0 else float(gap.sum())


def _allocated(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
