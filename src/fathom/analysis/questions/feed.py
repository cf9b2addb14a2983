"""Whether the input keeps the device busy, and the cheapest way of feeding that does."""

from __future__ import annotations

from collections.abc import Sequence

from fathom.analysis.feed_runs import BUSY, FeedSweep, Way, sweeps
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.link import Link
from fathom.analysis.selection import counted
from fathom.core.formatting import listed, number, seconds, size
from fathom.core.record import Record

TITLE = "Feeding the device: does the input keep it busy?"
ORDER = 53


def analyse(records: Sequence[Record]) -> Finding:
    found, failed = sweeps(records), _failed(records)
    if not found:
        reason = "every feed run failed" if failed else ""
        return not_measured("feed", TITLE, "fathom feed NAME --data FOLDER", failed, reason)
    return Finding(
        question="feed",
        title=TITLE,
        summary=" ".join(_sentence(sweep) for sweep in found),
        tables=[_ways(found), *_bandwidth(found)],
        charts=[*(_rates(sweep) for sweep in found), *_bandwidth_charts(found)],
        notes=[*_notes(found), *failed],
    )


def _sentence(sweep: FeedSweep) -> str:
    """The verdict: the cheapest way that keeps the device busy, or what it would take."""
    where = f"{sweep.name} on {sweep.machine}"
    chosen, fastest = sweep.chosen, sweep.fastest
    if chosen is not None:
        cheapest = f"{where}: {chosen.name} keeps the device busy ({_percent(chosen.waiting)} of the time waiting)"
        if fastest is chosen or fastest.fed_s > (1 - BUSY) * chosen.fed_s:
            return f"{cheapest} and is the cheapest that does."
        return f"{cheapest} and is the cheapest that does; {fastest.name} is {_faster(chosen, fastest)} faster."
    least = min(sweep.ways, key=lambda way: way.waiting)
    waits = f"it waits {_percent(least.waiting)} of the time with {least.name}"
    return f"{where}: no setting keeps the device busy; {waits}.{_hint(sweep)}"


def _hint(sweep: FeedSweep) -> str:
    needed, tried = sweep.workers_needed, max(way.cost[0] for way in sweep.ways)
    if needed is None:
        return ""
    if needed <= max(1, tried):
        return " Input alone is fast enough: beside compute it lacks cores, or a worker that reads ahead."
    return f" About {needed} workers would keep up, if each has a core of its own."


def _faster(chosen: Way, fastest: Way) -> str:
    return f"{100 * (chosen.fed_s / fastest.fed_s - 1):.0f} %"


def _percent(part: float) -> str:
    return f"{number(100 * part)} %"


def _ways(found: Sequence[FeedSweep]) -> Table:
    columns = [
        *("workload", "machine", "setting", "workers", "prefetch", "copies"),
        *("input alone (items/s)", "per reader", "compute alone (items/s)", "both (items/s)"),
        *("device waits (%)", "least (%)", "most (%)", "compute slowed by", "busy", "launches"),
    ]
    rows = [[sweep.name, sweep.machine, *_way(sweep, way)] for sweep in found for way in sweep.ways]
    return Table(title="Input alone, compute alone, both", columns=columns, rows=rows, leading=True)


def _way(sweep: FeedSweep, way: Way) -> list[Cell]:
    used = way.used
    verdict = "yes, cheapest" if way is sweep.chosen else "yes" if way.keeps_busy else "no"
    return [
        "default" if way.usual else "",
        used.workers if used else None,
        used.prefetch if used else None,
        used.copies if used and not way.on_cpu else "kept on the device" if used is None else "none",
        way.items_per_s(way.input_s),
        way.input_per_core,
        way.items_per_s(way.compute_s),
        way.items_per_s(way.fed_s),
        100 * way.waiting,
        100 * min(way.waits),
        100 * max(way.waits),
        way.slowdown,
        verdict,
        len(way.runs),
    ]


def _rates(sweep: FeedSweep) -> Chart:
    names = [way.name for way in sweep.ways]
    parts = {
        "input alone": [way.items_per_s(way.input_s) for way in sweep.ways],
        "compute alone": [way.items_per_s(way.compute_s) for way in sweep.ways],
        "both": [way.items_per_s(way.fed_s) for way in sweep.ways],
    }
    return Chart(
        kind="bar",
        title=f"{sweep.name} on {sweep.machine}: input alone, compute alone, both",
        x_title="setting",
        y_title="items per second",
        series=[Series(name=name, x=names, y=values) for name, values in parts.items()],
    )


