"""The study: every workload, training and inference, on each device that is there; one record a run, resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fathom.core import plugins
from fathom.core.errors import BadOption, FathomError
from fathom.core.events import Progress
from fathom.core.record import Record
from fathom.core.spec import PHASES, RunSpec
from fathom.core.store import Store
from fathom.experiments.isolate import failed, isolated
from fathom.machine.host import usable_cores

PARALLEL = ("deepq", "seq2seq", "memnet")  # the three whose parallelism the paper's Fig. 6 shows
STEPS = 200  # timed in one run, at most
BUDGET_S = 6.0  # for the timed steps of one run on all devices together
SWEEP_BUDGET_S = 2.0  # for one run at a number of threads, where the op rows are what is asked for


def plan(names: Sequence[str], preset: str, devices: Sequence[str]) -> list[RunSpec]:
    """Each workload in both phases on each device; and the three of Fig. 6 at 1, 2, 4, ... CPU threads.

    Beside an accelerator the CPU runs the small preset, as published batches would take it hours: what is compared
    is time per item.
    """
    chosen = list(names) or plugins.names("workloads")
    for name in chosen:
        plugins.check("workloads", name)
    specs: list[RunSpec] = []
    for device in sorted(devices, key=lambda name: name == "cpu"):  # accelerators first: they tell more in less time
        fitting = "small" if device == "cpu" and len(devices) > 1 and preset == "paper" else preset
        base = RunSpec(
            workload="",
            preset=fitting,
            device=device,
            steps=STEPS,
            budget_s=BUDGET_S / len(devices),
            kind="profiled",
        )
        specs += [replace(base, workload=name, phase=phase) for name in chosen for phase in PHASES]
        if device == "cpu":
            specs += [
                replace(base, workload=name, threads=threads, budget_s=SWEEP_BUDGET_S)
                for name in chosen
                if name in PARALLEL
                for threads in powers_of_two(usable_cores())
            ]
    return specs


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... and the most itself."""
    return sorted({1 << power for power in range(most.bit_length())} | {most})


def conduct(
    specs: Sequence[RunSpec],
    store: Store,
    watch: Callable[[int, RunSpec], Progress],
    run: Callable[[RunSpec, Progress], Record] = isolated,
    wait: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Record, Path]]:
    """Runs each spec in a process of its own and keeps its record at once; a failure is a record too.

    Several may conduct into one folder: they take turns, as runs side by side would slow each other, and what one
    has measured the others do not measure again. wait() is called where somebody else has the turn.
    """
    for index, spec in enumerate(specs):
        with store.turn(wait):
            found = store.take(spec) or _kept(_run(spec, watch(index, spec), run), store)
        yield found


def _run(spec: RunSpec, progress: Progress, run: Callable[[RunSpec, Progress], Record]) -> Record:
    try:
        return run(spec, progress)
    except FathomError as error:
        return failed(spec, str(error))


def _kept(record: Record, store: Store) -> tuple[Record, Path]:
    """A folder that takes no record ends the study: what is measured after it would be lost as well."""
    try:
        return record, store.add(record)
    except FathomError as error:
        raise BadOption(f"{error}; this run is lost, those before it are kept: run it again to go on") from None
