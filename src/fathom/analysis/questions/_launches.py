"""Whole programs: which launches did the same work on one host, on its CPU alone and with its GPU."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fathom.analysis.finding import Cell
from fathom.analysis.selection import completeness, machine_name, on_cpu, summarised, usable, workload_order
from fathom.analysis.statistics import LEAST_LAUNCHES, Distribution, distribution
from fathom.core.formatting import listed
from fathom.core.record import Record
from fathom.core.spec import PHASES

SECTIONS = {"INIT": "init_s", "SETUP": "setup_s", "RUN": "run_s", "MAIN": "main_s", "WALL": "wall_s"}
PARTS = {"imports": "import_s", "GPU context": "context_s", "first step": "first_step_s"}
CPU, GPU = MODES = ("CPU", "CPU+GPU")  # as the Minsky study calls them


@dataclass(frozen=True)
class Launches:
    """One workload in one phase on one machine: programs that did the same work, one process each."""

    workload: str
    phase: str
    host: str  # its CPU, also where a GPU did the work
    machine: str  # what did the work: the CPU or the GPU
    runs: list[Record]

    @property
    def mode(self) -> str:
        return CPU if on_cpu(self.runs[0]) else GPU

    @property
    def steps(self) -> int:
        """Of one program, warm-up included; the middle one where a budget made them differ."""
        return statistics.median_low(len(run.warmup_s) + len(run.step_s) for run in self.runs)

    def seconds(self, section: str) -> list[float]:
        """One value per launch where it was measured; a wall time that includes another pass does not count."""
        unprofiled = [run for run in self.runs if section != "wall_s" or run.spec.kind == "timed"]
        values = [getattr(run.sections, section) for run in unprofiled]
        return [value for value in values if value is not None]

    def mean(self, section: str) -> float | None:
        values = self.seconds(section)
        return statistics.fmean(values) if values else None

    def distribution(self, section: str) -> Distribution | None:
        values = self.seconds(section)
        return distribution(values) if values else None


@dataclass(frozen=True)
class Work:
    """The same work of one workload on one host: same preset, batch, precision, options and steps in each mode."""

    modes: list[Launches]  # the CPU's first

    @property
    def workload(self) -> str:
        return self.modes[0].workload

    @property
    def phase(self) -> str:
        return self.modes[0].phase

    @property
    def host(self) -> str:
        return self.modes[0].host

    @property
    def cpu(self) -> Launches | None:
        return next((launches for launches in self.modes if launches.mode == CPU), None)

    @property
    def gpus(self) -> list[Launches]:
        return [launches for launches in self.modes if launches.mode == GPU]


def same_work(records: Sequence[Record]) -> tuple[list[Work], list[str]]:
    """Per workload, phase and host the work to compare, and notes on the runs that are not shown.

    Only runs of a fixed number of steps without a profiled pass: their wall time is that of the program alone.
    """
    sound, notes = usable(records, False, PHASES)
    groups: dict[tuple[str, str, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for run in sound:
        if run.sections.wall_s is not None and run.spec.kind == "timed" and run.spec.budget_s is None:
            work = replace(run.spec, device="auto", seed=0).id
            groups[run.spec.workload, run.spec.phase, host_of(run)][work].append(run)
    chosen, unlike, skipped = [], [], []
    for works in groups.values():
        best = max(works.values(), key=_priority)
        others = [run for runs in works.values() if runs is not best for run in runs]
        seen = {on_cpu(run) for run in best}
        skipped += [run for run in others if on_cpu(run) in seen]
        if lacking := [run for run in others if on_cpu(run) not in seen]:
            unlike.append(f"{_counted_work(lacking)} (the other mode: {_work(best[0])})")
        chosen.append(Work(launched(best)))
    if unlike:
        notes.append(f"Not compared, as the other mode did different work: {'; '.join(unlike)}.")
    if skipped:
        notes.append(
            f"Not shown: launches superseded by more complete or more often repeated ones: {_counted_work(skipped)}."
        )
    return sorted(chosen, key=_order), notes


def launched_often(works: Sequence[Work]) -> list[Work]:
    """What was launched often enough to state its variation: modes and works with fewer launches are left out."""
    enough = ([each for each in work.modes if len(each.runs) >= LEAST_LAUNCHES] for work in works)
    return [Work(modes) for modes in enough if modes]


def launched(runs: Iterable[Record]) -> list[Launches]:
    """Runs grouped by workload, phase and machine, CPUs first."""
    groups: dict[tuple[str, str, str, str], list[Record]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: not on_cpu(run)):
        groups[run.spec.workload, run.spec.phase, host_of(run), machine_name(run)].append(run)
    return [Launches(*key, own) for key, own in groups.items()]


def host_of(record: Record) -> str:
    """The label of the machine's CPU, also where a GPU did the work."""
    return replace(record, device="cpu").machine_label


def head(found: Sequence[Launches]) -> list[str]:
    """The first columns of a table of these; the machine is one of them where there are several hosts."""
    return ["workload", "phase", "mode", *(["machine"] if several_machines(found) else [])]


def identity(launches: Launches, found: Sequence[Launches]) -> list[Cell]:
    """The first cells of a row."""
    return [launches.workload, launches.phase, launches.mode, *([launches.machine] if several_machines(found) else [])]


def named(launches: Launches, found: Sequence[Launches]) -> str:
    """The workload, and what distinguishes it: the machine where there are several, else the mode."""
    several_modes = len({each.mode for each in found}) > 1
    apart = [launches.machine] if several_machines(found) else [launches.mode] if several_modes else []
    return ", ".join([launches.workload, *apart])


def measured_on(found: Sequence[Launches]) -> str:
    """A note that names the hosts and their GPUs."""
    hosts = []
    for host in dict.fromkeys(launches.host for launches in found):
        machines = dict.fromkeys(each.machine for each in found if (each.host, each.mode) == (host, GPU))
        hosts.append(f"{host}{' with ' if machines else ''}{listed(list(machines))}")
    return f"Measured on {'; '.join(hosts)}."


def drawn_phase(phases: Iterable[str]) -> str:
    """Charts show training, as the published ones do; inference where there is nothing else."""
    return "train" if "train" in set(phases) else "infer"


def several_machines(found: Sequence[Launches]) -> bool:
    """Whether the mode does not tell launches apart: there are several hosts, or several GPUs in one."""
    places = {(launches.mode, launches.machine) for launches in found}
    return len({launches.host for launches in found}) > 1 or len(places) > len({mode for mode, _ in places})


def _priority(runs: Sequence[Record]) -> tuple[object, ...]:
    """Large for work that was launched often; then in both modes, or else on the CPU; then the most complete."""
    counts = [sum(on_cpu(run) is mode for run in runs) for mode in (True, False)]
    *full, _ = max(map(completeness, runs))  # the last is when it started
    return max(counts) >= LEAST_LAUNCHES, all(counts), counts[0] > 0, full, len(runs)


def _counted_work(runs: Iterable[Record]) -> str:
    return summarised(runs, lambda run: f"{run.spec.phase} on {machine_name(run)}, {_work(run)}")


def _work(run: Record) -> str:
    spec = run.spec
    batch = "" if spec.batch is None else f" with batch {spec.batch}"
    return f"{spec.preset}{batch}, {spec.warmup + spec.steps} steps"


def _order(work: Work) -> tuple[object, ...]:
    return workload_order(work.workload), work.phase != "train", work.host
