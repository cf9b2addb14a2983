"""What is a further core worth? Answers Fig. 2 of the Minsky study: parallel efficiency over CPU cores.

Speed-up is the time of a step on one core over that on n; efficiency is speed-up over n. The runs are bound to their
cores; threads either match them in number or are as many as the machine has, as the study left them.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.questions._words import in_percent, listed, unanswered
from fathom.analysis.questions.parallelism import serial_share
from fathom.analysis.questions.phases import settled_steps
from fathom.analysis.selection import configuration, counted, counted_threads, on_cpu, workload_order
from fathom.analysis.statistics import Interval, median_interval
from fathom.core.record import Record

TITLE = "What is a further core worth?"
MATCHING, ALL, SHARED = "matching", "all", "two a core"
SCALES = 0.5  # efficiency on all cores from which a workload is said to scale
VAGUE = 0.5  # an interval wider than this part of its value: no number to lean on
GAIN = ["speed-up", "speed-up from", "speed-up to", "efficiency (%)", "efficiency from (%)", "efficiency to (%)"]

Known = tuple[str, Interval]  # whose efficiency on all the cores, and how well it is known


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

    def speedup(self, point: Point) -> Interval | None:
        return quotient(self.base.step, point.step) if self.base else None

    def efficiency(self, point: Point) -> Interval | None:
        speedup = self.speedup(point)
        if speedup is None:
            return None
        return Interval(*(value / point.count for value in (speedup.median, speedup.low, speedup.high)))

    def along(self, way: str) -> list[Point]:
        """The measured points of one way; threads that match all the cores of the machine are a pool for all, too."""
        own = [point for point in self.points if point.way == way]
        pools = {point.threads for point in own} if way == ALL else set()
        have = {point.count for point in own}
        both = [p for p in self.points if p.way == MATCHING and p.count in pools and p.count not in have]
        return sorted([*own, *both], key=lambda point: point.count)


def quotient(above: Interval, below: Interval) -> Interval:
    """One median over another: their relative errors are independent, and added as such, on a scale of logarithms."""
    value = above.median / below.median
    if above == below:
        return Interval(value, value, value)  # one core over itself is 1, however badly it is known
    down = math.hypot(math.log(above.median / above.low), math.log(below.high / below.median))
    up = math.hypot(math.log(above.high / above.median), math.log(below.median / below.low))
    return Interval(value, value * math.exp(-down), value * math.exp(up))


def analyse(records: Sequence[Record]) -> Finding:
    curves, failed = curves_of(records), _failed(records)
    if not curves:
        missing = "every run bound to cores failed" if failed else "no run bound to cores; `fathom scale` makes them"
        return unanswered("cores", TITLE, missing, failed)
    return Finding(
        question="cores",
        title=TITLE,
        summary=_summary(curves),
        tables=[_worth(curves), _points(curves)],
        charts=[_chart(curves, MATCHING), *([_chart(curves, ALL)] if _has(curves, ALL) else [])],
        notes=[*_notes(curves), *failed],
    )


def curves_of(records: Sequence[Record]) -> list[Curve]:
    """Bound runs with timed steps, by what was run and where; the runs of one binding are pooled."""
    groups: dict[tuple[str, str, str, str], dict[tuple[int, str], list[Record]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for record in records:
        if record.spec.cores and record.outcome == "ok" and record.step_s and on_cpu(record):
            free = str(dataclasses.replace(configuration(record), cores=None, threads=None))
            key = (record.spec.workload, record.spec.phase, record.machine.cpu.name, free)
            groups[key][len(record.spec.cores), _way(record)].append(record)
    several = len({cpu for _, _, cpu, _ in groups}) > 1
    curves = []
    for (workload, phase, cpu, _), bindings in groups.items():
        points = [_point(count, way, runs) for (count, way), runs in sorted(bindings.items())]
        name = workload + (f" {phase}" if phase != "train" else "") + (f" on {cpu}" if several else "")
        curves.append(Curve(workload, phase, cpu, points, name))
    return sorted(curves, key=lambda curve: (curve.cpu, workload_order(curve.workload), curve.phase != "train"))


def _failed(records: Sequence[Record]) -> list[str]:
    """A note on the bound runs that failed."""
    failed = [record for record in records if record.spec.cores and record.outcome != "ok"]
    return [f"Left out, failed: {counted(map(_failure, failed))}."] if failed else []


def _failure(record: Record) -> str:
    spec = record.spec
    assert spec.cores is not None
    threads = f" with {counted_threads(spec.threads)}" if spec.threads else ""
    return f"{spec.workload} {spec.phase} on {_cores(len(spec.cores))}{threads}: {record.reason}"


def _cores(count: int) -> str:
    return "one core" if count == 1 else f"{count} cores"


def _way(record: Record) -> str:
    assert record.spec.cores is not None
    if (record.spec.threads or record.machine.cpu.threads or 0) > len(record.spec.cores):
        return ALL
    return SHARED if _physical(record) < len(record.spec.cores) else MATCHING


def _physical(record: Record) -> int:
    cpu = record.machine.cpu
    return len(cpu.cores or cpu.affinity or record.spec.cores or [])


def _point(count: int, way: str, runs: Sequence[Record]) -> Point:
    cpu = runs[0].machine.cpu
    threads = runs[0].spec.threads or cpu.threads
    step = median_interval([settled_steps(run) for run in runs])
    return Point(count, way, _physical(runs[0]), list(cpu.nodes or []), threads, step)


def _widest(curve: Curve) -> Point:
    return max(curve.along(MATCHING) or curve.points, key=lambda point: point.count)


def _summary(curves: Sequence[Curve]) -> str:
    counts = sorted({point.count for curve in curves for point in curve.points})
    known = [(curve.name, found) for curve in curves if (found := curve.efficiency(_widest(curve)))]
    if counts == [1]:
        return "Runs on one core alone do not tell what a further one is worth."
    if not known:
        ran = _cores(counts[0]) if len(counts) == 1 else f"{listed(list(map(str, counts)))} cores"
        return f"Runs on {ran} do not tell what a further core is worth without one on one core."
    where = _where(curves)
    return " ".join([*_firm_summary(known, where), *_use(known), *_vague_summary(known, where)])


def _where(curves: Sequence[Curve]) -> str:
    widest = {_widest(curve).count for curve in curves if curve.base}
    if len(widest) == 1:
        return f"on {_cores(max(widest))}"
    return f"on the most cores that each ran on ({min(widest)} to {max(widest)})"


def _is_vague(found: Interval) -> bool:
    return found.high - found.low > VAGUE * found.median


def _firm_summary(known: Sequence[Known], where: str) -> list[str]:
    firm = sorted((item for item in known if not _is_vague(item[1])), key=lambda item: item[1].median)
    if not firm:
        return []
    (worst, low), (best, high) = firm[0], firm[-1]
    told = f"goes from {_percent(low)} ({worst}) to {_percent(high)} ({best})"
    only = f"is {_percent(high)} ({best})"
    return [f"{where[0].upper()}{where[1:]} the parallel efficiency {told if len(firm) > 1 else only}."]


def _use(known: Sequence[Known]) -> list[str]:
    """Who gets half of the cores, as far as the intervals tell, which may be wide."""
    ordered = sorted(known, key=lambda item: -item[1].median)
    scaling = [name for name, found in ordered if found.low >= SCALES]
    near = [name for name, found in ordered if found.low < SCALES <= found.high]
    told = []
    if scaling:
        told.append(f"{listed(scaling)} {'makes' if len(scaling) == 1 else 'make'} good use of the cores.")
    if near:
        told.append(f"Whether {listed(near)} {'gets' if len(near) == 1 else 'get'} half of the cores cannot be told.")
    if not told:
        told.append("None gets half of the cores.")
    return [sentence[0].upper() + sentence[1:] for sentence in told]


def _vague_summary(known: Sequence[Known], where: str) -> list[str]:
    vague = [name for name, found in known if _is_vague(found)]
    if not vague:
        return []
    return [f"The efficiency of {listed(vague)} {where} is known badly: the interval is wider than half of the value."]


def _percent(found: Interval) -> str:
    return f"{100 * found.median:.0f} %"


def _worth(curves: Sequence[Curve]) -> Table:
    """One row a workload: what all the cores bring, and what the law says is left serial."""
    rows: list[list[Cell]] = []
    for curve in curves:
        widest = _widest(curve)
        serial = serial_share({point.count: point.step.median for point in curve.along(MATCHING)})
        rows.append([curve.name, widest.count, *_gain(curve, widest), in_percent(serial), _cost_of_all(curve)])
    columns = ["workload", "cores", *GAIN, "serial (%)", "all/matching"]
    return Table(title="What all the cores are worth", columns=columns, rows=rows)


def _gain(curve: Curve, point: Point) -> list[Cell]:
    """The cells below GAIN; none without a run on one core."""
    speedup, efficiency = curve.speedup(point), curve.efficiency(point)
    if speedup is None or efficiency is None:
        return [None] * len(GAIN)
    shares = [in_percent(value) for value in (efficiency.median, efficiency.low, efficiency.high)]
    return [speedup.median, speedup.low, speedup.high, *shares]


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
            *_gain(curve, point),
        ]
        for curve in curves
        for point in curve.points
    ]
    columns = ["workload", "CPUs", "cores", "node", "threads", "step (ms)", "± (%)", *GAIN]
    return Table(title="Every binding", columns=columns, rows=rows)


def _chart(curves: Sequence[Curve], way: str) -> Chart:
    series = []
    for curve in curves:
        gains = {point.count: gain for point in curve.along(way) if (gain := curve.speedup(point))}
        if len(gains) > 1:
            text = [f"speed-up {gain.median:.2f} ({gain.low:.2f} to {gain.high:.2f})" for gain in gains.values()]
            values = [100 * gain.median / count for count, gain in gains.items()]
            series.append(Series(name=curve.name, x=list(gains), y=values, text=text))
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
        "From and to are 95 %: the relative errors of the two medians, added as independent ones. Where a binding was "
        "launched once, as `fathom scale` does, they tell how well its own steps know the median, and not how another "
        "launch would differ.",
        f"{published.MINSKY}, Fig. 2 draws this without printing numbers: it finds AlexNet, Residual and VGG to scale "
        "well up to 20 cores, and Autoenc and Memnet not to.",
    ]
    if not any(point.way == SHARED for curve in curves for point in curve.points):
        notes.append("No core here offered two hardware threads, so that cores against shared cores was not measured.")
    without = [curve.name for curve in curves if curve.base is None]
    if without:
        notes.append(f"Without a run on one core there is no speed-up: {', '.join(without)}.")
    return notes
