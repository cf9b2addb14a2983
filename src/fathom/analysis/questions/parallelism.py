"""Which ops gain from more threads, and which hold a step back? Answers Fig. 6 of the 2016 paper.

Amdahl's law, t(n) = t(1) (s + (1 - s) / n), is fitted to the times of each op type; s is its serial share.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.questions._words import in_percent, least_and_most, unanswered
from fathom.analysis.selection import (
    Key,
    RunGroup,
    completeness,
    configuration,
    counted_threads,
    on_cpu,
    op_type,
    select,
    where,
    workload_order,
)
from fathom.core.record import OpRow, Record

TITLE = "Which ops gain from more threads?"
LEAST_PERCENT = 1.0  # ops that reach it at no thread count are not listed
DRAWN = 12
PUBLISHED_DEEPQ_THREADS = 8  # at which the paper's text tells the optimizer's share
PUBLISHED_CORES = 4  # of the guide's machine: beyond them threads share a core


@dataclass(frozen=True)
class Sweep:
    """One configuration on one CPU at several thread counts."""

    workload: str
    phase: str
    place: str
    at: dict[int, RunGroup]  # threads -> runs

    @property
    def name(self) -> str:
        return f"{self.workload} {self.phase} on {self.place}"

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
        for threads, setting in self.at.items():
            for name, seconds in setting.seconds_by(key).items():
                found[name][threads] = seconds
        heavy = [
            name
            for name, seconds in found.items()
            if any(100 * seconds[threads] > LEAST_PERCENT * self.at[threads].step_s for threads in self.at)
        ]
        fewest = min(self.at)
        return {name: found[name] for name in sorted(heavy, key=lambda name: -found[name][fewest])}

    def step(self) -> dict[int, float]:
        return {threads: setting.step_s for threads, setting in self.at.items()}


def analyse(records: Sequence[Record]) -> Finding:
    cpu = [record for record in records if on_cpu(record)]
    sweeps, notes = sweeps_of(cpu)
    if len(cpu) < len(records):
        notes.append(f"Left out, as threads are the CPU's: {len(records) - len(cpu)} runs on other devices.")
    single = [sweep for sweep in sweeps if len(sweep.at) == 1]
    if 0 < len(single) < len(sweeps):
        sweeps = [sweep for sweep in sweeps if len(sweep.at) > 1]
        notes.append(f"Left out, at one thread count only: {', '.join(sweep.name for sweep in single)}.")
    if not sweeps:
        return unanswered("parallelism", TITLE, "no run on a CPU with a profile and a known thread count", notes)
    return Finding(
        question="parallelism",
        title=TITLE,
        summary=_summary(sweeps),
        tables=[_fits(sweeps), *(_times_table(sweep) for sweep in sweeps), *_deepq_tables(sweeps), _published_table()],
        charts=[_chart(sweep) for sweep in sweeps],
        notes=[*_notes(), *notes],
    )


def serial_share(times: Mapping[int, float]) -> float | None:
    """Amdahl's s from threads -> seconds, between 0 and 1; None from a single thread count.

    With a = t(1) s and b = t(1) (1 - s) the law is a + b / n: least squares, in which neither may be negative.
    """
    if len(times) < 2:
        return None
    law = np.array([[1.0, 1.0 / threads] for threads in times])
    (serial, parallel), _ = nnls(law, np.array(list(times.values())))
    return float(serial / (serial + parallel)) if serial + parallel > 0 else None


def threads_of(record: Record) -> int | None:
    """As asked for, or as the machine chose."""
    return record.spec.threads or record.machine.cpu.threads


def sweeps_of(records: Sequence[Record]) -> tuple[list[Sweep], list[str]]:
    """Per workload, phase and place the configuration with the most thread counts, and notes on what is left out."""
    known = [record for record in records if threads_of(record)]
    by_threads: dict[tuple[str, str, str], dict[str, dict[int, list[Record]]]] = defaultdict(dict)
    for record in known:
        key = (record.spec.workload, record.spec.phase, where(record))
        free = str(dataclasses.replace(configuration(record), threads=None))  # as text, since options do not hash
        by_threads[key].setdefault(free, defaultdict(list))[threads_of(record) or 0].append(record)
    sweeps, notes = [], []
    for (workload, phase, place), configurations in by_threads.items():
        chosen = max(configurations.values(), key=_coverage)
        if len(configurations) > 1:
            notes.append(f"Of {workload} {phase} on {place}, one configuration of {len(configurations)} is shown.")
        at = {}
        for threads in sorted(chosen):
            selection = select(_of_the_sweep(chosen[threads]), profiled=True)
            notes += selection.notes
            if selection.settings:
                at[threads] = selection.settings[0]
        if at:
            sweeps.append(Sweep(workload, phase, place, at))
    if len(known) < len(records):
        notes.append(f"Left out, thread count not recorded: {len(records) - len(known)} runs.")
    return sorted(sweeps, key=lambda sweep: (workload_order(sweep.workload), sweep.phase != "train")), notes


def _of_the_sweep(runs: Sequence[Record]) -> list[Record]:
    """Of runs at one thread count those that asked for it: a run by default may be of another day than the sweep."""
    asked = [run for run in runs if run.spec.threads is not None and run.outcome == "ok" and run.profile]
    return asked or list(runs)


def _coverage(runs: Mapping[int, Sequence[Record]]) -> tuple[object, ...]:
    """Large for the configuration that was run at most thread counts, then for the fullest one."""
    return len(runs), max(completeness(record) for each in runs.values() for record in each)


def _summary(sweeps: Sequence[Sweep]) -> str:
    if len(sweeps[0].at) == 1:
        counts = sorted({threads for sweep in sweeps for threads in sweep.at})
        told = " or ".join(map(str, counts))
        return (
            f"Only one thread count was measured for each workload ({told}), so how ops scale cannot be told; "
            "run them again with --threads 1, 2, 4 and so on."
        )
    gain = least_and_most({sweep.name: sweep.speedup for sweep in sweeps}, ".2f")
    serial = least_and_most({sweep.name: 100 * (serial_share(sweep.step()) or 0.0) for sweep in sweeps}, ".0f")
    text = f"Speedup of a step from the fewest threads to the most: {gain}; its serial share in percent: {serial}."
    growth, told, _ = max(_growth(sweep) for sweep in sweeps)
    return f"{text} {told}" if growth >= 1 else text


def _growth(sweep: Sweep) -> tuple[float, str, str]:
    """The op type whose share of the step grows most with threads: by how many points, in words, and its name."""
    step, (few, most) = sweep.step(), sweep.ends
    shares = {
        kind: (100 * times[few] / step[few], 100 * times[most] / step[most])
        for kind, times in sweep.times(op_type).items()
    }
    kind = max(shares, key=lambda kind: shares[kind][1] - shares[kind][0])
    before, after = shares[kind]
    told = f"Most left behind is {kind} in {sweep.name}: {before:.0f} % at {few}, {after:.0f} % at {most} threads."
    return after - before, told, kind


def _fits(sweeps: Sequence[Sweep]) -> Table:
    rows: list[list[Cell]] = []
    for sweep in sweeps:
        few, most = sweep.ends
        step = sweep.step()
        for kind, times in {"whole step": step, **sweep.times(op_type)}.items():
            share = serial_share(times)
            rows.append(
                [
                    sweep.workload,
                    sweep.phase,
                    sweep.place,
                    kind,
                    ", ".join(map(str, sweep.at)),
                    100 * times[few] / step[few],
                    100 * times[most] / step[most],
                    times[few] / times[most] if len(times) > 1 and times[most] > 0 else None,
                    in_percent(share),
                ]
            )
    return Table(
        title="Amdahl's serial share of each op type",
        columns=[
            "workload",
            "phase",
            "place",
            "op type",
            "threads",
            "share of step, fewest threads (%)",
            "share of step, most threads (%)",
            "speedup, fewest to most",
            "serial share (%)",
        ],
        rows=rows,
    )


def _times_table(sweep: Sweep) -> Table:
    rows: list[list[Cell]] = []
    for (kind, role), times in sweep.times(_type_and_role).items():
        share = serial_share(times)
        milliseconds: list[Cell] = [1000 * seconds for seconds in times.values()]
        rows.append([kind, role, *milliseconds, in_percent(share)])
    counts = [f"{counted_threads(threads)} (ms)" for threads in sweep.at]
    return Table(
        title=f"Time per step of {sweep.name}",
        columns=["op type", "role", *counts, "serial share (%)"],
        rows=rows,
    )


def _chart(sweep: Sweep) -> Chart:
    """The heaviest ops at the fewest threads, and the one most left behind, which may be light there."""
    found = sweep.times(_type_and_role)
    _, _, behind = _growth(sweep)
    heaviest = list(found)[:DRAWN]
    times = {key: seconds for key, seconds in found.items() if key in heaviest or key[0] == behind}
    names = [f"{kind}, {role}" for kind, role in times]
    return Chart(
        kind="bar",
        title=f"Time per op type and role: {sweep.name}",
        x_title="op type, role",
        y_title="time per step (ms)",
        series=[
            Series(
                name=counted_threads(threads),
                x=names,
                y=[1000 * seconds[threads] for seconds in times.values()],
            )
            for threads in sweep.at
        ],
        note=f"The {len(names)} of {len(found)} that are heaviest at the fewest threads or most left behind."
        if len(names) < len(found)
        else "",
    )


def _type_and_role(row: OpRow) -> tuple[str, str]:
    return row.type, row.role


def _deepq_tables(sweeps: Sequence[Sweep]) -> list[Table]:
    """The one number that the paper's text gives for its Fig. 6, beside ours; no table without deepq."""
    rows: list[list[Cell]] = []
    for sweep in sweeps:
        if (sweep.workload, sweep.phase) != ("deepq", "train"):
            continue
        for threads in sorted({*sweep.at, PUBLISHED_DEEPQ_THREADS}):
            ours = (
                sweep.at[threads].percent_by(lambda row: row.role).get("optimizer", 0.0)
                if threads in sweep.at
                else None
            )
            theirs = published.DEEPQ_OPTIMIZER_PERCENT if threads == PUBLISHED_DEEPQ_THREADS else None
            rows.append([sweep.place, threads, ours, theirs])
    columns = ["place", "threads", "ours (% of step)", "published (%)"]
    return [Table(title="The optimizer in a training step of deepq", columns=columns, rows=rows)] if rows else []


