"""How much does each section of a program vary between launches? Fig. 4 of the Minsky study in full, CPU and CPU+GPU.

Mean and standard deviation of every section are over the CPU's mean wall time, as the study has them. It prints the
means, in its Table 2, and draws the deviations without numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.questions._launches import (
    MODES,
    SECTIONS,
    Launches,
    Work,
    drawn_phase,
    launched_often,
    measured_on,
    named,
    same_work,
)
from fathom.analysis.questions.variance import (
    FEWEST_COMPARED,
    SIGNIFICANT,
    could_have_shown,
    detectable_ratio,
    gpu_variation,
    missing,
    too_few,
)
from fathom.core.formatting import least_and_most, listed
from fathom.core.record import Record

TITLE = "How much does each section of a program vary between launches?"
ORDER = 121


@dataclass(frozen=True)
class Side:
    """One section in one mode: its time in each launch over the CPU's mean wall time, and the mean in print."""

    values: list[float]
    published: float | None

    @property
    def cells(self) -> list[Cell]:
        """Launches, mean, standard deviation, published mean; the deviation of a single launch is not known."""
        if not self.values:
            return [None, None, None, self.published]
        return [len(self.values), statistics.fmean(self.values), self.deviation, self.published]

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Row:
    """One section of one workload on one host: on its CPU alone, and with a GPU where there is one."""

    work: Work
    gpu: Launches | None
    section: str
    sides: tuple[Side, Side]  # in the order of MODES

    @property
    def fewest(self) -> int:
        return min(len(side.values) for side in self.sides)

    @property
    def with_gpu(self) -> str | None:
        """The variation with a GPU, compared with the CPU's; None where one of them was not launched."""
        cpu, gpu = (side.values for side in self.sides)
        return gpu_variation(cpu, gpu) if cpu and gpu else None

    @property
    def detectable(self) -> float | None:
        if self.fewest < FEWEST_COMPARED:
            return None
        return detectable_ratio(*(len(side.values) for side in self.sides))


def analyse(records: Sequence[Record]) -> Finding:
    works, notes = same_work(records)
    often = launched_often(works)
    rows = [row for work in often for row in rows_of(work)]
    if not rows:
        return not_measured("section_variation", TITLE, *missing(records, notes))
    return Finding(
        question="section_variation",
        title=TITLE,
        summary=_summary(rows),
        tables=[_table(rows)],
        charts=_charts(rows),
        notes=[measured_on([each for work in often for each in work.modes]), *_notes(rows), *notes],
    )


def rows_of(work: Work) -> Iterator[Row]:
    """A row for each section and GPU; none without launches on the CPU, whose mean wall time is the unit."""
    base = work.cpu.mean("wall_s") if work.cpu else None
    if base is None:
        return
    gpus: list[Launches | None] = [*work.gpus] or [None]
    for gpu in gpus:
        for name, section in SECTIONS.items():
            sides = [
                Side(
                    [seconds / base for seconds in launches.seconds(section)] if launches else [],
                    _published(work, mode, name),
                )
                for mode, launches in zip(MODES, (work.cpu, gpu), strict=True)
            ]
            yield Row(work, gpu, name, (sides[0], sides[1]))


def _published(work: Work, mode: str, section: str) -> float | None:
    """The study trained; its figure and table have no inference."""
    found = published.sections().get((work.workload, mode)) if work.phase == "train" else None
    return getattr(found, section.lower()) if found else None


def _summary(rows: Sequence[Row]) -> str:
    phase = drawn_phase(row.work.phase for row in rows)
    drawn = [row for row in rows if row.work.phase == phase]
    compared = [row for row in drawn if row.fewest >= FEWEST_COMPARED]
    sentences = _wall_deviations(drawn)
    if compared:
        parts = []
        for section in SECTIONS:
            results = [row.with_gpu for row in compared if row.section == section]
            parts.append(f"{section} {results.count('lower')} and {results.count('higher')} of {len(results)}")
        sentences.append(
            f"Workloads whose variation with a GPU is lower and higher than on the CPU: {'; '.join(parts)}. "
            + could_have_shown([row.fewest for row in compared], [row.detectable for row in compared])
        )
    elif any(row.fewest for row in drawn):
        sentences.append(too_few([row.fewest for row in drawn if row.fewest]))
    return " ".join(sentences)


