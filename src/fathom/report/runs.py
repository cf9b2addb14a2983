"""The runs of a report: the headline, every run, failed runs, losses and outputs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fathom.analysis.finding import Cell, Table
from fathom.analysis.losses import FALLS, NO_TREND, RISES, SIGNIFICANT, TOO_FEW, Trend, trend
from fathom.analysis.selection import on_cpu, workload_order
from fathom.analysis.step_time import bounds_in_words, levels_in_words, step_time, throughput
from fathom.core import formatting
from fathom.core.record import Record
from fathom.report.method import outside_percent

# runs that differ in these are not pooled
COMPARED = (
    *("preset", "precision", "engine", "batch", "data", "options", "power_cap_w", "clock_cap_mhz"),
    *("ranks", "nodes", "strategy", "strategy_options", "scaling", "slow_rank", "slow_link", "cores"),
)
SETTINGS = (*COMPARED, "threads", "seed")  # repetitions and sweeps may differ in the last two
OK = "ok"  # the outcome of a run that succeeded
DISTURBED = "disturbed"  # the column of what disturbed a run, and the outcome of one that has only disturbed runs
NO_HEADLINE = "No run has timed steps."
MOST_DESCRIBED = 8  # runs whose losses are told one by one


@dataclass(frozen=True, kw_only=True)
class Losses:
    workload: str
    machine: str
    values: list[float]

    @property
    def trend(self) -> Trend:
        return trend(self.values)

    @property
    def alarming(self) -> bool:
        return self.trend == RISES

    @property
    def described(self) -> str:
        """speech on a CPU (239 to 494 in 7 steps)"""
        first, last = (formatting.number(value) for value in (self.values[0], self.values[-1]))
        return f"{self.workload} on {self.machine} ({first} to {last} in {formatting.count(len(self.values), 'step')})"


@dataclass(frozen=True, kw_only=True)
class Outputs:
    workload: str
    machine: str
    texts: list[str]


def common_settings(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The settings that all runs share, shown once above the tables."""
    shared = {name: next(iter(values)) for name, values in _settings(records, SETTINGS).items() if len(values) == 1}
    return [(name, str(value)) for name, value in shared.items() if value is not None]


def unbound(records: Sequence[Record]) -> list[Record]:
    """Without runs bound to some of the cores, or of several ranks, where there are others: they have own findings."""
    return [record for record in records if not (record.spec.cores or record.spec.ranks)] or list(records)


def timed(records: Sequence[Record]) -> list[Record]:
    """Without training runs, trials of engines, feeding and collective operations: these have findings of their own."""
    return [
        record for record in _without_trials(records) if record.spec.kind not in ("training", "feed", "collectives")
    ]


def _without_trials(records: Sequence[Record]) -> list[Record]:
    """A trial compares losses and outputs of two engines; what a workload gives is shown of its plain runs."""
    return [record for record in records if record.spec.kind != "trial"]


def headline(records: Sequence[Record]) -> Table:
    """One row for each workload, machine and phase, and for each setting where they differ; repetitions are pooled."""
    records = unbound(timed(records))
    differing = _differing(records, COMPARED)
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for record in records:
        settings = [_setting(record, name) for name in differing]
        groups.setdefault((record.spec.workload, record.machine_label, record.spec.phase, *settings), []).append(record)
    columns = ["workload", "machine", "phase", *differing, "items/step", "step (ms)", "95 % interval (ms)"]
    columns += ["items/s", "outcome"]
    ordered = sorted((own for group in groups.values() for own in _by_items(group)), key=lambda own: _order(own[0]))
    rows = [_headline_row(_with_most_threads(group), differing) for group in ordered]
    return Table(title="Speed of every workload", columns=columns, rows=rows, alarms=_alarms(columns, rows))


def _by_items(group: Sequence[Record]) -> list[list[Record]]:
    """By batch, which no setting names for a user's model; a run that does not know its own stands with the first."""
    sizes = list(dict.fromkeys(record.items_per_step or 0 for record in group))
    first = next(filter(None, sizes), 0)
    return [own for size in sizes if (own := [run for run in group if (run.items_per_step or first) == size])]


def every_run(records: Sequence[Record]) -> Table:
    """One row per record, with the profiler's slowdown and its notes; a column that no run fills is left out."""
    differing = _differing(records, SETTINGS)
    columns = ["workload", "machine", "phase", *differing, "items/step", "steps", "step (ms)", "profiled/unprofiled"]
    columns += ["outside ops (%)", "first step (ms)", "setup (s)", "host memory (GiB)", "device memory (GiB)"]
    rows = [_run_row(record, differing) for record in sorted(records, key=_order)]
    return _without_empty("Every run", [*columns, "outcome", DISTURBED, "record", "notes"], rows)


