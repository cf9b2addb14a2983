"""What is a further core worth? Answers Fig. 2 of the Minsky study: parallel efficiency over CPU cores.

Speed-up is the time of a step on one core over that on n; efficiency is speed-up over n. The runs are bound to their
cores; threads either match them in number or are as many as the machine has, as the study left them.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analyses._settings import configuration, in_percent, listed, on_cpu, unanswered, workload_order
from fathom.analyses.parallelism import serial_share
from fathom.analyses.phases import settled_steps
from fathom.analysis import Cell, Chart, Finding, Series, Table
from fathom.record import Record
from fathom.statistics import Interval, median_interval

TITLE = "What is a further core worth?"
MATCHING, ALL, SHARED = "matching", "all", "two a core"
SCALES = 0.5  # efficiency on all cores from which a workload is said to scale


@dataclass(frozen=True)
class Point:
    """One workload on so many hardware threads, in one way."""

    count: int
    way: str  # how threads relate to cores
    physical: int
    nodes: list[int]
    threads: int | None
    step: Interval


@dataclass(frozen=True)
class Curve:
    """One workload, phase and configuration on one machine."""

    workload: str
    phase: str
    cpu: str
    points: list[Point]
    name: str  # of the workload, with what tells it from the other curves

    @property
    def base(self) -> Point | None:
        """One core with one thread."""
        return next((point for point in self.points if (point.count, point.way) == (1, MATCHING)), None)

    def speedup(self, point: Point) -> float | None:
        return self.base.step.median / point.step.median if self.base else None

    def efficiency(self, point: Point) -> float | None:
        speedup = self.speedup(point)
        return None if speedup is None else speedup / point.count

    def along(self, way: str) -> list[Point]:
        """The points of one way; on one core and on all of them the ways are one."""
        own = [point for point in self.points if point.way == way]
        have = {point.count for point in own}
        ends = {1, max(point.count for point in self.points)}
        shared = [p for p in self.points if way == ALL and p.way == MATCHING and p.count in ends - have]
        return sorted([*own, *shared], key=lambda point: point.count)


def analyse(records: Sequence[Record]) -> Finding:
    curves = curves_of(records)
    if not curves:
        missing = "no run bound to cores; `fathom scale` makes them"
        return unanswered("cores", TITLE, missing)
    return Finding(
        question="cores",
        title=TITLE,
        summary=_summary(curves),
        tables=[_worth(curves), _points(curves)],
        charts=[_chart(curves, MATCHING), *([_chart(curves, ALL)] if _has(curves, ALL) else [])],
        notes=_notes(curves),
    )


def curves_of(records: Sequence[Record]) -> list[Curve]:
    """Bound runs with timed steps, by what was run and where; the runs of one binding are pooled."""
    groups: dict[tuple[str, str, str, str], dict[tuple[int, str], list[Record]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for record in records:
        if record.spec.cores and record.outcome == "ok" and record.step_s and on_cpu(record):
            free = str(dataclasses.replace(configuration(record), cores=None, threads=None))
            key = (record.spec.workload, record.spec.phase, record.machine["cpu"]["name"], free)
            groups[key][len(record.spec.cores), _way(record)].append(record)
    several = len({cpu for _, _, cpu, _ in groups}) > 1
    curves = []
    for (workload, phase, cpu, _), bindings in groups.items():
        points = [_point(count, way, runs) for (count, way), runs in sorted(bindings.items())]
        name = workload + (f" {phase}" if phase != "train" else "") + (f" on {cpu}" if several else "")
        curves.append(Curve(workload, phase, cpu, points, name))
    return sorted(curves, key=lambda curve: (curve.cpu, workload_order(curve.workload), curve.phase != "train"))


def _way(record: Record) -> str:
    assert record.spec.cores is not None
    if (record.spec.threads or record.machine["cpu"].get("threads") or 0) > len(record.spec.cores):
        return ALL
    return SHARED if _physical(record) < len(record.spec.cores) else MATCHING


def _physical(record: Record) -> int:
    cpu = record.machine["cpu"]
    return len(cpu.get("cores") or cpu.get("affinity") or record.spec.cores or [])


def _point(count: int, way: str, runs: Sequence[Record]) -> Point:
    cpu = runs[0].machine["cpu"]
    step = median_interval([settled_steps(run) for run in runs])
    return Point(count, way, _physical(runs[0]), list(cpu.get("nodes") or []), cpu.get("threads"), step)


def _widest(curve: Curve) -> Point:
    return max(curve.along(MATCHING) or curve.points, key=lambda point: point.count)


def _summary(curves: Sequence[Curve]) -> str:
    most = max(_widest(curve).count for curve in curves)
    known = [(curve, efficiency) for curve in curves if (efficiency := curve.efficiency(_widest(curve))) is not None]
    if not known or most == 1:
        return "Runs on one core alone do not tell what a further one is worth."
    ordered = sorted(known, key=lambda item: -item[1])
    (best, high), (worst, low) = ordered[0], ordered[-1]
    scaling = [curve.name for curve, efficiency in ordered if efficiency >= SCALES]
    told = (
        f"On {most} cores the parallel efficiency goes from {100 * low:.0f} % ({worst.name}) to {100 * high:.0f} % "
        f"({best.name}). "
    )
    good = (
        f"{listed(scaling)} {'makes' if len(scaling) == 1 else 'make'} good use of" if scaling else "None gets half of"
    )
    return told + f"{good[0].upper()}{good[1:]} the cores."


def _worth(curves: Sequence[Curve]) -> Table:
    """One row a workload: what all the cores bring, and what the law says is left serial."""
    rows: list[list[Cell]] = []
    for curve in curves:
        widest = _widest(curve)
        serial = serial_share({point.count: point.step.median for point in curve.along(MATCHING)})
        speedup, efficiency = curve.speedup(widest), in_percent(curve.efficiency(widest))
        rows.append([curve.name, widest.count, speedup, efficiency, in_percent(serial), _cost_of_all(curve)])
    columns = ["workload", "cores", "speed-up", "efficiency (%)", "serial (%)", "all/matching"]
    return Table(title="What all the cores are worth", columns=columns, rows=rows)


def _cost_of_all(curve: Curve) -> float | None:
    """On half of the cores, where a pool for all has two threads a core: its time over that of matching threads."""
    half = _widest(curve).count // 2
    at = {point.way: point.step.median for point in curve.points if point.count == half}
    return at[ALL] / at[MATCHING] if {ALL, MATCHING} <= at.keys() else None


def _points(curves: Sequence[Curve]) -> Table:
    rows: list[list[Cell]] = [
        [
            curve.name,
            point.count,
            point.physical,
            ", ".join(map(str, point.nodes)) or None,
            f"{point.threads}, {point.way}",
            point.step.median * 1e3,
            50 * (point.step.high - point.step.low) / point.step.median,
            curve.speedup(point),
            in_percent(curve.efficiency(point)),
        ]
        for curve in curves
        for point in curve.points
    ]
    columns = ["workload", "CPUs", "cores", "node", "threads", "step (ms)", "± (%)", "speed-up", "efficiency (%)"]
    return Table(title="Every binding", columns=columns, rows=rows)


def _chart(curves: Sequence[Curve], way: str) -> Chart:
    series = []
    for curve in curves:
        points = [point for point in curve.along(way) if curve.efficiency(point) is not None]
        if len(points) > 1:
            text = [f"speed-up {curve.speedup(point):.2f}" for point in points]
            values = [in_percent(curve.efficiency(point)) for point in points]
            series.append(Series(name=curve.name, x=[point.count for point in points], y=values, text=text))
    threads = "as many threads as cores" if way == MATCHING else "as many threads as the machine has CPUs"
    return Chart(
        kind="line",
        title=f"Parallel efficiency with {threads}",
        x_title="cores",
        y_title="efficiency (%)",
        series=series,
        log_x=True,
    )


def _has(curves: Sequence[Curve], way: str) -> bool:
    return any(point.way == way and point.count > 1 for curve in curves for point in curve.points)


def _notes(curves: Sequence[Curve]) -> list[str]:
    cpus = listed(list(dict.fromkeys(curve.cpu for curve in curves)))
    notes = [
        f"Measured on {cpus}. Efficiency is the time of a step on one core, over that on n cores, over n. Each run is "
        "a process of its own, bound to its CPUs (hardware threads) before torch is loaded, one to a core as far as "
        "there are cores, memory node by memory node.",
        "Threads match the CPUs in number, or are as many as the whole machine has CPUs (all), as in a program that "
        "does not know of its binding; all/matching is the one step time over the other on half of the CPUs.",
        f"{published.MINSKY}, Fig. 2 draws this without printing numbers: it finds AlexNet, Residual and VGG to scale "
        "well up to 20 cores, and Autoenc and Memnet not to.",
    ]
    if not any(point.way == SHARED for curve in curves for point in curve.points):
        notes.append("No core here offered two hardware threads, so that cores against shared cores was not measured.")
    without = [curve.name for curve in curves if curve.base is None]
    if without:
        notes.append(f"Without a run on one core there is no speed-up: {', '.join(without)}.")
    return notes