def _wall_deviations(rows: Sequence[Row]) -> list[str]:
    """A sentence for each mode: the least and the largest deviation of the wall time, and whose they are."""
    sentences = []
    for index, mode in enumerate(MODES):
        sides = [(row.gpu if index else row.work.cpu, row.sides[index]) for row in rows if row.section == "WALL"]
        known = [(launches, side.deviation) for launches, side in sides if launches and side.deviation is not None]
        values = {named(launches, [own for own, _ in known]): 100 * deviation for launches, deviation in known}
        if values:
            ends = least_and_most(values, ".2g", " %")
            sentences.append(f"Standard deviation of WALL on {mode}, over the CPU's mean: {ends}.")
    return sentences


def _table(rows: Sequence[Row]) -> Table:
    several = len({(row.work.host, row.gpu.machine if row.gpu else None) for row in rows}) > 1
    cells: list[list[Cell]] = [
        [
            *(row.work.workload, row.work.phase),
            *([row.work.host, row.gpu.machine if row.gpu else None] if several else []),
            row.section,
            *(cell for side in row.sides for cell in side.cells),
            row.with_gpu,
            row.detectable,
        ]
        for row in rows
    ]
    columns = ["workload", "phase", *(["CPU", "GPU"] if several else []), "section"]
    for mode in MODES:
        columns += [f"{mode}: launches", f"{mode}: mean", f"{mode}: standard deviation", f"{mode}: published mean"]
    return Table(
        title="Mean and standard deviation of every section over the CPU's mean wall time",
        columns=[*columns, "variation with a GPU", "smallest detectable ratio"],
        rows=cells,
        leading=True,
    )


def _charts(rows: Sequence[Row]) -> list[Chart]:
    """One for each mode: the deviation of every section."""
    phase, charts = drawn_phase(row.work.phase for row in rows), []
    for index, mode in enumerate(MODES):
        drawn = [row for row in rows if row.work.phase == phase and row.sides[index].deviation is not None]
        if not drawn:
            continue
        series = []
        for section in SECTIONS:
            own = [row for row in drawn if row.section == section]
            launched = [each for row in own if (each := row.gpu if index else row.work.cpu)]
            names = [named(each, launched) for each in launched]
            series.append(Series(name=section, x=names, y=[row.sides[index].deviation for row in own]))
        charts.append(
            Chart(
                kind="bar",
                title=f"Standard deviation of every section on {mode}: {phase}",
                x_title="workload",
                y_title="standard deviation over the CPU's mean wall time",
                series=series,
            )
        )
    return charts


def _notes(rows: Sequence[Row]) -> list[str]:
    notes = [
        "Every value is over the mean wall time of the same work on the CPU. MAIN includes INIT, SETUP and RUN; WALL "
        "includes MAIN. A launch is one process; outliers count.",
        f"Published: means of Table 2 of {published.MINSKY}, over {published.MINSKY_LAUNCHES} launches of each "
        f"workload on {published.MINSKY_MACHINE}. Its Fig. 4 draws how they vary and prints no numbers; its text says "
        "that variation with a GPU is consistently lower than on the CPU.",
    ]
    tests = sum(row.fewest >= FEWEST_COMPARED for row in rows)
    if tests:
        notes.append(
            f"Variation is lower or higher where the Brown-Forsythe test has p below {SIGNIFICANT}, from "
            f"{FEWEST_COMPARED} launches a side on. Of {tests} such tests, about {SIGNIFICANT * tests:.0f} are "
            "significant by chance alone."
        )
    if unprinted := [name for name in dict.fromkeys(row.work.workload for row in rows) if not _in_print(name)]:
        notes.append(f"Not in the study: {listed(unprinted)}.")
    return notes


def _in_print(workload: str) -> bool:
    return any(name == workload for name, _ in published.sections())
