"""Do workloads that scale over cores gain more from a GPU? Fig. 2 and section 4.6 of the Minsky study, beside ours.

The study finds that a GPU helps most where a CPU's cores do. Efficiency is that of the question `cores`; the GPU's gain
is the speed of a step on the GPU over the CPU of the same host, on the same work. The study trained; inference is shown
without its numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.equal_work import Work, groups_by_work, same_network
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.questions.cores import ALL, MATCHING, Binding, Curve, curves_of
from fathom.analysis.ratio import Ratio, ratio
from fathom.analysis.selection import completeness, on_cpu, usable
from fathom.analysis.statistics import Interval
from fathom.analysis.step_time import settled_steps, step_time
from fathom.core.formatting import finite, least_and_most, listed
from fathom.core.record import Record
from fathom.core.spec import EAGER, PHASES

TITLE = "Do workloads that scale over cores gain more from a GPU?"
ORDER = 105
FEWEST = 5  # workloads from which a rank correlation is given: of four, none is significant
WELL, BADLY, UNSAID = "scales well", "does not scale", "no statement"


@dataclass(frozen=True)
class Row:
    """One workload in one phase on one host."""

    curve: Curve
    widest: Binding
    efficiency: Interval | None  # on the most cores, threads matching
    gain: Ratio | None  # the GPU's speed over the CPU's; None where they did no work in common

    @property
    def published(self) -> str:
        name = self.curve.workload if self.curve.phase == "train" else ""
        return WELL if name in published.SCALING_WELL else BADLY if name in published.SCALING_BADLY else UNSAID

    @property
    def published_gain(self) -> float | None:
        """Of a whole program: the study times no steps."""
        sections = published.sections().get((self.curve.workload, "CPU+GPU"))
        return 1 / sections.wall if sections and self.curve.phase == "train" else None


def analyse(records: Sequence[Record]) -> Finding:
    curves = curves_of(records)
    if not any(curve.base for curve in curves):
        return not_measured("scalability", TITLE, "fathom scale")
    gains = gpu_gains(records)
    rows = [_row(curve, gains) for curve in curves]
    return Finding(
        question="scalability",
        title=TITLE,
        summary=_summary(rows),
        tables=[_table(rows), _figure_table(curves)],
        charts=[_chart(rows)],
        notes=_notes(rows),
    )


def gpu_gains(records: Sequence[Record]) -> dict[tuple[str, str, str], Ratio]:
    """(workload, phase, CPU of the host) -> how many times as fast its GPU is on the most complete work of both."""
    sides: dict[tuple[Work, str], dict[bool, list[Record]]] = defaultdict(dict)
    for (work, _), group in groups_by_work(usable(records, False, PHASES)[0]).items():
        run = group.runs[0]
        if run.spec.engine == EAGER:  # as the CPU's
            modes = sides[work, run.machine.cpu.name]
            modes[on_cpu(run)] = max(modes.get(on_cpu(run), group.runs), group.runs, key=_preferred)
    found: dict[tuple[str, str, str], tuple[tuple[float | str, ...], Ratio]] = {}
    for (work, host), modes in sides.items():
        if len(modes) == 2 and same_network(modes[True][0], modes[False][0]):
            gain = ratio(*([settled_steps(run) for run in modes[cpu]] for cpu in (False, True)))
            rank = max(map(completeness, modes[False]))
            key = (work.workload, work.phase, host)
            found[key] = max(found.get(key, (rank, gain)), (rank, gain), key=lambda each: each[0])
    return {key: gain for key, (_, gain) in found.items()}


def _preferred(runs: Sequence[Record]) -> tuple[object, ...]:
    """Of several cards in one host, and of several numbers of cores: the most complete, then the fastest."""
    return max(completeness(run)[:-1] for run in runs), -step_time(runs).median  # whenever they were made


def _row(curve: Curve, gains: dict[tuple[str, str, str], Ratio]) -> Row:
    widest = max(curve.along(MATCHING) or curve.bindings, key=lambda binding: binding.count)
    return Row(curve, widest, curve.efficiency(widest), gains.get((curve.workload, curve.phase, curve.cpu)))


def rank_correlation(pairs: Sequence[tuple[float | None, float | None]]) -> tuple[float, int, float] | None:
    """Spearman's, over how many workloads, and its p-value; None for fewer than FEWEST, or where all are equal."""
    known = [(one, other) for one, other in pairs if one is not None and other is not None]
    if len(known) < FEWEST or any(len(set(side)) == 1 for side in zip(*known, strict=True)):
        return None
    from scipy.stats import spearmanr  # takes a second to import

    found = spearmanr(*zip(*known, strict=True))
    return float(found.statistic), len(known), float(found.pvalue)


def _summary(rows: Sequence[Row]) -> str:
    """Of training, as in the study, where it was run."""
    rows = [row for row in rows if row.curve.phase == "train"] or rows
    hosts = list(dict.fromkeys(row.curve.cpu for row in rows))
    sentences = []
    for host in hosts:  # efficiencies on other numbers of cores, of other cores, are not ranked together
        own, where = [row for row in rows if row.curve.cpu == host], f"{host}: " if len(hosts) > 1 else ""
        sentences += [f"{where}{each}" for each in (_order_sentence(own), _correlation_sentence(own)) if each]
    return " ".join(sentences)


