"""The table of frameworks and threads: every cell in a fresh process bound to its CPUs, repeats interleaved.

Threads are set in the way that each framework offers. Where one offers none (XLA), or counts other threads than those
that compute, the binding is what limits it: a cell with n threads may run on n CPUs and on no others.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fathom.core import framework_store
from fathom.core.errors import BadOption, FathomError, Refused, UnknownName
from fathom.core.events import OnProgress
from fathom.core.framework import FrameworkRecord, FrameworkSpec
from fathom.core.plugins import names
from fathom.core.spec import PHASES
from fathom.core.stopping import unwinding
from fathom.core.store import Store
from fathom.experiments.checks import check_threads
from fathom.experiments.isolate import in_worker
from fathom.experiments.scale import spread
from fathom.experiments.study import powers_of_two
from fathom.frameworks import framework, network
from fathom.machine.host import fingerprint, topology

REFERENCE = "torch"  # the framework that computes references; it is always installed
REPEATS = 3
TIMEOUT_S = 900.0  # without a step: compiling a network may take minutes

Watch = Callable[[int, FrameworkSpec], OnProgress]


def plan(
    networks: Sequence[str] = (),
    frameworks: Sequence[str] = (),
    threads: Sequence[int] = (),
    phases: Sequence[str] = PHASES,
    **settings: Any,
) -> list[FrameworkSpec]:
    """Every cell that can be: each network in each framework, phase and number of threads. `settings` are a spec's."""
    batch = settings.pop("batch", None)
    for phase in phases:
        if phase not in PHASES:
            raise UnknownName.among("phase", phase, PHASES)
    planned = []
    for name in networks or names("networks"):
        size = network.load(name).batch if batch is None else batch
        for each in frameworks or names("frameworks"):
            for phase in phases:
                if phase in framework.load(each).phases:
                    planned += [
                        FrameworkSpec(network=name, framework=each, phase=phase, threads=count, batch=size, **settings)
                        for count in dict.fromkeys(threads or powers_of_two(len(topology())))
                    ]
    for spec in planned:
        check_threads(spec.threads)
    if not planned:
        raise BadOption("nothing to run: inference engines have no training phase")
    return planned


def order(specs: Sequence[FrameworkSpec], repeats: int, seed: int = 0) -> list[FrameworkSpec]:
    """Every cell so many times, in shuffled blocks that hold each once: a drift of the machine affects all alike."""
    chance = random.Random(seed)
    return [spec for _ in range(repeats) for spec in chance.sample(specs, len(specs))]


def not_installed(specs: Sequence[FrameworkSpec]) -> list[FrameworkRecord]:
    """One record of each network and phase of a framework that is not here, with the line that installs it."""
    machine = fingerprint()
    found: dict[tuple[str, str, str], FrameworkRecord] = {}
    for spec in specs:
        runner = framework.load(spec.framework)
        if runner.missing():
            key = spec.network, spec.framework, spec.phase
            found.setdefault(
                key,
                FrameworkRecord(spec=spec, machine=machine, outcome="not installed", reason=runner.install_line()),
            )
    return list(found.values())


def run_all(
    specs: Sequence[FrameworkSpec], folder: Path, watch: Watch, timeout_s: float = TIMEOUT_S
) -> Iterator[FrameworkRecord]:
    """Runs the cells and writes each record at once; a cell that fails is a record, too."""
    machine = fingerprint()
    with unwinding(), tempfile.TemporaryDirectory(prefix="fathom-") as scratch:
        truths = _References(Path(scratch), timeout_s)
        for index, spec in enumerate(specs):
            progress = watch(index, spec)
            with Store(folder, machine).lock(lambda: None):  # cells of another process would slow these
                try:
                    record = run(spec, truths.path(spec), progress, timeout_s)
                except FathomError as error:
                    record = failed(spec, str(error))
                framework_store.add(folder, record)
            yield record


def run(spec: FrameworkSpec, truth: Path, progress: OnProgress, timeout_s: float) -> FrameworkRecord:
    """One cell in its own process."""
    job = {"framework": dataclasses.asdict(spec), "truth": str(truth), "cpus": cpus_of(spec.threads)}
    document, reason = _result(job, progress, timeout_s, framework.load(spec.framework)().environment(spec.threads))
    return FrameworkRecord.from_json(document, "the worker's record") if document else failed(spec, reason)


def cpus_of(threads: int) -> list[int]:
    """One per core until every core has one; more threads than CPUs share all, as in the guide's last column."""
    here = topology()
    return list(spread(here, min(threads, len(here))))


def failed(spec: FrameworkSpec, reason: str) -> FrameworkRecord:
    return FrameworkRecord(spec=spec, machine=fingerprint(), outcome="failed", reason=reason)


class _References:
    """The reference of each network, phase and batch, computed once, in a process of its own."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self._folder, self._timeout_s = folder, timeout_s
        self._problems: dict[str, str] = {}

    def path(self, spec: FrameworkSpec) -> Path:
        """The file of the reference; an error where it could not be computed."""
        same = dataclasses.replace(spec, framework=REFERENCE, threads=1, steps=1, budget_s=1.0)
        path = self._folder / f"{same.id}.npy"
        if same.id not in self._problems and not path.exists():
            job = {"framework": dataclasses.asdict(same), "write": str(path)}
            document, reason = _result(job, lambda done, total: None, self._timeout_s, {"CUDA_VISIBLE_DEVICES": "-1"})
            if document is None:
                path.unlink(missing_ok=True)
                self._problems[same.id] = f"no reference to compare with: {reason}"
        if same.id in self._problems:
            raise BadOption(self._problems[same.id])
        return path


def _result(
    job: dict[str, Any], progress: OnProgress, timeout_s: float, environment: dict[str, str]
) -> tuple[dict[str, Any] | None, str]:
    """What the worker reports in its last event, or how it ended without one."""
    found: dict[str, Any] = {}
    try:
        ended = in_worker(job, progress, timeout_s, on_event=found.update, environment=environment)
    except Refused as error:
        return None, str(error)
    return found.get("result"), getattr(ended, "reason", "")