def _published_table() -> Table:
    rows: list[list[Cell]] = []
    for framework, times in published.thread_seconds().items():
        share = serial_share({threads: value for threads, value in times.items() if threads <= PUBLISHED_CORES})
        seconds: list[Cell] = [times.get(threads) for threads in (1, 2, 4, 8)]
        rows.append([framework, *seconds, in_percent(share)])
    return Table(
        title="Published: seconds for a minibatch of 64, fully connected network on 4 cores",
        columns=["framework", "1 thread (s)", "2 threads (s)", "4 threads (s)", "8 threads (s)", "serial share (%)"],
        rows=rows,
    )


def _notes() -> list[str]:
    return [
        "Where a thread count was both asked for and the machine's own choice, the runs that asked for it are shown.",
        "The serial share s is fitted by least squares, t(n) = t(1) (s + (1 - s) / n), and lies between 0 and 1; an op "
        "that grows slower with threads has s = 1.",
        f"Published: Fig. 6 of {published.FATHOM}, a picture; its text says that deepq's optimizer rises to about "
        f"{published.DEEPQ_OPTIMIZER_PERCENT:.0f} % of the step at {PUBLISHED_DEEPQ_THREADS} threads.",
        f"Published thread scaling: {published.SOURCES['guide_table1_threads']}; its serial share is fitted here, to "
        f"the times at up to {PUBLISHED_CORES} threads.",
    ]
