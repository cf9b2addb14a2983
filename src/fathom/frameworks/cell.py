"""One cell of the table, in this process: bind it, load the framework, check its outputs, time its steps."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fathom.core.events import OnProgress, no_progress
from fathom.core.framework import FrameworkRecord, FrameworkSpec
from fathom.frameworks import framework, network
from fathom.frameworks.framework import Step, Work
from fathom.frameworks.network import Array
from fathom.frameworks.reference import CHECKED, logits_error, losses_error, tolerance
from fathom.machine.disturbance import Watch
from fathom.machine.host import affinity, fingerprint
from fathom.measure.stopping import FEWEST, PRECISE, StoppingRule


def work_of(spec: FrameworkSpec) -> Work:
    """The same weights and the same batch for every framework, from the seed."""
    found = network.load(spec.network).configured(spec.preset)
    inputs, labels = found.batch_of(spec.batch, spec.seed)
    return Work(found, spec.phase, found.weights(spec.seed), inputs, labels)


def run(
    spec: FrameworkSpec, truth: Path, bind: Callable[[], None], progress: OnProgress = no_progress
) -> FrameworkRecord:
    """The record of a cell; `bind` restricts this process to its CPUs, before the framework counts them.

    Outputs are compared with the reference in the file `truth` before anything is timed: a cell that is wrong is timed
    all the same, and marked.
    """
    stored = np.load(truth)
    machine = fingerprint()  # of the whole machine: seen from two CPUs it would be another one
    bind()
    watch = Watch()
    runner = framework.load(spec.framework)()
    begun = time.perf_counter()
    settings = runner.start(spec.threads)
    imported = time.perf_counter()
    work = work_of(spec)
    made = time.perf_counter()
    step, more = runner.build(work, spec.threads)
    built = time.perf_counter()
    record = FrameworkRecord(
        spec=spec,
        machine=machine,
        outcome="ok",
        versions=runner.versions(),
        settings=settings | more,
        cpus=affinity() or [],
        import_s=imported - begun,
        build_s=built - made,
        tolerance=tolerance(spec.phase, stored),
        parameters=work.network.parameters,
    )
    checked = _checked(record, step, stored, progress)
    watch.look()
    timed = _timed(checked, step, stored, progress)
    watch.look()
    return replace(timed, disturbance=watch.disturbance())


def _checked(record: FrameworkRecord, step: Step, truth: Array, progress: OnProgress) -> FrameworkRecord:
    """The first steps, which warm up, and the error of what they give."""
    seconds, results = [], []
    for number in range(CHECKED):
        begun = time.perf_counter()
        result = step()
        seconds.append(time.perf_counter() - begun)
        results.append(result if isinstance(result, float) else np.array(result))  # an engine may use its buffer again
        progress(number + 1, CHECKED + record.spec.steps)
    record = replace(record, warmup_s=seconds)
    if record.spec.phase == "infer":
        return _judged(record, float(np.max([logits_error(np.asarray(logits), truth) for logits in results])))
    losses = [float(loss) for loss in results]
    record = replace(record, losses=losses if all(map(math.isfinite, losses)) else [])
    return _judged(record, losses_error(losses, truth))


def _judged(record: FrameworkRecord, error: float) -> FrameworkRecord:
    """With this error, and the outcome that it means; NaN is no error that could be within a tolerance."""
    if not math.isfinite(error):
        return replace(record, error=None, outcome="wrong", reason="non-finite outputs")
    most = record.tolerance or 0.0
    if error <= most:
        return replace(record, error=error)
    what = "losses" if record.spec.phase == "train" else "logits"
    reason = f"{what} differ from the reference by {error:.2g}, tolerance {most:.2g}"
    return replace(record, error=error, outcome="wrong", reason=reason)


@dataclass
class _Rule:
    """Ends the timed steps: at their number, when the median is known to 1 %, or when the budget is spent."""

    spec: FrameworkSpec
    looks: StoppingRule
    next_look: int = FEWEST

    def ends(self, seconds: list[float]) -> bool:
        done = len(seconds)
        if done >= self.spec.steps:
            return True
        if done < FEWEST:
            return False
        if sum(seconds) >= self.spec.budget_s:
            return True
        if done < self.next_look:
            return False
        self.next_look = math.ceil(1.5 * done)  # few looks: each costs a part of the error allowed
        return self.looks.half_width(seconds) <= PRECISE


def _timed(record: FrameworkRecord, step: Step, truth: Array, progress: OnProgress) -> FrameworkRecord:
    """The timed steps. What the last of them gave is checked, too: logits as at first, a loss for being a number."""
    rule = _Rule(record.spec, StoppingRule())
    seconds: list[float] = []
    result: float | Array = 0.0
    cpu_s = 0.0
    while not rule.ends(seconds):
        cpu, begun = time.process_time(), time.perf_counter()
        result = step()
        seconds.append(time.perf_counter() - begun)
        cpu_s += time.process_time() - cpu
        progress(CHECKED + len(seconds), CHECKED + record.spec.steps)
    record = replace(record, step_s=seconds, cpu_s=cpu_s, peak_host_bytes=_peak_host_bytes())
    if record.outcome == "wrong":
        return record
    if not isinstance(result, float):
        return _judged(record, float(np.maximum(record.error or 0.0, logits_error(result, truth))))
    if not math.isfinite(result):
        return replace(record, outcome="wrong", reason=f"the loss became {result} in the timed steps")
    return record


def _peak_host_bytes() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