def _correlation_sentence(rows: Sequence[Row]) -> str:
    pairs = [(row.efficiency.median if row.efficiency else None, row.gain.value if row.gain else None) for row in rows]
    if (found := rank_correlation(pairs)) is None:
        return f"Fewer than {FEWEST} workloads have both an efficiency and a GPU's gain on the same work."
    return (
        f"Rank correlation of parallel efficiency with the GPU's gain on the same work: {found[0]:.2f} over "
        f"{found[1]} workloads (p = {found[2]:.2g}); the study finds larger gains where cores scale well."
    )


def _order_sentence(rows: Sequence[Row]) -> str:
    """Whether the workloads that scale well in the study scale better on a host than those that do not."""
    well, badly = (
        {row.curve.name: 100 * row.efficiency.median for row in rows if row.published == kind and row.efficiency}
        for kind in (WELL, BADLY)
    )
    if not well or not badly:
        return ""
    ours = {
        kind: [row.efficiency for row in rows if row.published == kind and row.efficiency] for kind in (WELL, BADLY)
    }
    answer = "the same order" if min(well.values()) > max(badly.values()) else "not the same order"
    if answer == "the same order" and min(each.low for each in ours[WELL]) <= max(each.high for each in ours[BADLY]):
        answer = "the same order, but their intervals overlap"
    return (
        f"Parallel efficiency on the most cores is {least_and_most(well, '.0f', ' %')} for the workloads that scale "
        f"well in the Minsky study, and {least_and_most(badly, '.0f', ' %')} for those that do not: {answer}."
    )


def _table(rows: Sequence[Row]) -> Table:
    cells: list[list[Cell]] = []
    for row in rows:
        shares: list[Cell] = [*row.efficiency.cells(100)] if row.efficiency else [None] * 3
        gain: list[Cell] = [row.gain.value, finite(row.gain.low), finite(row.gain.high)] if row.gain else [None] * 3
        head: list[Cell] = [row.curve.name, row.published, row.widest.count]
        cells.append([*head, *shares, *gain, row.published_gain])
    columns = ["workload", "published, Fig. 2", "cores, ours", "efficiency (%)", "95 % from (%)", "95 % to (%)"]
    columns += ["GPU over CPU, step", "95 % from", "95 % to", "published, program"]
    return Table(title="Scaling over cores and the gain of a GPU", columns=columns, rows=cells, leading=True)


def _figure_table(curves: Sequence[Curve]) -> Table:
    """Fig. 2 in full: every workload at every number of cores, with both sizes of the thread pool."""
    counts = sorted({binding.count for curve in curves for binding in curve.bindings})
    rows: list[list[Cell]] = []
    for curve in curves:
        for mode, threads in ((MATCHING, "as many as cores"), (ALL, "as many as the machine has")):
            at = {binding.count: curve.efficiency(binding) for binding in curve.along(mode)}
            if at:
                values: list[Cell] = [100 * found.median if found else None for found in map(at.get, counts)]
                rows.append([curve.name, threads, *values])
    columns = ["workload", "threads", *(f"{count} {'core' if count == 1 else 'cores'} (%)" for count in counts)]
    return Table(title="Parallel efficiency at every number of cores, as in Fig. 2", columns=columns, rows=rows)


def _chart(rows: Sequence[Row]) -> Chart:
    series = [
        Series(
            name=row.curve.name,
            x=[100 * row.efficiency.median],
            y=[row.gain.value],
            text=[f"published: {row.published}"],
            workload=row.curve.workload,
        )
        for row in sorted(rows, key=lambda row: (WELL, BADLY, UNSAID).index(row.published))
        if row.efficiency and row.gain
    ]
    if not series:  # no GPU: efficiency alone
        known_rows = [row for row in rows if row.efficiency]
        names = [row.curve.name for row in known_rows]
        values = [100 * row.efficiency.median for row in known_rows if row.efficiency]
        bars = [Series(name="measured", x=names, y=values)]
        return Chart(
            kind="bar",
            title="Parallel efficiency on the most cores",
            x_title="workload",
            y_title="efficiency (%)",
            unit="%",
            series=bars,
        )
    return Chart(
        kind="scatter",
        title="Parallel efficiency, and the GPU's gain on the same work",
        x_title="efficiency on the most cores (%)",
        y_title="GPU over CPU, speed of a step",
        series=series,
        log_y=True,
    )


def _notes(rows: Sequence[Row]) -> list[str]:
    without = [row.curve.name for row in rows if row.gain is None]
    notes = [
        f"Published: Fig. 2 of {published.MINSKY}, parallel efficiency on 1 to 20 cores, without printed numbers; its "
        f"text says that {listed(published.SCALING_WELL)} scale relatively well and {listed(published.SCALING_BADLY)} "
        "do not. The program's gain is from its Table 2. "
        f"{published.MINSKY_MACHINE[0].upper()}{published.MINSKY_MACHINE[1:]}.",
        "The study bound programs to cores and left the thread pool as large as the machine. The efficiency in the "
        "first table is with as many threads as cores; the second table has both sizes of the pool.",
        "Gains are of a step here and of a whole program in the study. Where batches are smaller than the "
        "study's, as those of the preset small are, there is less work to divide among cores.",
    ]
    return [*notes, f"No GPU's gain on the same work: {listed(without)}."] if without else notes
