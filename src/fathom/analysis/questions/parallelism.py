"""Which ops scale with threads, and which limit a step? Answers Fig. 6 of the 2016 paper.

Amdahl's law, t(n) = t(1) (s + (1 - s) / n), is fitted to the times of each op type; s is its serial fraction.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.equal_work import Work, work_of
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.scaling_law import serial_fraction_of_times
from fathom.analysis.selection import (
    Key,
    RunGroup,
    completeness,
    configuration,
    counted_threads,
    machine_name,
    on_cpu,
    op_type,
    select,
    summarised,
    usable,
    workload_order,
)
from fathom.core.formatting import count, in_percent, least_and_most, listed, mean_and_range
from fathom.core.record import OpRow, Record
from fathom.core.spec import PHASES

TITLE = "Which ops scale with threads?"
ORDER = 90
LEAST_PERCENT = 1.0  # ops that reach it at no thread count are not listed
DRAWN = 12
PUBLISHED_CORES = 4  # of the guide's machine: beyond them threads share a core
OPTIMIZER = "optimizer"  # the role of its ops


@dataclass(frozen=True)
class Sweep:
    """One configuration on one CPU at several thread counts."""

    workload: str
    phase: str
    machine: str
    at: dict[int, RunGroup]  # threads -> runs

    @property
    def name(self) -> str:
        return f"{self.workload} {self.phase} on {self.machine}"

    @property
    def work(self) -> Work | None:
        """What each of its steps does; None where the records do not say how many items that is."""
        return work_of(next(iter(self.at.values())).runs[0])

    @property
    def ends(self) -> tuple[int, int]:
        """The fewest threads and the most."""
        return min(self.at), max(self.at)

    @property
    def speedup(self) -> float:
        few, most = self.ends
        return self.at[few].step_s / self.at[most].step_s

    def times(self, key: Callable[[OpRow], Key]) -> dict[Key, dict[int, float]]:
        """Key -> threads -> seconds per step, for what takes 1 % of a step at some thread count; heaviest first."""
        found: dict[Key, dict[int, float]] = defaultdict(lambda: dict.fromkeys(self.at, 0.0))
        for threads, group in self.at.items():
            for name, seconds in group.seconds_by(key).items():
                found[name][threads] = seconds
        heavy = [
            name
            for name, seconds in found.items()
            if any(100 * seconds[threads] > LEAST_PERCENT * self.at[threads].step_s for threads in self.at)
        ]
        fewest = min(self.at)
        return {name: found[name] for name in sorted(heavy, key=lambda name: -found[name][fewest])}

    def step(self) -> dict[int, float]:
        return {threads: group.step_s for threads, group in self.at.items()}


def analyse(records: Sequence[Record]) -> Finding:
    records = [record for record in records if record.spec.kind != "trial"]  # these compare engines
    cpu = [record for record in records if on_cpu(record)]
    sweeps, notes = sweeps_of(cpu)
    if len(cpu) < len(records):
        notes.append(f"Not shown: {count(len(records) - len(cpu), 'run')} on other devices than a CPU.")
    single = [sweep for sweep in sweeps if len(sweep.at) == 1]
    if 0 < len(single) < len(sweeps):
        sweeps = [sweep for sweep in sweeps if len(sweep.at) > 1]
        runs = [run for sweep in single for group in sweep.at.values() for run in group.runs[:1]]
        notes.append(f"Not shown: measured at one thread count only: {summarised(runs, _phase_and_machine)}.")
    if not sweeps:
        return not_measured("parallelism", TITLE, "fathom study --device cpu", notes)
    return Finding(
        question="parallelism",
        title=TITLE,
        summary=_summary(sweeps),
        tables=[
            _fits(sweeps),
            *(_times_table(sweep) for sweep in sweeps),
            *_optimizer_tables(sweeps),
            _published_table(),
        ],
        charts=[_chart(sweep) for sweep in sweeps],
        notes=[*_notes(), *_unlike(sweeps), *notes],
    )


def threads_of(record: Record) -> int | None:
    """As the spec says, or torch's default on the machine."""
    return record.spec.threads or record.machine.cpu.threads


def sweeps_of(records: Sequence[Record]) -> tuple[list[Sweep], list[str]]:
    """Per workload, phase and machine the configuration with the most thread counts, and notes on the others."""
    known = [record for record in records if threads_of(record)]
    by_threads: dict[tuple[str, str, str], dict[str, dict[int, list[Record]]]] = defaultdict(dict)
    for record in known:
        key = (record.spec.workload, record.spec.phase, machine_name(record))
        free = str(dataclasses.replace(configuration(record), threads=None))  # as text, since options do not hash
        by_threads[key].setdefault(free, defaultdict(list))[threads_of(record) or 0].append(record)
    sweeps, swept, others = [], [], []
    for key, configurations in by_threads.items():
        chosen = max(configurations.values(), key=_coverage)
        others += [
            run for each in configurations.values() if each is not chosen for runs in each.values() for run in runs
        ]
        at = {}
        for threads in sorted(chosen):
            runs = _of_the_sweep(chosen[threads])
            swept += runs
            if groups := select(runs, profiled=True).groups:
                at[threads] = groups[0]
        if at:
            sweeps.append(Sweep(*key, at))
    _, notes = usable(swept, True, PHASES)
    if others:
        notes.append(f"Not shown: configurations with fewer thread counts: {summarised(others, _phase_and_machine)}.")
    if len(known) < len(records):
        notes.append(f"Not shown: {count(len(records) - len(known), 'run')} without a recorded thread count.")
    return sorted(sweeps, key=lambda sweep: (workload_order(sweep.workload), sweep.phase != "train")), notes