def trust(records: Sequence[Record]) -> str:
    """How many of the runs that succeeded are to be trusted, for the top of a report."""
    if not records:
        return "No workload was run."  # a report on framework records alone
    succeeded = [record for record in records if record.outcome == OK]
    disturbed = sum(record.disturbed for record in succeeded)
    unknown = sum(not record.disturbed and not record.disturbance.known for record in succeeded)
    if not any(record.disturbance.known for record in succeeded):
        return _unchecked(len(succeeded), disturbed)
    checked = len(succeeded) - unknown
    text = f"{checked - disturbed} of {formatting.count(checked, 'run')} {_was(checked)} undisturbed."
    if 2 * disturbed > checked:
        text += " Most were disturbed: run them again when the machine is quiet."
    return text + (f" {unknown} more {_was(unknown)} not checked." if unknown else "")


def _unchecked(succeeded: int, disturbed: int) -> str:
    """Of records without counters of the system: a run that is seen to be disturbed says nothing of the others."""
    if not succeeded:
        return "No run succeeded."
    if not disturbed:
        return "No run was checked for disturbance."
    others = succeeded - disturbed
    rest = f" The other {others} {_was(others)} not checked." if others else ""
    return f"{disturbed} of {formatting.count(succeeded, 'run')} {_was(disturbed)} disturbed.{rest}"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def failed(records: Sequence[Record]) -> Table:
    rows: list[list[Cell]] = [
        [
            record.spec.workload,
            record.spec.phase,
            record.machine_label,
            record.reason,
            formatting.moment(record.started),
            record.id,
        ]
        for record in records
        if record.outcome != "ok"
    ]
    return Table(
        title="Failed runs", columns=["workload", "phase", "machine", "reason", "started", "record"], rows=rows
    )


def losses(records: Sequence[Record]) -> list[Losses]:
    """The losses of the longest training run of each workload and machine."""
    longest: dict[tuple[str, str], list[float]] = {}
    for record in sorted(unbound(_without_trials(records)), key=_order):
        key = (record.spec.workload, record.machine_label)
        if record.outcome == "ok" and len(record.losses) > max(1, len(longest.get(key, []))):
            longest[key] = record.losses
    return [Losses(workload=workload, machine=machine, values=each) for (workload, machine), each in longest.items()]


def losses_in_words(records: Sequence[Record]) -> str:
    """In how many training runs the loss falls, which others there are, and the rule that says so."""
    training = [record for record in sorted(_without_trials(records), key=_order) if record.outcome == OK]
    every = [
        Losses(workload=record.spec.workload, machine=record.machine_label, values=record.losses)
        for record in training
        if len(record.losses) > 1
    ]
    if not every:
        return ""
    trends = [each.trend for each in every]
    sentences = [f"The loss falls in {trends.count(FALLS)} of {len(every)} training runs."]
    for kind, heading in ((RISES, "It rises"), (NO_TREND, "No significant trend"), (TOO_FEW, "Too few steps to tell")):
        if own := [each for each, trend in zip(every, trends, strict=True) if trend == kind]:
            sentences.append(f"{heading}: {_named(own)}.")
    return " ".join(
        [
            *sentences,
            "A trend is a rank correlation (Kendall's) of loss and step number with p below "
            f"{SIGNIFICANT:g}. These are the first steps of an untrained network, each with another batch, and the "
            "first updates may raise a loss before it falls: `fathom learn` shows whether a workload learns.",
        ]
    )


def _named(found: Sequence[Losses]) -> str:
    """Each with its numbers where they are few, else how many there are of each workload."""
    if len(found) <= MOST_DESCRIBED:
        return "; ".join(each.described for each in found)
    counts = Counter(f"{each.workload} on {each.machine}" for each in found)
    return "; ".join(f"{name} ({formatting.count(many, 'run')})" for name, many in counts.items())


def outputs(records: Sequence[Record]) -> list[Outputs]:
    """The first outputs of inference for each workload and machine; machines with equal outputs are listed together."""
    first: dict[tuple[str, str], tuple[str, ...]] = {}
    for record in sorted(_without_trials(records), key=_order):
        if record.outcome == "ok" and record.answers:
            first.setdefault((record.spec.workload, record.machine_label), tuple(record.answers))
    machines: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (workload, machine), texts in first.items():
        machines.setdefault((workload, texts), []).append(machine)
    return [
        Outputs(workload=name, machine=" and ".join(own), texts=list(texts)) for (name, texts), own in machines.items()
    ]


