"""Parallel efficiency over CPU cores: Fig. 2 of the Minsky study.

Speed-up is the time of a step on one core over that on n; efficiency is speed-up over n. Runs are bound to their cores;
threads either match them in number or are as many as the machine has, as the study left them. A point measured in
several launches has an interval over launches; a point of one launch says nothing of the next.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.scaling_law import serial_fraction_of_times
from fathom.analysis.selection import configuration, counted, counted_threads, on_cpu, told_apart, workload_order
from fathom.analysis.statistics import Interval
from fathom.analysis.step_time import step_time
from fathom.core.formatting import in_percent, listed
from fathom.core.record import Record
from fathom.core.spec import RunSpec

TITLE = "Parallel efficiency: how do workloads scale over CPU cores?"
ORDER = 100
MATCHING, ALL, SHARED = "matching", "all", "two per core"  # threads relative to the cores of a run
SCALES = 0.5  # efficiency on all cores from which a workload is said to scale
IMPRECISE = 0.5  # an interval wider than this part of its value: the summary states no number
GAIN = ["speed-up", "speed-up from", "speed-up to", "efficiency (%)", "efficiency from (%)", "efficiency to (%)"]

Named = tuple[str, Interval]  # a curve's name and its efficiency on all the cores


@dataclass(frozen=True)
class Binding:
    """The step time of one workload bound to so many hardware threads."""

    count: int
    mode: str  # MATCHING, ALL or SHARED
    physical: int
    nodes: list[int]
    threads: int | None
    step: Interval


@dataclass(frozen=True)
class Curve:
    """One workload, phase and configuration on one machine, over its bindings."""

    workload: str
    phase: str
    cpu: str
    bindings: list[Binding]
    name: str  # of the workload, with what distinguishes it from the other curves

    @property
    def base(self) -> Binding | None:
        """One core with one thread."""
        return next((binding for binding in self.bindings if (binding.count, binding.mode) == (1, MATCHING)), None)

    def speedup(self, binding: Binding) -> Interval | None:
        return quotient(self.base.step, binding.step) if self.base else None

    def efficiency(self, binding: Binding) -> Interval | None:
        speedup = self.speedup(binding)
        if speedup is None:
            return None
        median, low, high = (value / binding.count for value in (speedup.median, speedup.low, speedup.high))
        return Interval(median, low, high, speedup.launches)

    def along(self, mode: str) -> list[Binding]:
        """The bindings of one mode; threads that match all the cores of the machine are in both modes."""
        own = [binding for binding in self.bindings if binding.mode == mode]
        pools = {binding.threads for binding in own} if mode == ALL else set()
        have = {binding.count for binding in own}
        both = [p for p in self.bindings if p.mode == MATCHING and p.count in pools and p.count not in have]
        return sorted([*own, *both], key=lambda binding: binding.count)


def quotient(above: Interval, below: Interval) -> Interval:
    """The ratio of two medians; their relative errors are independent and add in quadrature on a log scale.

    It rests on as many launches as the side with fewer.
    """
    value = above.median / below.median
    known = [each.launches for each in (above, below) if each.launches is not None]
    launches = min(known, default=None)
    if above == below:
        return Interval(value, value, value, launches)  # one core over itself is exactly 1
    if not (above.low > 0 and below.low > 0):
        return Interval(value, 0.0, math.inf, launches)
    down = math.hypot(math.log(above.median / above.low), math.log(below.high / below.median))
    up = math.hypot(math.log(above.high / above.median), math.log(below.median / below.low))
    return Interval(value, value * math.exp(-down), value * math.exp(up), launches)


def analyse(records: Sequence[Record]) -> Finding:
    curves, failed = curves_of(records), _failed(records)
    if not curves:
        reason = "every run bound to cores failed" if failed else ""
        return not_measured("cores", TITLE, "fathom scale", failed, reason)
    return Finding(
        question="cores",
        title=TITLE,
        summary=_summary(curves),
        tables=[_efficiency_table(curves), _bindings(curves)],
        charts=[_chart(curves, MATCHING), *([_chart(curves, ALL)] if _has(curves, ALL) else [])],
        notes=[*_notes(curves), *failed],
    )


def curves_of(records: Sequence[Record]) -> list[Curve]:
    """Bound runs with timed steps, by workload, phase, machine and configuration; runs of one binding are pooled."""
    groups: dict[tuple[str, str, str, str], dict[tuple[int, str], list[Record]]] = defaultdict(
        lambda: defaultdict(list)
    )
    specs: dict[tuple[str, str, str, str], RunSpec] = {}
    for record in records:
        if record.spec.cores and record.outcome == "ok" and record.step_s and on_cpu(record):
            free = dataclasses.replace(configuration(record), cores=None, threads=None)
            key = (record.spec.workload, record.spec.phase, record.machine.cpu.name, str(free))
            specs[key] = free
            groups[key][len(record.spec.cores), _mode(record)].append(record)
    several = len({cpu for _, _, cpu, _ in groups}) > 1
    names = [
        workload + (f" {phase}" if phase != "train" else "") + (f" on {cpu}" if several else "")
        for workload, phase, cpu, _ in groups
    ]
    names = told_apart(list(zip(names, (specs[key] for key in groups), strict=True)))
    curves = []
    for name, ((workload, phase, cpu, _), runs_by_binding) in zip(names, groups.items(), strict=True):
        bindings = [_binding(count, mode, runs) for (count, mode), runs in sorted(runs_by_binding.items())]
        curves.append(Curve(workload, phase, cpu, bindings, name))
    return sorted(curves, key=lambda curve: (curve.cpu, workload_order(curve.workload), curve.phase != "train"))


def _failed(records: Sequence[Record]) -> list[str]:
    """A note on the bound runs that failed."""
    failed = [record for record in records if record.spec.cores and record.outcome != "ok"]
    return [f"Not shown: failed runs: {counted(map(_failure, failed))}."] if failed else []


def _failure(record: Record) -> str:
    spec = record.spec
    assert spec.cores is not None
    threads = f" with {counted_threads(spec.threads)}" if spec.threads else ""
    return f"{spec.workload} {spec.phase} on {_cores(len(spec.cores))}{threads}: {record.reason}"


def _cores(count: int) -> str:
    return "one core" if count == 1 else f"{count} cores"


def _mode(record: Record) -> str:
    assert record.spec.cores is not None
    if (record.spec.threads or record.machine.cpu.threads or 0) > len(record.spec.cores):
        return ALL
    return SHARED if _physical(record) < len(record.spec.cores) else MATCHING


def _physical(record: Record) -> int:
    cpu = record.machine.cpu
    return len(cpu.cores or cpu.affinity or record.spec.cores or [])


def _binding(count: int, mode: str, runs: Sequence[Record]) -> Binding:
    cpu = runs[0].machine.cpu
    threads = runs[0].spec.threads or cpu.threads
    step = step_time(runs)
    return Binding(count, mode, _physical(runs[0]), list(cpu.nodes or []), threads, step)


def _widest(curve: Curve) -> Binding:
    return max(curve.along(MATCHING) or curve.bindings, key=lambda binding: binding.count)


def _summary(curves: Sequence[Curve]) -> str:
    counts = sorted({binding.count for curve in curves for binding in curve.bindings})
    known = [(curve.name, found) for curve in curves if (found := curve.efficiency(_widest(curve)))]
    if counts == [1]:
        return "Only one core was measured, so there is no efficiency. Run `fathom scale` with more cores."
    if not known:
        measured = listed([str(count) for count in counts])
        return f"Measured on {measured} cores, but not on one core, so there is no speed-up. Run `fathom scale`."
    condition = _condition(curves)
    sentences = [*_precise_summary(known, condition), *_scaling(known), *_imprecise_summary(known, condition)]
    return " ".join([*sentences, _basis(known)])


def _basis(known: Sequence[Named]) -> str:
    """How many launches the efficiencies rest on, and what their intervals claim."""
    counts = sorted({found.launches or 1 for _, found in known})
    if counts == [1]:
        return "One launch a point: the intervals hold within these processes and say nothing of the next launch."
    single = [name for name, found in known if found.launches == 1]
    several = " to ".join(dict.fromkeys(str(each) for each in (min(each for each in counts if each > 1), counts[-1])))
    basis = f"Intervals over {several} launches a point."
    return f"{basis} One launch, so within this process only: {listed(single)}." if single else basis


def _condition(curves: Sequence[Curve]) -> str:
    widest = {_widest(curve).count for curve in curves if curve.base}
    if len(widest) == 1:
        return f"on {_cores(max(widest))}"
    return f"on the most cores measured ({min(widest)} to {max(widest)})"


def is_imprecise(found: Interval) -> bool:
    """Whether a summary may not state the value."""
    return found.high - found.low > IMPRECISE * found.median


def _precise_summary(known: Sequence[Named], condition: str) -> list[str]:
    precise = sorted((item for item in known if not is_imprecise(item[1])), key=lambda item: item[1].median)
    if not precise:
        return []
    (worst, low), (best, high) = precise[0], precise[-1]
    ends = (
        f"{_percent(low)} ({worst}) to {_percent(high)} ({best})" if len(precise) > 1 else f"{_percent(high)} ({best})"
    )
    imprecise = ", where it is known to half of its value" if len(precise) < len(known) else ""
    return [f"Parallel efficiency {condition}{imprecise}: {ends}."]


def _scaling(known: Sequence[Named]) -> list[str]:
    """Which workloads use at least half of the cores, as far as their intervals allow a statement."""
    ordered = sorted(known, key=lambda item: -item[1].median)
    scaling = [name for name, found in ordered if found.low >= SCALES]
    between = [(name, found.bounded) for name, found in ordered if found.low < SCALES <= found.high]
    undecided = [name for name, bounded in between if bounded]
    unknown = [name for name, bounded in between if not bounded]
    limit = f"{100 * SCALES:.0f} %"
    sentences = []
    if scaling:
        sentences.append(f"At least {limit}: {listed(scaling)}.")
    if undecided:
        sentences.append(f"Not significantly different from {limit}: {listed(undecided)}.")
    if unknown:
        sentences.append(f"Without an interval to compare with {limit}: {listed(unknown)}.")
    return sentences or [f"No workload reaches {limit}."]


def _imprecise_summary(known: Sequence[Named], condition: str) -> list[str]:
    imprecise = [name for name, found in known if is_imprecise(found)]
    if not imprecise:
        return []
    return [f"Imprecise {condition}, with an interval wider than half of the value: {listed(imprecise)}."]


def _percent(found: Interval) -> str:
    return f"{100 * found.median:.0f} %"


def _efficiency_table(curves: Sequence[Curve]) -> Table:
    """One row per workload: speed-up and efficiency on all cores, and the fitted serial fraction."""
    rows: list[list[Cell]] = []
    for curve in curves:
        widest = _widest(curve)
        serial = serial_fraction_of_times({binding.count: binding.step.median for binding in curve.along(MATCHING)})
        found = curve.speedup(widest)
        claim = (found or widest.step).claim
        rows.append([curve.name, widest.count, *_gain(curve, widest), claim, in_percent(serial), _cost_of_all(curve)])
    columns = ["workload", "cores", *GAIN, "interval", "serial fraction (%)", "all/matching"]
    return Table(title="Parallel efficiency on all cores", columns=columns, rows=rows)


def _gain(curve: Curve, binding: Binding) -> list[Cell]:
    """The cells below GAIN; empty without a run on one core."""
    speedup, efficiency = curve.speedup(binding), curve.efficiency(binding)
    if speedup is None or efficiency is None:
        return [None] * len(GAIN)
    return [*speedup.cells(), *efficiency.cells(100)]


def _cost_of_all(curve: Curve) -> float | None:
    """On half of the cores: step time with threads for all cores (two per core) over that with matching threads."""
    half = _widest(curve).count // 2
    at = {binding.mode: binding.step.median for binding in curve.bindings if binding.count == half}
    return at[ALL] / at[MATCHING] if {ALL, MATCHING} <= at.keys() else None


def _bindings(curves: Sequence[Curve]) -> Table:
    rows: list[list[Cell]] = [
        [
            curve.name,
            binding.count,
            binding.physical,
            ", ".join(map(str, binding.nodes)) or None,
            f"{binding.threads}, {binding.mode}",
            binding.step.median * 1e3,
            _plus_minus(binding.step),
            binding.step.launches,
            *_gain(curve, binding),
        ]
        for curve in curves
        for binding in curve.bindings
    ]
    columns = ["workload", "CPUs", "cores", "node", "threads", "step (ms)", "± (%)", "launches", *GAIN]
    return Table(title="Every binding", columns=columns, rows=rows)


def _plus_minus(step: Interval) -> float | None:
    return 50 * (step.high - step.low) / step.median if step.bounded else None


def _chart(curves: Sequence[Curve], mode: str) -> Chart:
    series = []
    for curve in curves:
        gains = {binding.count: gain for binding in curve.along(mode) if (gain := curve.speedup(binding))}
        if len(gains) > 1:
            text = [f"speed-up {gain.median:.2f} ({gain.low:.2f} to {gain.high:.2f})" for gain in gains.values()]
            values = [100 * gain.median / count for count, gain in gains.items()]
            series.append(Series(name=curve.name, workload=curve.workload, x=list(gains), y=values, text=text))
    threads = "as many threads as cores" if mode == MATCHING else "as many threads as the machine has CPUs"
    return Chart(
        kind="line",
        title=f"Parallel efficiency with {threads}",
        x_title="cores",
        y_title="efficiency (%)",
        unit="%",
        series=series,
        log_x=True,
    )


def _has(curves: Sequence[Curve], mode: str) -> bool:
    return any(binding.mode == mode and binding.count > 1 for curve in curves for binding in curve.bindings)


def _notes(curves: Sequence[Curve]) -> list[str]:
    cpus = listed(list(dict.fromkeys(curve.cpu for curve in curves)))
    notes = [
        f"Measured on {cpus}. Efficiency is the step time on one core, over that on n cores, over n. Each run is a "
        "process of its own, bound to its CPUs (hardware threads) before torch is loaded: one per core as far as "
        "there are cores, NUMA node by NUMA node.",
        "Threads match the CPUs in number, or are as many as the whole machine has CPUs (all), as in a program that "
        "does not know of its binding. All/matching is the ratio of the two step times on half of the CPUs.",
        "From and to are a 95 % interval: the relative errors of the two medians, added in quadrature. Of a binding "
        "measured in several launches it is over launches. Of a binding measured in one, it is that of this process, "
        "whose steps are correlated, and no claim about the machine.",
        "The serial fraction is Amdahl's, fitted by least squares to the speed-ups with threads that match the CPUs.",
        f"Published: Fig. 2 of {published.MINSKY}, without printed numbers. It finds that "
        f"{listed(published.SCALING_WELL)} scale relatively well on up to 20 cores, with falling efficiency, and that "
        f"{listed(published.SCALING_BADLY)} do not.",
    ]
    if not any(binding.mode == SHARED for curve in curves for binding in curve.bindings):
        notes.append("Not measured: two hardware threads per core.")
    without = [curve.name for curve in curves if curve.base is None]
    if without:
        notes.append(f"No speed-up, as there is no run on one core: {', '.join(without)}.")
    return notes