def _phase_and_machine(record: Record) -> str:
    return f"{record.spec.phase} on {machine_name(record)}"


def _of_the_sweep(runs: Sequence[Record]) -> list[Record]:
    """At one thread count, the runs whose spec names it: a run with the default count may be of another day."""
    asked = [run for run in runs if run.spec.threads is not None and run.outcome == "ok" and run.profile]
    return asked or list(runs)


def _coverage(runs: Mapping[int, Sequence[Record]]) -> tuple[object, ...]:
    """Large for the configuration that was profiled at most thread counts, then for the most complete one."""
    profiled = sum(any(run.outcome == "ok" and run.profile for run in each) for each in runs.values())
    return profiled, max(completeness(record) for each in runs.values() for record in each)


def _summary(sweeps: Sequence[Sweep]) -> str:
    if len(sweeps[0].at) == 1:
        counts = sorted({threads for sweep in sweeps for threads in sweep.at})
        return (
            f"Only one thread count was measured per workload ({listed(list(map(str, counts)))}). Run "
            "`fathom run WORKLOAD --profile --threads N` at two or more thread counts."
        )
    serial = least_and_most(
        {sweep.name: 100 * (serial_fraction_of_times(sweep.step()) or 0.0) for sweep in sweeps}, ".0f", " %"
    )
    sentences = [*_speedups(sweeps), f"Amdahl serial fraction: {serial}."]
    growth, sentence, _ = max(_growth(sweep) for sweep in sweeps)
    sentences += [sentence] if growth >= 1 else []
    return " ".join([*sentences, *_basis(sweeps)])


def _basis(sweeps: Sequence[Sweep]) -> list[str]:
    """No interval is given; of single launches nothing is known of how the next one differs."""
    single = [len(group.profiles) == 1 for sweep in sweeps for group in sweep.at.values()]
    which = "each thread count" if all(single) else "some thread counts"
    return [f"One launch of {which}: nothing is said of the next one."] if any(single) else []


def _speedups(sweeps: Sequence[Sweep]) -> list[str]:
    """A sentence for each machine and range of threads: speed-ups from 1 to 2 and from 1 to 16 have no common range."""
    groups: dict[tuple[str, int, int], dict[str, float]] = defaultdict(dict)
    for sweep in sweeps:
        if len(sweep.at) > 1:
            groups[sweep.machine, *sweep.ends][f"{sweep.workload} {sweep.phase}"] = sweep.speedup
    return [
        f"From {few} to {most} threads on {machine}, a step is {' times as fast '.join(mean_and_range(speedups))}."
        for (machine, few, most), speedups in groups.items()
    ]


def _unlike(sweeps: Sequence[Sweep]) -> list[str]:
    """A note on the workloads whose sweeps are not of the same work on all machines."""
    works: dict[tuple[str, str], dict[Work, list[str]]] = defaultdict(lambda: defaultdict(list))
    for sweep in sweeps:
        if work := sweep.work:
            works[sweep.workload, sweep.phase][work].append(sweep.machine)
    parts = [
        f"{workload} {phase}: "
        + "; ".join(f"{work.preset} with {work.items} items per step on {listed(where)}" for work, where in own.items())
        for (workload, phase), own in works.items()
        if len(own) > 1
    ]
    return (
        [f"Different work on different machines, so their times are not comparable: {'. '.join(parts)}."]
        if parts
        else []
    )


def _growth(sweep: Sweep) -> tuple[float, str, str]:
    """The op type whose share of the step grows most with threads: by how many points, as a sentence, and its name."""
    step, (few, most) = sweep.step(), sweep.ends
    shares = {
        kind: (100 * times[few] / step[few], 100 * times[most] / step[most])
        for kind, times in sweep.times(op_type).items()
    }
    if not shares:  # nearly all of the step is outside ops
        return 0.0, "", ""
    kind = max(shares, key=lambda kind: shares[kind][1] - shares[kind][0])
    before, after = shares[kind]
    change = f"from {before:.0f} % to {after:.0f} % ({counted_threads(few)} to {most}, {sweep.name})"
    return after - before, f"The share of {kind} grows most: {change}.", kind


