"""measure(spec) -> Record: the one loop, readable top to bottom."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fathom.core.energy import SETUP, STEPS, WARM_UP
from fathom.core.errors import FathomError, first_line
from fathom.core.events import OnProgress, throttled
from fathom.core.record import Record, Sections, moment
from fathom.core.spec import RunSpec
from fathom.machine.disturbance import Watch
from fathom.machine.gpus import gpu_uuid
from fathom.machine.host import fingerprint, import_notes
from fathom.machine.meter import Target
from fathom.machine.sampler import Sampler
from fathom.measure.energy import energy_of, missing
from fathom.measure.stopping import PRECISE, StoppingRule

if TYPE_CHECKING:
    import torch

    from fathom.core.energy import Energy
    from fathom.engine.session import Session
    from fathom.machine.clock import StepClock
    from fathom.machine.sampler import Samples

SHOWN_ANSWERS = 4
LEAST_STEPS = 5  # before a budget may end a run


def measure(spec: RunSpec, progress: OnProgress = lambda done, total: None) -> Record:
    """Runs the workload and records what happened."""
    return recorded(spec, partial(_measured, spec, progress))


def recorded(spec: RunSpec, work: Callable[[], Record]) -> Record:
    """What the user can put right is raised; all else that goes wrong is a failed record."""
    started, watch = moment(), Watch()
    try:
        record = work()
    except FathomError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {first_line(error)}"
        record = Record(spec=spec, machine=fingerprint(), device=spec.device, outcome="failed", reason=why)
    watch.look()
    return replace(record, started=started, disturbance=record.disturbance.within(watch.disturbance()))


def _nothing() -> None:
    """Between chunks of steps on a CPU."""


@dataclass(frozen=True)
class _Moments:
    """When the parts of a program ended, by one clock."""

    begun: float
    imported: float
    constructed: float
    awake: float
    metered: float = 0.0  # the sampling process took its first sample: no part of the program
    set_up: float | None = None
    ready: float | None = None  # a look at the machine later
    finished: float | None = None

    def sections(self, session: Session, first_step_s: float | None = None) -> Sections:
        context_s = None if session.device.type == "cpu" else self.awake - self.constructed
        if self.set_up is None or self.ready is None or self.finished is None:
            return Sections(import_s=self.imported - self.begun, context_s=context_s)
        return Sections(
            import_s=self.imported - self.begun,
            init_s=self.constructed - self.begun,
            context_s=context_s,
            setup_s=self.set_up - self.metered + self.awake - self.constructed,
            first_step_s=first_step_s,
            run_s=self.finished - self.ready,
            main_s=self.finished - self.metered + self.awake - self.begun,
        )


def _measured(spec: RunSpec, progress: OnProgress) -> Record:
    begun = time.perf_counter()
    if spec.kind == "energy":
        from fathom.measure import window  # it is another loop, and loads torch

        return window.measured(spec, progress, begun)
    if spec.kind == "trial":
        from fathom.measure import trial

        return trial.measured(spec, progress, begun)
    if spec.kind == "feed":
        from fathom.measure import feed

        return feed.measured(spec, progress, begun)
    from fathom.engine.session import Session
    from fathom.machine.clock import StepClock
    from fathom.machine.devices import wake  # here, because importing torch is a part of init that has its own name

    if spec.phase == "train":
        import torch._dynamo  # noqa: F401  any optimizer loads it, for seconds: an import, and named as one
    imported = time.perf_counter()
    with Session(spec) as session:
        constructed = time.perf_counter()
        wake(session.device)
        moments = _Moments(begun, imported, constructed, awake=time.perf_counter())
        if spec.kind == "program":
            return _traced(session, moments)
        with Sampler(Target.of(session.device)) as sampler:
            moments = replace(moments, metered=time.perf_counter())
            session.setup()
            set_up = time.perf_counter()
            watch = Watch(session.device)
            ready = time.perf_counter()
            clock = StepClock(session.device, marks=1 + spec.warmup + spec.steps)
            # on a CPU the step's own threads still spin on the other cores then
            between = watch.time_core if session.device.type == "cuda" else _nothing
            results, notes, chunks = _timed_pass(session, clock, progress, between)
            seconds = clock.seconds()
            moments = replace(moments, set_up=set_up, ready=ready, finished=time.perf_counter())
            watch.look()
            samples = sampler.stop()
        energy, problems = _energy(samples, moments, chunks, seconds[spec.warmup :])
        sections = moments.sections(session, first_step_s=seconds[0])
        warmup_s, step_s = seconds[: spec.warmup], seconds[spec.warmup :]
        record = as_record(session, sections, warmup_s, step_s, results, [*notes, *problems])
        watch.look()
        return replace(record, disturbance=watch.disturbance(), energy=energy)


def _energy(
    samples: Samples | None, moments: _Moments, chunks: list[tuple[float, float]], steps_s: list[float]
) -> tuple[Energy | None, list[str]]:
    """The energy of the timed steps, and where there is a meter and no number, why."""
    if samples is None or moments.set_up is None:
        return None, []
    timed = chunks[1:]
    if not timed:  # all in one chunk without a gap: the timed ones begin so long before its end
        timed = [(chunks[0][1] - sum(steps_s), chunks[0][1])]
    stretches = [
        (SETUP, moments.metered, moments.set_up),
        (WARM_UP, chunks[0][0], timed[0][0] if len(chunks) == 1 else chunks[0][1]),
        *((STEPS, begin, end) for begin, end in timed),
    ]
    # the sampler's clock, the same one on most systems; a pause between the two reads makes the difference less
    shared = max(time.monotonic() - time.perf_counter() for _ in range(5))
    named = [(name, begin + shared, end + shared) for name, begin, end in stretches if end > begin]
    energy = energy_of(samples, named, len(steps_s))
    return energy, [] if energy else [f"energy not metered: {why}" for why in missing(samples, named)]


def as_record(
    session: Session,
    sections: Sections,
    warmup_s: list[float],
    step_s: list[float],
    results: Sequence[Any],
    notes: list[str],
) -> Record:
    """The record of a timed pass; a result that is no number makes it a failed one, which is not profiled."""
    spec, training = session.spec, session.spec.phase == "train"
    # before a profiler takes memory of its own
    peak_host_bytes, peak_device_bytes = _peak_host_bytes(), _peak_device_bytes(session.device)
    problem = non_finite(spec.phase, results)
    answers = [] if training or problem else session.workload.answers(results[-1], session.state.source)
    profile = None
    if spec.kind == "profiled" and not problem:
        from fathom.measure.profiling import profiled

        profile = profiled(session, step_s)
    machine = fingerprint(session.device)
    return Record(
        spec=spec,
        machine=machine,
        device=str(session.device),
        gpu_uuid=gpu_uuid(session.device),
        outcome="failed" if problem else "ok",
        reason=problem,
        sections=sections,
        warmup_s=_to_nanoseconds(warmup_s),
        step_s=_to_nanoseconds(step_s),
        losses=[float(f"{float(loss):.9g}") for loss in results] if training else [],  # nine digits hold any float32
        answers=answers[:SHOWN_ANSWERS],
        item=session.workload.item_of(spec.phase),
        items_per_step=session.items_per_step,
        parameters=sum(weight.numel() for weight in session.state.weights),
        peak_host_bytes=peak_host_bytes,
        peak_device_bytes=peak_device_bytes,
        profile=profile,
        notes=[*notes, *import_notes(), *machine.cpu.quota_notes, *session.data_notes],
    )


def _to_nanoseconds(seconds: Sequence[float]) -> list[float]:
    """No clock here resolves less; all 17 digits would double the file of a run with many steps."""
    return [round(each, 9) for each in seconds]


def _traced(session: Session, moments: _Moments) -> Record:
    """All of a program under the profiler, as the Minsky study's nvprof saw it; its steps are not timed."""
    from fathom.measure.profiling import program_trace

    program, results = program_trace(session)
    problem = non_finite(session.spec.phase, results)
    return Record(
        spec=session.spec,
        machine=fingerprint(session.device),
        device=str(session.device),
        gpu_uuid=gpu_uuid(session.device),
        outcome="failed" if problem else "ok",
        reason=problem,
        sections=moments.sections(session),
        program=program,
        notes=import_notes(),
    )


