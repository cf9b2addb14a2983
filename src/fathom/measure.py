"""measure(spec) -> Record: the one loop, readable top to bottom."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fathom.errors import FathomError
from fathom.machine import fingerprint
from fathom.progress import Progress, now_and_then
from fathom.record import Record, Sections
from fathom.spec import RunSpec
from fathom.steady import half_width

if TYPE_CHECKING:
    from fathom.session import Session
    from fathom.timing import StepClock

SHOWN_ANSWERS = 4
LEAST_STEPS = 5  # before a budget may end a run
PRECISE = 0.01  # half-width of the median's 95 % interval, relative


def measure(spec: RunSpec, progress: Progress = lambda done, total: None) -> Record:
    """Runs the workload and tells what happened."""
    return recorded(spec, partial(_measured, spec, progress))


def recorded(spec: RunSpec, work: Callable[[], Record]) -> Record:
    """What the user can put right is raised; all else that goes wrong is a failed record."""
    try:
        return work()
    except FathomError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        return Record(spec=spec, machine=fingerprint(), device=spec.device, outcome="failed", reason=why)


def _measured(spec: RunSpec, progress: Progress) -> Record:
    begun = time.perf_counter()
    from fathom.devices import wake  # here, because importing torch is a part of init that has its own name
    from fathom.session import Session
    from fathom.timing import StepClock

    if spec.phase == "train":
        import torch._dynamo  # noqa: F401  any optimizer loads it, for seconds: an import, and named as one
    imported = time.perf_counter()
    session = Session(spec)
    constructed = time.perf_counter()
    wake(session.device)
    awake = time.perf_counter()
    if spec.life:
        return _lived(session, Sections(import_s=imported - begun, context_s=awake - constructed))
    session.setup()
    ready = time.perf_counter()
    clock = StepClock(session.device, marks=1 + spec.warmup + spec.steps)
    results, notes = _timed_pass(session, clock, progress)
    seconds = clock.seconds()  # waits for the device
    finished = time.perf_counter()
    peak_device_bytes = _peak_device_bytes(session.device.type)

    training = spec.phase == "train"
    losses = [float(loss) for loss in results] if training else []
    answers = [] if training else session.workload.answers(results[-1], session.state.source)[:SHOWN_ANSWERS]
    wrong = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), None)
    profile = None
    if spec.profile and wrong is None:
        from fathom.ops import profiled

        profile = profiled(session, seconds[spec.warmup :])
    record = Record(
        spec=spec,
        machine=fingerprint(session.device),
        device=str(session.device),
        outcome="ok" if wrong is None else "failed",
        reason=None if wrong is None else f"the loss is {losses[wrong]} at step {wrong}",
        sections=Sections(
            import_s=imported - begun,
            init_s=constructed - begun,
            context_s=None if session.device.type == "cpu" else awake - constructed,
            setup_s=ready - constructed,
            first_step_s=seconds[0],
            run_s=finished - ready,
            main_s=finished - begun,
        ),
        warmup_s=seconds[: spec.warmup],
        step_s=seconds[spec.warmup :],
        losses=losses,
        answers=answers,
        items_per_step=session.items_per_step,
        parameters=sum(parameter.numel() for parameter in session.state.model.parameters()),
        peak_host_bytes=_peak_host_bytes(),
        peak_device_bytes=peak_device_bytes,
        profile=profile,
        notes=notes,
    )
    session.close()
    return record


def _lived(session: Session, sections: Sections) -> Record:
    """All of a program under the profiler, as the Minsky study's nvprof saw it; its steps are not timed."""
    from fathom.ops import lived

    with session:
        life = lived(session)
        return Record(
            spec=session.spec,
            machine=fingerprint(session.device),
            device=str(session.device),
            outcome="ok",
            sections=sections,
            life=life,
        )


def _timed_pass(session: Session, clock: StepClock, progress: Progress) -> tuple[list[Any], list[str]]:
    """Warm-up and timed steps; with a budget, in growing helpings until the median is known or the time is spent."""
    spec = session.spec
    total = spec.warmup + spec.steps
    training = spec.phase == "train"
    results: list[Any] = []
    tell = now_and_then(progress)

    def timed(step: Any) -> None:
        step.run()
        clock.mark()
        tell(step.index + 1, total)

    def run(steps: int) -> None:
        done = session.run(steps, on_step=timed)
        results[:] = [*results, *done] if training else done[-1:]  # outputs are large; the last one tells enough

    clock.mark()
    if spec.budget_s is None:
        run(total)
        return results, []
    run(spec.warmup)
    clock.seconds()  # waits for the device: warm-up, in which cuDNN chooses its algorithms, is not the budget's
    stop = time.perf_counter() + spec.budget_s
    run(min(LEAST_STEPS, spec.steps))
    helping = LEAST_STEPS
    while True:
        steps_s = clock.seconds()[spec.warmup :]
        known = half_width(steps_s)
        bound = f"median known to {known:.1%}" if math.isfinite(known) else "too few to bound the median"
        told = f"{len(steps_s)} steps, {bound}"
        if known <= PRECISE:
            return results, [f"stopped as precise: {told}"]
        if len(steps_s) >= spec.steps:
            return results, [f"stopped at the step limit: {told}"]
        left_s = stop - time.perf_counter()
        if left_s <= 0:
            return results, [f"stopped as the budget of {spec.budget_s:g} s was spent: {told}"]
        affordable = max(1, int(left_s / (sum(steps_s) / len(steps_s))))
        run(min(helping, affordable, spec.steps - len(steps_s)))
        helping *= 2


def _peak_host_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes


def _peak_device_bytes(kind: str) -> int | None:
    import torch

    return torch.cuda.max_memory_allocated() if kind == "cuda" else None
