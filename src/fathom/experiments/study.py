"""The study: every workload, training and inference, on each available device; one record a run, resumable."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fathom.core.errors import BadOption, FathomError
from fathom.core.events import OnProgress
from fathom.core.record import Record
from fathom.core.spec import PHASES, RunSpec
from fathom.core.store import Store
from fathom.experiments.checks import check, check_directory, check_external, facts_of, present_or
from fathom.experiments.isolate import failed, isolated
from fathom.experiments.start import Starts
from fathom.machine.host import usable_cores
from fathom.workloads.catalogue import suite

STEPS = 200  # timed in one run, at most
BUDGET_S = 6.0  # for the timed steps of one run on all devices together
SWEEP_BUDGET_S = 2.0  # for the timed steps of one run of the thread sweep, whose op rows matter more
COMMON = "small"  # the preset that every device runs, so that machines can be compared on equal work
COMMON_BUDGET_S = 2.0  # for the timed steps of one run of it beside a larger preset


def plan(names: Sequence[str], preset: str, devices: Sequence[str], engine: str = "eager") -> list[RunSpec]:
    """Each workload in both phases on each device; on the CPU, a thread sweep (1, 2, 4, ...) of those that ask for it.

    Where there is an accelerator too, the CPU runs the small preset in place of paper, which would take it hours. A
    device that runs paper also times small: machines are compared on the work that all of them did.
    """
    chosen = list(names) or suite()
    specs: list[RunSpec] = []
    for device in sorted(devices, key=lambda name: name == "cpu"):  # accelerators first: they are faster
        fitting = COMMON if device == "cpu" and len(devices) > 1 and preset == "paper" else preset
        base = RunSpec(
            workload="",
            preset=fitting,
            device=device,
            engine=engine,
            steps=STEPS,
            budget_s=BUDGET_S / len(devices),
            kind="profiled",
        )
        specs += [replace(base, workload=name, phase=phase) for name in chosen for phase in PHASES]
        if fitting == "paper":
            common = replace(base, preset=COMMON, kind="timed", budget_s=COMMON_BUDGET_S)
            specs += [replace(common, workload=name, phase=phase) for name in _with_common(chosen) for phase in PHASES]
        if device == "cpu":
            specs += [
                replace(base, workload=name, threads=threads, budget_s=SWEEP_BUDGET_S)
                for name in chosen
                if (facts := facts_of(name)) and facts["sweeps_threads"]
                for threads in powers_of_two(usable_cores())
            ]
    return specs


def plan_here(names: Sequence[str], preset: str, devices: Sequence[str], engine: str) -> list[RunSpec]:
    """plan() on the devices of this machine; wrong names are refused before torch is loaded to look for devices."""
    for name in names:
        check(RunSpec(workload=name, preset=preset, engine=engine))
    check_directory()
    planned = plan(names, preset, present_or(devices), engine)
    check_external(planned)
    return planned


def _with_common(names: Sequence[str]) -> list[str]:
    """The workloads that have the common preset, as all of Fathom's do; another package's may not."""
    return [name for name in names if (facts := facts_of(name)) and COMMON in facts["presets"]]


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... and the most itself."""
    return sorted({1 << power for power in range(most.bit_length())} | {most})


def to_run_again(planned: Sequence[RunSpec], records: Iterable[Record]) -> list[RunSpec]:
    """The planned runs whose records are disturbed, each once more than it was planned and no oftener.

    A failed run is left to the next start of the command.
    """
    succeeded: dict[str, list[bool]] = defaultdict(list)  # spec -> of each record, whether it is disturbed
    for record in records:
        if record.outcome == "ok":
            succeeded[record.spec.id].append(record.disturbed)
    wanted_of = Counter(spec.id for spec in planned)
    again = []
    for spec in {spec.id: spec for spec in planned}.values():
        found, wanted = succeeded[spec.id], wanted_of[spec.id]
        sound = found.count(False)
        again += [spec] * min(found.count(True), max(0, wanted - sound), max(0, 2 * wanted - len(found)))
    return again


def is_busy(planned: Sequence[RunSpec], again: Sequence[RunSpec]) -> bool:
    """Whether most runs were disturbed: as many runs again would take as long and be no better."""
    return 2 * len(again) > len(planned) > 1


def run_all(
    specs: Sequence[RunSpec],
    store: Store,
    watch: Callable[[int, RunSpec], OnProgress],
    run: Callable[[RunSpec, OnProgress], Record] = isolated,
    on_wait: Callable[[], None] = lambda: None,
    on_stop: Callable[[str], None] = lambda reason: None,
) -> Iterator[tuple[Record, Path]]:
    """Runs each spec in its own process and writes its record at once; a failure is a record too.

    Several processes may share a folder: they run one at a time, since concurrent runs would slow each other, and none
    repeats what another has measured. on_wait() is called where another process is measuring. Where the first runs in
    one way (device, engine, ranks or not) all fail to start for one reason, so would the others: on_stop() is told why,
    and they are left.
    """
    starts = Starts(specs)
    for index, spec in enumerate(specs):
        start = starts.of(spec)
        if start.failing:
            if (reason := start.reason()) is not None:
                on_stop(reason)
            continue
        made = partial(_made, spec, store, start.watched(watch(index, spec)), run)
        if spec.nodes > 1:  # nodes that share the folder need each other at once, and make every job together
            done = made()
        else:
            with store.lock(on_wait):
                done = store.claim(spec) or made()
        start.look(done[0])
        yield done


def _made(
    spec: RunSpec, store: Store, on_progress: OnProgress, run: Callable[[RunSpec, OnProgress], Record]
) -> tuple[Record, Path]:
    return _stored(_run(spec, on_progress, run), store)


def _run(spec: RunSpec, on_progress: OnProgress, run: Callable[[RunSpec, OnProgress], Record]) -> Record:
    try:
        return run(spec, on_progress)
    except FathomError as error:
        return failed(spec, str(error))


def _stored(record: Record, store: Store) -> tuple[Record, Path]:
    """A folder that cannot be written to ends the study: every later run would be lost as well."""
    try:
        return record, store.add(record)
    except FathomError as error:
        raise BadOption(f"{error}; this run is lost, earlier ones are kept: run the command again to resume") from None