def _fits(sweeps: Sequence[Sweep]) -> Table:
    rows: list[list[Cell]] = []
    for sweep in sweeps:
        few, most = sweep.ends
        step = sweep.step()
        for kind, times in {"whole step": step, **sweep.times(op_type)}.items():
            share = serial_fraction_of_times(times)
            rows.append(
                [
                    sweep.workload,
                    sweep.phase,
                    sweep.machine,
                    sweep.work.preset if sweep.work else None,
                    sweep.work.items if sweep.work else None,
                    kind,
                    ", ".join(map(str, sweep.at)),
                    100 * times[few] / step[few],
                    100 * times[most] / step[most],
                    times[few] / times[most] if len(times) > 1 and times[most] > 0 else None,
                    in_percent(share),
                ]
            )
    return Table(
        title="Amdahl serial fraction of each op type",
        columns=[
            "workload",
            "phase",
            "machine",
            "preset",
            "items per step",
            "op type",
            "threads",
            "share of step, fewest threads (%)",
            "share of step, most threads (%)",
            "speed-up, fewest to most",
            "serial fraction (%)",
        ],
        rows=rows,
    )


def _times_table(sweep: Sweep) -> Table:
    rows: list[list[Cell]] = []
    for (kind, role), times in sweep.times(_type_and_role).items():
        share = serial_fraction_of_times(times)
        milliseconds: list[Cell] = [1000 * seconds for seconds in times.values()]
        rows.append([kind, role, *milliseconds, in_percent(share)])
    counts = [f"{counted_threads(threads)} (ms)" for threads in sweep.at]
    return Table(
        title=f"Time per step of {sweep.name}",
        columns=["op type", "role", *counts, "serial fraction (%)"],
        rows=rows,
    )


def _chart(sweep: Sweep) -> Chart:
    """The slowest ops at the fewest threads, and the one that scales worst, which may be fast there."""
    found = sweep.times(_type_and_role)
    _, _, worst = _growth(sweep)
    heaviest = list(found)[:DRAWN]
    times = {key: seconds for key, seconds in found.items() if key in heaviest or key[0] == worst}
    names = [f"{kind}, {role}" for kind, role in times]
    return Chart(
        kind="bar",
        title=f"Time per op type and role: {sweep.name}",
        x_title="op type, role",
        y_title="time per step (ms)",
        unit="ms",
        series=[
            Series(
                name=counted_threads(threads),
                x=names,
                y=[1000 * seconds[threads] for seconds in times.values()],
            )
            for threads in sweep.at
        ],
        note=f"{len(names)} of {len(found)} ops: the slowest {_threads_word(min(sweep.at))} and the worst-scaling."
        if len(names) < len(found)
        else "",
    )


def _threads_word(threads: int) -> str:
    return "single-threaded" if threads == 1 else f"with {counted_threads(threads)}"


def _type_and_role(row: OpRow) -> tuple[str, str]:
    return row.type, row.role


def _optimizer_tables(sweeps: Sequence[Sweep]) -> list[Table]:
    """The optimizer's share where the paper's text gives it for its Fig. 6; no table without such a workload."""
    tables = []
    for workload, printed in published.OPTIMIZER_PERCENT.items():
        rows: list[list[Cell]] = []
        for sweep in sweeps:
            if (sweep.workload, sweep.phase) == (workload, "train"):
                measured = {
                    n: group.percent_by(lambda row: row.role).get(OPTIMIZER, 0.0) for n, group in sweep.at.items()
                }
                counts = sorted({*measured, *printed})
                rows += [[sweep.machine, threads, measured.get(threads), printed.get(threads)] for threads in counts]
        columns = ["machine", "threads", "measured (% of step)", "published (%)"]
        title = f"The optimizer in a training step of {workload}"
        tables += [Table(title=title, columns=columns, rows=rows)] if rows else []
    return tables


def _published_table() -> Table:
    rows: list[list[Cell]] = []
    for framework, times in published.thread_seconds().items():
        share = serial_fraction_of_times(
            {threads: value for threads, value in times.items() if threads <= PUBLISHED_CORES}
        )
        seconds: list[Cell] = [times.get(threads) for threads in (1, 2, 4, 8)]
        rows.append([framework, *seconds, in_percent(share)])
    return Table(
        title="Published: seconds for a minibatch of 64, fully connected network on 4 cores",
        columns=["framework", "1 thread (s)", "2 threads (s)", "4 threads (s)", "8 threads (s)", "serial fraction (%)"],
        rows=rows,
    )


def _notes() -> list[str]:
    optimizer = listed(
        [
            f"{percent:.0f} % of the step of {workload} at {threads} threads"
            for workload, printed in published.OPTIMIZER_PERCENT.items()
            for threads, percent in printed.items()
        ]
    )
    return [
        "Where a thread count is both set by a spec and the machine's default, the runs that set it are shown.",
        "The serial fraction s is fitted by least squares, t(n) = t(1) (s + (1 - s) / n), and lies between 0 and 1; "
        "t(1) is the measured time, or is fitted too where there is none. An op that becomes slower with threads has "
        "s = 1.",
        f"Published: Fig. 6 of {published.FATHOM}, a figure without printed numbers. For the optimizer its text gives "
        f"about {optimizer}.",
        f"Published thread scaling: {published.SOURCES['guide_table1_threads']}. Its serial fraction is fitted here to "
        f"the times at up to {PUBLISHED_CORES} threads.",
    ]
