"""Collective operations over message sizes: latency, bandwidth as nccl-tests defines it, and the line they fit."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fathom.analysis.alpha_beta import AlphaBeta, fit
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.selection import counted
from fathom.analysis.statistics import Interval, median_interval
from fathom.core.formatting import count, finite, prefixed, seconds
from fathom.core.ranks import OPERATIONS, Overlap, bus_factor
from fathom.core.record import Record

TITLE = "Collectives: what does a message between ranks cost?"
ORDER = 112
RANKED = True
POOR_FIT = 0.5  # relative error of a fitted time from which a line is said not to describe an operation


@dataclass(frozen=True)
class Operation:
    """One operation among so many ranks, over message sizes; each latency is over the launches."""

    machine: str
    backend: str
    ranks: int
    name: str
    latency_s: dict[int, Interval]  # by message bytes, in order

    @property
    def line(self) -> AlphaBeta | None:
        return fit({size: each.median for size, each in self.latency_s.items()})

    def bus_bytes_per_s(self, size: int) -> float:
        return size / self.latency_s[size].median * bus_factor(self.name, self.ranks)


def analyse(records: Sequence[Record]) -> Finding:
    records = [record for record in records if record.spec.kind == "collectives"]
    operations, failed = operations_of(records), _failed(records)
    if not operations:
        reason = "every run failed" if failed else ""
        return not_measured("collectives", TITLE, "fathom collectives", failed, reason)
    return Finding(
        question="collectives",
        title=TITLE,
        summary=_summary(operations),
        tables=[_lines(operations), _sizes(operations), *_contention(records)],
        charts=_charts(operations),
        notes=[*_notes(operations), *_contention_notes(records), *failed],
    )


def operations_of(records: Sequence[Record]) -> list[Operation]:
    """Of all launches together, by machine, backend, number of ranks and operation."""
    found: dict[tuple[str, str, int, str], dict[int, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.outcome == "ok" and record.ranks:
            where = (_machine(record, records), record.ranks.backend, record.ranks.ranks)
            for each in record.ranks.collectives:
                found[*where, each.operation][each.message_bytes].append(each.sample_s)
    order = {name: index for index, name in enumerate(OPERATIONS)}
    keys = sorted(found, key=lambda key: (key[0], key[1], key[2], order.get(key[3], len(order)), key[3]))
    return [Operation(*key, {size: median_interval(found[key][size]) for size in sorted(found[key])}) for key in keys]


def _machine(record: Record, records: Sequence[Record]) -> str:
    """With the nodes, and with the threads of a rank where the same ranks had others too: these are not pooled."""
    assert record.ranks is not None
    same = [each for each in records if each.ranks and each.ranks.ranks == record.ranks.ranks]
    alike = [each for each in same if each.machine_label == record.machine_label]
    words = [f"{record.ranks.nodes} nodes"] if record.ranks.nodes > 1 else []
    if len({each.spec.threads for each in alike}) > 1:
        words.append(f"{count(record.spec.threads or 1, 'thread')} a rank")
    return ", ".join([record.machine_label, *words])


def _contention(records: Sequence[Record]) -> list[Table]:
    """What ranks of one machine take from each other, and what a message takes from computing; none where not timed."""
    shared: dict[tuple[str, int, str, int], list[tuple[float, float]]] = defaultdict(list)
    sent: dict[tuple[str, int, int], list[Overlap]] = defaultdict(list)
    for record in records:
        if record.outcome == "ok" and record.ranks:
            where = (_machine(record, records), record.ranks.ranks)
            for work in record.ranks.shared_work:
                shared[*where, work.work, work.bytes_moved].append((work.slowdown, work.slowest))
            for each in record.ranks.overlaps:
                sent[*where, each.message_bytes].append(each)
    slower: list[list[Cell]] = [
        [*key, *map(statistics.median, zip(*shared[key], strict=True))] for key in sorted(shared)
    ]
    beside: list[list[Cell]] = [
        [*key, 100 * statistics.median(each.hidden for each in sent[key]), _added_us(sent[key])] for key in sorted(sent)
    ]
    found = []
    if slower:
        columns = ["machine", "ranks", "work", "bytes", "time over that of one rank alone", "on the slowest rank"]
        found.append(Table(title="The same work by all ranks at once", columns=columns, rows=slower))
    if beside:
        columns = ["machine", "ranks", "bytes", "hidden (% of the shorter)", "added after computing (µs)"]
        found.append(Table(title="Computing beside an all-reduce", columns=columns, rows=beside))
    return found


def _added_us(launches: Sequence[Overlap]) -> float | None:
    known = [each.added_s for each in launches if each.added_s is not None]
    return 1e6 * statistics.median(known) if known else None


def _contention_notes(records: Sequence[Record]) -> list[str]:
    if not any(record.ranks and record.ranks.shared_work for record in records):
        return []
    return [
        "The same work: a product of two matrices, and sums of two vectors, which move so many bytes; by one rank "
        "while the others wait, and by all at once. Computing beside an all-reduce: products that take about as long, "
        "both alone and at once; hidden is the share of the shorter of the two that costs no time. Added after "
        "computing: what the message takes when it is sent as computing ends, as a step's last one is."
    ]


def _failed(records: Sequence[Record]) -> list[str]:
    failed = [record for record in records if record.outcome != "ok"]
    reasons = counted(f"{count(record.spec.ranks or 0, 'rank')}: {record.reason}" for record in failed)
    return [f"Not shown: failed runs: {reasons}."] if failed else []


def _summary(operations: Sequence[Operation]) -> str:
    """The all-reduce of the most ranks, as gradients travel by it; the first operation where there is none."""
    reduces = [each for each in operations if each.name == OPERATIONS[0]] or list(operations)
    chosen = max(reduces, key=lambda each: each.ranks)
    least, most = min(chosen.latency_s), max(chosen.latency_s)
    line = chosen.line
    fitted = ""
    if line and line.bytes_per_s:
        fitted = f" Fitted: alpha {seconds(line.alpha_s)}, 1/beta {prefixed(line.bytes_per_s, 'B/s')}."
    return (
        f"{chosen.name} among {count(chosen.ranks, 'rank')} ({chosen.backend}): "
        f"{seconds(chosen.latency_s[least].median)} for {prefixed(least, 'B')}, bus bandwidth "
        f"{prefixed(chosen.bus_bytes_per_s(most), 'B/s')} at {prefixed(most, 'B')}.{fitted}"
    )


def _lines(operations: Sequence[Operation]) -> Table:
    rows: list[list[Cell]] = []
    for each in operations:
        line = each.line
        best = max(each.bus_bytes_per_s(size) for size in each.latency_s)
        fitted: list[Cell] = [None] * 4
        if line:
            errors: list[Cell] = [100 * line.median_error, 100 * line.largest_error]
            bandwidth = line.bytes_per_s
            fitted = [1e6 * line.alpha_s, None if bandwidth is None else bandwidth / 1e9, *errors]
        rows.append([each.name, each.machine, each.backend, each.ranks, *fitted, best / 1e9])
    columns = ["operation", "machine", "backend", "ranks", "alpha (µs)", "1/beta (GB/s)"]
    columns += ["median error (%)", "largest error (%)", "best bus bandwidth (GB/s)"]
    return Table(title="Latency and bandwidth: time = alpha + beta x bytes", columns=columns, rows=rows)


def _sizes(operations: Sequence[Operation]) -> Table:
    rows: list[list[Cell]] = [
        [
            *(each.name, each.machine, each.ranks, size),
            finite(1e6 * step.median),
            *_interval(step),
            size / step.median / 1e9,
            each.bus_bytes_per_s(size) / 1e9,
        ]
        for each in operations
        for size, step in each.latency_s.items()
    ]
    columns = ["operation", "machine", "ranks", "bytes", "time (µs)", "from", "to", "interval"]
    columns += ["algorithm bandwidth (GB/s)", "bus bandwidth (GB/s)"]
    return Table(title="Every message size", columns=columns, rows=rows)


def _interval(step: Interval) -> list[Cell]:
    """From, to, and what that holds of."""
    _, low, high = step.cells(1e6)
    return [low, high, step.claim if step.bounded else f"none: {step.claim} the times differ too much"]


def _charts(operations: Sequence[Operation]) -> list[Chart]:
    """On each machine: every operation among the most ranks, and one operation over the numbers of ranks."""
    places = list(dict.fromkeys((each.machine, each.backend) for each in operations))
    found = []
    for machine, backend in places:
        here = [each for each in operations if (each.machine, each.backend) == (machine, backend)]
        where = f", {machine}, {backend}" if len(places) > 1 else ""
        most = max(each.ranks for each in here)
        found.append(_bandwidths([each for each in here if each.ranks == most], f"{most} ranks{where}"))
        chosen = next((each.name for each in here if each.name == OPERATIONS[0]), here[0].name)
        found.append(_latencies([each for each in here if each.name == chosen], f"{chosen}{where}"))
    return found


def _bandwidths(operations: Sequence[Operation], what: str) -> Chart:
    series = [
        Series(name=each.name, x=list(each.latency_s), y=[each.bus_bytes_per_s(size) / 1e9 for size in each.latency_s])
        for each in operations
    ]
    return Chart(
        kind="line",
        title=f"Bus bandwidth: {what}",
        x_title="message (bytes)",
        y_title="GB/s",
        unit="GB/s",
        series=series,
        log_x=True,
    )


def _latencies(operations: Sequence[Operation], what: str) -> Chart:
    """Measured, and the fitted lines."""
    series = []
    for each in operations:
        measured = [1e6 * step.median for step in each.latency_s.values()]
        series.append(Series(name=f"{each.ranks} ranks", x=list(each.latency_s), y=measured))
    for each in operations:
        if line := each.line:
            fitted = [1e6 * line.seconds(size) for size in each.latency_s]
            name = f"alpha + beta x bytes, {each.ranks} ranks"
            series.append(Series(name=name, x=list(each.latency_s), y=fitted, role="target"))
    return Chart(
        kind="line",
        title=f"Time of one call: {what}",
        x_title="message (bytes)",
        y_title="µs",
        unit="µs",
        series=series,
        log_x=True,
        log_y=True,
    )


def _notes(operations: Sequence[Operation]) -> list[str]:
    notes = [
        "Sizes and bandwidths as nccl-tests defines them: algorithm bandwidth is message size over time; bus bandwidth "
        "is that times 2(n-1)/n for all-reduce, (n-1)/n for all-gather and reduce-scatter, and 1 for broadcast and "
        "send-receive (each rank sends to the next and receives from the one before). Times are means over the ranks.",
    ]
    errors = [each.line.largest_error for each in operations if each.line]
    if errors and statistics.median(errors) > POOR_FIT:
        notes.append("The times are far from a line: a library that changes its algorithm with the size makes them so.")
    return notes
