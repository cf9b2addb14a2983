"""measure(spec) -> Record: the one loop, readable top to bottom."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable

from fathom.errors import FathomError
from fathom.machine import fingerprint
from fathom.record import Record, Sections
from fathom.spec import RunSpec

Progress = Callable[[int, int], None]  # steps done, steps in all
SHOWN_ANSWERS = 4


def measure(spec: RunSpec, progress: Progress = lambda done, total: None) -> Record:
    """Runs the workload and tells what happened. What the user can put right is raised; all else is a failed record."""
    try:
        return _measured(spec, progress)
    except FathomError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        return Record(spec=spec, machine=fingerprint(), device=spec.device, outcome="failed", reason=why)


def _measured(spec: RunSpec, progress: Progress) -> Record:
    begun = time.perf_counter()
    from fathom.session import Session, Step  # here, because importing torch is part of init
    from fathom.timing import StepClock

    session = Session(spec)
    constructed = time.perf_counter()
    session.setup()
    ready = time.perf_counter()

    clock = StepClock(session.device)
    total = spec.warmup + spec.steps
    clock.mark()

    def timed(step: Step) -> None:
        step.run()
        clock.mark()
        progress(step.index + 1, total)

    results = session.run(total, on_step=timed)
    seconds = clock.seconds()  # waits for the device
    finished = time.perf_counter()

    losses = [float(loss) for loss in results] if spec.phase == "train" else []  # type: ignore[arg-type]
    answers: list[str] = []
    if spec.phase == "infer":
        answers = session.workload.answers(results[-1], session.state.source)[:SHOWN_ANSWERS]  # type: ignore[arg-type]
    wrong = next((index for index, loss in enumerate(losses) if not math.isfinite(loss)), None)
    record = Record(
        spec=spec,
        machine=fingerprint(session.device),
        device=str(session.device),
        outcome="ok" if wrong is None else "failed",
        reason=None if wrong is None else f"the loss is {losses[wrong]} at step {wrong}",
        sections=Sections(
            init_s=constructed - begun,
            setup_s=ready - constructed,
            first_step_s=seconds[0],
            run_s=finished - ready,
            main_s=time.perf_counter() - begun,
        ),
        warmup_s=seconds[: spec.warmup],
        step_s=seconds[spec.warmup :],
        losses=losses,
        answers=answers,
        items_per_step=session.items_per_step,
        parameters=sum(parameter.numel() for parameter in session.state.model.parameters()),
        peak_host_bytes=_peak_host_bytes(),
        peak_device_bytes=_peak_device_bytes(session.device.type),
    )
    session.close()
    return record


def _peak_host_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes


def _peak_device_bytes(kind: str) -> int | None:
    import torch

    return torch.cuda.max_memory_allocated() if kind == "cuda" else None