def _settings(records: Sequence[Record], names: Sequence[str]) -> dict[str, dict[Cell, None]]:
    """The different values of each setting, in the order of first sight."""
    return {name: dict.fromkeys(_setting(record, name) for record in records) for name in names}


def _differing(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    return [name for name, values in _settings(records, names).items() if len(values) > 1]


def _setting(record: Record, name: str) -> Cell:
    value = getattr(record.spec, name)
    if name in ("options", "strategy_options"):
        value = ", ".join(f"{key}={item}" for key, item in value.items()) or None
    elif name in ("slow_rank", "slow_link") and value:
        value = "rank {}, {:g} times as long".format(*value)
    elif (name == "scaling" and record.spec.ranks == 1) or (name == "nodes" and value == 1):
        value = None  # one rank begins a series of either kind, and one node is as good as none
    elif name == "data":
        value = value or ("synthetic" if record.spec.source == "workload" else None)
    elif name == "threads" and value is None and record.device == "cpu":
        value = record.machine.cpu.threads
    shown: Cell = value
    return shown


def _with_most_threads(group: Sequence[Record]) -> list[Record]:
    """Of a sweep over threads, the runs with the machine's default, or else the most; if bound, with a core each."""
    bound = len(group[0].spec.cores or ())
    group = [record for record in group if not bound or (record.spec.threads or 0) <= bound] or group
    threads = [record.spec.threads or math.inf for record in group]
    return [record for record, own in zip(group, threads, strict=True) if own == max(threads)]


def _order(record: Record) -> tuple[object, ...]:
    """Workloads as the paper lists them, CPUs before accelerators, training before inference; ranks by their number."""
    workload, spec = workload_order(record.spec.workload), record.spec
    options = str(sorted(spec.strategy_options.items()))
    job = (spec.strategy or "", spec.batch or 0, spec.ranks, options) if spec.ranks else ("", 0, 0, "")
    return workload, not on_cpu(record), record.machine_label, spec.phase != "train", job, record.started


def _headline_row(repetitions: Sequence[Record], differing: Sequence[str]) -> list[Cell]:
    good = [record for record in repetitions if record.outcome == "ok" and record.step_s]
    disturbed = bool(good) and all(record.disturbed for record in good)
    good = [record for record in good if disturbed or not record.disturbed]
    step = step_time(good) if good else None
    items = good[0].items_per_step if good else None
    first, wrong = repetitions[0], sum(record.outcome != "ok" for record in repetitions)
    return [
        *(first.spec.workload, first.machine_label, first.spec.phase),
        *(_setting(first, name) for name in differing),
        items,
        1000 * step.median if step else None,
        bounds_in_words(step, good) if step else None,
        throughput(good),
        ", ".join([DISTURBED] * disturbed + [_failures(wrong, len(repetitions))] * (wrong > 0)) or OK,
    ]


def _failures(failed: int, runs: int) -> str:
    return "failed" if failed == runs else f"{failed} of {runs} failed"


def _run_row(record: Record, differing: Sequence[str]) -> list[Cell]:
    sections, profile = record.sections, record.profile
    notes = [*record.notes, *(profile.notes if profile else []), *filter(None, [levels_in_words(record)])]
    return [
        *(record.spec.workload, record.machine_label, record.spec.phase),
        *(_setting(record, name) for name in differing),
        record.items_per_step,
        len(record.step_s) or None,
        1000 * step_time([record]).median if record.step_s else None,
        profile.slowdown if profile else None,
        outside_percent(profile),
        None if sections.first_step_s is None else 1000 * sections.first_step_s,
        sections.setup_s,
        None if record.peak_host_bytes is None else record.peak_host_bytes / 2**30,
        None if record.peak_device_bytes is None else record.peak_device_bytes / 2**30,
        record.outcome,
        "; ".join(record.disturbances) or None,
        record.id,
        "; ".join(notes) or None,
    ]


def _without_empty(title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    kept = [index for index in range(len(columns)) if any(row[index] is not None for row in rows)]
    names, filled = [columns[index] for index in kept], [[row[index] for index in kept] for row in rows]
    return Table(title=title, columns=names, rows=filled, alarms=_alarms(names, filled))


def _alarms(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[tuple[int, int]]:
    """The cells of runs that failed or were disturbed."""
    expected = {"outcome": OK, DISTURBED: None}
    return [
        (row, column)
        for row, cells in enumerate(rows)
        for column, name in enumerate(columns)
        if name in expected and cells[column] != expected[name]
    ]