def non_finite(phase: str, results: Sequence[Any]) -> str | None:
    """Why the results cannot be believed: a loss, or the last output of inference, that is no number."""
    if phase == "train":
        first = next((index for index, loss in enumerate(results) if not math.isfinite(loss)), None)
        return None if first is None else f"the loss is {float(results[first])} at step {first}"
    for name, values in results[-1].items():
        if values.is_floating_point():
            if bool(values.isnan().any()):
                return f"the output {name} holds nan"
            if bool(values.isposinf().any()):  # -inf is the logarithm of a probability of nothing, and may stand
                return f"the output {name} holds inf"
    return None


def _timed_pass(
    session: Session, clock: StepClock, progress: OnProgress, between: Callable[[], None]
) -> tuple[list[Any], list[str], list[tuple[float, float]]]:
    """Warm-up and timed steps; with a budget, in growing chunks until the median is known or the time is spent.

    `between` is called after each chunk.
    Gives results, notes, and when each chunk began and ended: all steps in one, or warm-up in the first.
    """
    from fathom.machine.clock import wait

    spec = session.spec
    chunks: list[tuple[float, float]] = []
    total = spec.warmup + spec.steps
    training = spec.phase == "train"
    results: list[Any] = []
    report = throttled(progress)

    def timed(step: Any) -> None:
        step.run()
        clock.mark()
        report(step.index + 1, total)

    def run(steps: int) -> None:
        if not training:
            results.clear()  # outputs are large; the last one is enough
        begun = time.perf_counter()
        clock.begin()
        results.extend(session.run(steps, on_step=timed))
        wait(session.device)
        chunks.append((begun, time.perf_counter()))
        between()

    if spec.budget_s is None:
        run(total)
        return results, [], chunks
    rule = StoppingRule()
    run(spec.warmup)  # in which cuDNN chooses its algorithms: it is not the budget's
    stop = time.perf_counter() + spec.budget_s
    run(min(LEAST_STEPS, spec.steps))
    chunk = LEAST_STEPS
    while True:
        steps_s = clock.seconds()[spec.warmup :]
        known = rule.half_width(steps_s)
        bound = (
            f"median of this process known to {known:.1%}" if math.isfinite(known) else "too few to bound the median"
        )
        reached = f"{len(steps_s)} steps, {bound}"
        if known <= PRECISE:
            return results, [f"stopped as precise: {reached}"], chunks
        if len(steps_s) >= spec.steps:
            return results, [f"stopped at the step limit: {reached}"], chunks
        left_s = stop - time.perf_counter()
        if left_s <= 0:
            return results, [f"stopped as the budget of {spec.budget_s:g} s was spent: {reached}"], chunks
        affordable = max(1, int(left_s / (sum(steps_s) / len(steps_s))))
        run(min(chunk, affordable, spec.steps - len(steps_s)))
        chunk *= 2


def _peak_host_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes


def _peak_device_bytes(device: torch.device) -> int | None:
    import torch

    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