def _bandwidth(found: Sequence[FeedSweep]) -> list[Table]:
    rows: list[list[Cell]] = [
        [sweep.machine, size(bytes_), _gigabytes(pinned), _gigabytes(pageable)]
        for sweep in _one_of_each_machine(found)
        for bytes_, pinned, pageable in sweep.bandwidth()
    ]
    columns = ["machine", "copy", "pinned (GB/s)", "pageable (GB/s)"]
    return [Table(title="Host-to-device bandwidth", columns=columns, rows=rows)] if rows else []


def _bandwidth_charts(found: Sequence[FeedSweep]) -> list[Chart]:
    charts = []
    for sweep in _one_of_each_machine(found):
        if copies := sweep.bandwidth():
            sizes = [bytes_ for bytes_, *_ in copies]
            parts = {"pinned": [row[1] for row in copies], "pageable": [row[2] for row in copies]}
            charts.append(
                Chart(
                    kind="line",
                    title=f"Host-to-device bandwidth of {sweep.machine}",
                    x_title="bytes of a copy",
                    y_title="GB/s",
                    series=[Series(name=name, x=sizes, y=[*map(_gigabytes, rates)]) for name, rates in parts.items()],
                    log_x=True,
                    log_y=True,
                )
            )
    return charts


def _one_of_each_machine(found: Sequence[FeedSweep]) -> list[FeedSweep]:
    return list({sweep.machine: sweep for sweep in reversed(found)}.values())[::-1]


def _gigabytes(rate: float | None) -> float | None:
    return None if rate is None else rate / 1e9


def _notes(found: Sequence[FeedSweep]) -> list[str]:
    notes = [
        "Compute alone repeats a batch that stays on the device; input alone reads batches and copies them to it. "
        "Rates are over all steps of a launch, and the median over launches. The device waits from the end of a step "
        f"until the next batch is on it; below {100 * BUSY:g} % of the time in every launch it counts as busy.",
        "Compute slowed by: the time of a fed step without waiting, over that of compute alone. The cheapest setting "
        "has the fewest worker processes, then the fewest batches in flight, then no pinned memory.",
    ]
    if decoders := _decoders(found):
        notes.append(f"JPEG is decoded by {listed(decoders)}. `benchmarks/jpeg.py` compares decoders.")
    on_cpu = [sweep.machine for sweep in found if not sweep.bandwidth()]
    if on_cpu:
        notes.append("Host-to-device bandwidth: not on a CPU, where a batch is read into the memory it is used from.")
    return [*notes, *(line for sweep in found for line in _capacity(sweep))]


def _decoders(found: Sequence[FeedSweep]) -> list[str]:
    """What decoded the images of runs on real ones."""
    runs = [run for sweep in found for way in sweep.ways for run in way.runs if run.spec.data and run.item == "image"]
    return sorted({"simplejpeg" if run.machine.libraries.get("simplejpeg") else "Pillow" for run in runs})


def _capacity(sweep: FeedSweep) -> list[str]:
    """How many such GPUs the measured link could serve, were they all behind it."""
    rates = [pinned for _, pinned, _ in sweep.bandwidth() if pinned]
    if not rates:
        return []
    size_bytes, compute_s = sweep.ways[0].batch_bytes, sweep.ways[0].compute_s
    link = Link(gpus=1, bytes_per_gpu=max(1, size_bytes), bytes_per_s=max(rates), compute_s=compute_s)
    return [
        f"{sweep.name} on {sweep.machine}: a batch has {size(size_bytes)} and takes {seconds(link.transfer_s)} at "
        f"{number(max(rates) / 1e9)} GB/s; one such link could serve {link.gpus_kept_busy:,} of these GPUs "
        "(`fathom link` calculates other cases)."
    ]


def _failed(records: Sequence[Record]) -> list[str]:
    failed = [record for record in records if record.spec.kind == "feed" and record.outcome != "ok"]
    lines = [f"{run.spec.workload}, {run.spec.feeding or 'default'}: {run.reason}" for run in failed]
    return [f"Not shown: failed runs: {counted(lines)}."] if lines else []
