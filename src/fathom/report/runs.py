"""What the runs of a report came to: the headline, every run, what failed, what was learnt and answered."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fathom.analysis.finding import Cell, Table
from fathom.analysis.questions.phases import settled_steps
from fathom.analysis.selection import on_cpu, workload_order
from fathom.analysis.statistics import median_interval
from fathom.core.record import Record
from fathom.report import words
from fathom.report.method import outside_percent

COMPARED = ("preset", "precision", "batch", "data", "options")  # runs that differ in these are different things
SETTINGS = (*COMPARED, "threads", "seed")  # repetitions and sweeps may differ in the last two
NO_HEADLINE = "No run was timed step by step."


@dataclass(frozen=True, kw_only=True)
class Learning:
    workload: str
    place: str
    losses: list[float]


@dataclass(frozen=True, kw_only=True)
class Answers:
    workload: str
    place: str
    texts: list[str]


def common_settings(records: Sequence[Record]) -> list[tuple[str, str]]:
    """The settings that all runs share: said once, above the tables."""
    shared = {name: next(iter(values)) for name, values in _settings(records, SETTINGS).items() if len(values) == 1}
    return [(name, str(value)) for name, value in shared.items() if value is not None]


def unbound(records: Sequence[Record]) -> list[Record]:
    """Without those bound to some of the cores, where there are others: these have a finding of their own."""
    return [record for record in records if not record.spec.cores] or list(records)


def timed(records: Sequence[Record]) -> list[Record]:
    """Without the runs of learning: these are timed as a whole, and have a finding of their own."""
    return [record for record in records if record.spec.kind != "training"]


def headline(records: Sequence[Record]) -> Table:
    """One row for each workload, place and phase, and for each setting where they differ; repetitions are pooled."""
    records = unbound(timed(records))
    differing = _differing(records, COMPARED)
    groups: dict[tuple[Cell, ...], list[Record]] = {}
    for record in records:
        settings = [_setting(record, name) for name in differing]
        groups.setdefault((record.spec.workload, record.machine_label, record.spec.phase, *settings), []).append(record)
    columns = ["workload", "place", "phase", *differing, "step (ms)", "95 % interval (ms)", "items/s", "outcome"]
    ordered = sorted(groups.values(), key=lambda group: _order(group[0]))
    rows = [_headline_row(_with_most_threads(group), differing) for group in ordered]
    return Table(title="Speed of every workload", columns=columns, rows=rows)


def every_run(records: Sequence[Record]) -> Table:
    """One row a record, with what the profiler cost it and what it noted; a column that no run fills is left out."""
    differing = _differing(records, SETTINGS)
    columns = ["workload", "place", "phase", *differing, "items/step", "steps", "step (ms)", "profiler slowdown (×)"]
    columns += ["outside ops (%)", "first step (ms)", "setup (s)", "host memory (GiB)", "device memory (GiB)"]
    rows = [_run_row(record, differing) for record in sorted(records, key=_order)]
    return _without_empty(Table(title="Every run", columns=[*columns, "outcome", "record", "notes"], rows=rows))


def failed(records: Sequence[Record]) -> Table:
    rows: list[list[Cell]] = [
        [
            record.spec.workload,
            record.spec.phase,
            record.machine_label,
            record.reason,
            words.moment(record.started),
            record.id,
        ]
        for record in records
        if record.outcome != "ok"
    ]
    return Table(title="Failed runs", columns=["workload", "phase", "place", "reason", "started", "record"], rows=rows)


def learning(records: Sequence[Record]) -> list[Learning]:
    """The losses of the longest training run of each workload and place."""
    longest: dict[tuple[str, str], list[float]] = {}
    for record in sorted(records, key=_order):
        key = (record.spec.workload, record.machine_label)
        if record.outcome == "ok" and len(record.losses) > max(1, len(longest.get(key, []))):
            longest[key] = record.losses
    return [Learning(workload=workload, place=place, losses=each) for (workload, place), each in longest.items()]


def answers(records: Sequence[Record]) -> list[Answers]:
    """What inference said, once for each workload and place; places that say the same say it together."""
    first: dict[tuple[str, str], tuple[str, ...]] = {}
    for record in sorted(records, key=_order):
        if record.outcome == "ok" and record.answers:
            first.setdefault((record.spec.workload, record.machine_label), tuple(record.answers))
    places: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (workload, place), texts in first.items():
        places.setdefault((workload, texts), []).append(place)
    return [
        Answers(workload=name, place=" and ".join(where), texts=list(texts)) for (name, texts), where in places.items()
    ]


def _settings(records: Sequence[Record], names: Sequence[str]) -> dict[str, dict[Cell, None]]:
    """The different values of each setting, in the order of first sight."""
    return {name: dict.fromkeys(_setting(record, name) for record in records) for name in names}


def _differing(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    return [name for name, values in _settings(records, names).items() if len(values) > 1]


def _setting(record: Record, name: str) -> Cell:
    value: Cell = None if name == "options" else getattr(record.spec, name)
    if name == "data":
        return value or "synthetic"
    if name == "options":
        return ", ".join(f"{key}={item}" for key, item in record.spec.options.items()) or None
    if name == "threads" and value is None and record.device == "cpu":
        return record.machine.cpu.threads
    return value


def _with_most_threads(group: Sequence[Record]) -> list[Record]:
    """Of a sweep over threads, the runs that left their number to the machine, or else those with the most."""
    threads = [record.spec.threads or math.inf for record in group]
    return [record for record, own in zip(group, threads, strict=True) if own == max(threads)]


def _order(record: Record) -> tuple[object, ...]:
    """Workloads as the paper lists them, CPUs before accelerators, training before inference."""
    workload = workload_order(record.spec.workload)
    return workload, not on_cpu(record), record.machine_label, record.spec.phase != "train", record.started


def _headline_row(launches: Sequence[Record], differing: Sequence[str]) -> list[Cell]:
    good = [record for record in launches if record.outcome == "ok" and record.step_s]
    step = median_interval([settled_steps(record) for record in good]) if good else None
    items = good[0].items_per_step if good else None
    first, wrong = launches[0], sum(record.outcome != "ok" for record in launches)
    return [
        *(first.spec.workload, first.machine_label, first.spec.phase),
        *(_setting(first, name) for name in differing),
        1000 * step.median if step else None,
        f"{words.number(1000 * step.low)} – {words.number(1000 * step.high)}" if step else None,
        items / step.median if items and step else None,
        "ok" if not wrong else "failed" if wrong == len(launches) else f"{wrong} of {len(launches)} failed",
    ]


def _run_row(record: Record, differing: Sequence[str]) -> list[Cell]:
    sections, profile = record.sections, record.profile
    notes = [*record.notes, *(profile.notes if profile else [])]
    return [
        *(record.spec.workload, record.machine_label, record.spec.phase),
        *(_setting(record, name) for name in differing),
        record.items_per_step,
        len(record.step_s) or None,
        1000 * statistics.median(settled_steps(record)) if record.step_s else None,
        profile.slowdown if profile else None,
        outside_percent(profile),
        None if sections.first_step_s is None else 1000 * sections.first_step_s,
        sections.setup_s,
        None if record.peak_host_bytes is None else record.peak_host_bytes / 2**30,
        None if record.peak_device_bytes is None else record.peak_device_bytes / 2**30,
        record.outcome,
        record.id,
        "; ".join(notes) or None,
    ]


def _without_empty(table: Table) -> Table:
    kept = [index for index in range(len(table.columns)) if any(row[index] is not None for row in table.rows)]
    rows = [[row[index] for index in kept] for row in table.rows]
    return Table(title=table.title, columns=[table.columns[index] for index in kept], rows=rows)
