"""How much do launches of the same program differ? Answers Fig. 4 of the Minsky study, CPU against CPU+GPU.

A launch is one process and gives one value a section. Every launch counts: outliers are shown, not dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.questions._launches import (
    PARTS,
    SECTIONS,
    Launches,
    Work,
    drawn_phase,
    head,
    measured_on,
    named,
    same_work,
    whose,
)
from fathom.analysis.questions._words import in_percent, least_and_most, unanswered
from fathom.analysis.statistics import LEAST_LAUNCHES, coefficient_of_variation
from fathom.core.record import Record

TITLE = "How much do launches of the same program differ?"
SUGGESTED = 20  # launches
SIGNIFICANT = 0.05  # of the test of two spreads: as likely to mislead as the 95 % intervals are
WIDE = 3.0  # largest over smallest value from which an axis is logarithmic


@dataclass(frozen=True)
class Contest:
    """The wall times of one workload on the CPU alone and with one GPU, both launched often enough."""

    cpu: Launches
    gpu: Launches

    @property
    def same_unit(self) -> tuple[list[float], list[float]]:
        """Both over the CPU's mean, as the Minsky study's Fig. 4 has them."""
        return over_mean(self.cpu, self.cpu), over_mean(self.gpu, self.cpu)

    @property
    def own_unit(self) -> tuple[list[float], list[float]]:
        """Each over its own mean."""
        return over_mean(self.cpu, self.cpu), over_mean(self.gpu, self.gpu)


def analyse(records: Sequence[Record]) -> Finding:
    works, notes = same_work(records)
    often = [
        Work(enough) for work in works if (enough := [each for each in work.modes if len(each.runs) >= LEAST_LAUNCHES])
    ]
    if not often:
        return unanswered("variance", TITLE, _missing(records), notes)
    launches = [each for work in often for each in work.modes]
    contests = [Contest(work.cpu, gpu) for work in often if work.cpu for gpu in work.gpus]
    return Finding(
        question="variance",
        title=TITLE,
        summary=f"{_spread_summary(launches)}{_contest_summary(contests)}",
        tables=[*([_contest_table(contests)] if contests else []), _spread_table(launches)],
        charts=[_chart(often)],
        notes=[*_notes(often), *_few(works), *notes],
    )


def over_mean(launches: Launches, base: Launches) -> list[float]:
    """The wall times of launches over the mean of others, or of themselves."""
    mean = base.mean("wall_s") or 1.0
    return [seconds / mean for seconds in launches.seconds("wall_s")]


def told_apart(cpu: Sequence[float], gpu: Sequence[float]) -> str:
    """How the GPU's spread is beside the CPU's, by the test of Brown and Forsythe, which outliers do not mislead."""
    if stats.levene(cpu, gpu, center="median").pvalue < SIGNIFICANT:
        return "lower" if stats.tstd(gpu) < stats.tstd(cpu) else "higher"
    return "not told apart"


def _missing(records: Sequence[Record]) -> str:
    names = dict.fromkeys(record.spec.workload for record in records if record.outcome == "ok")
    command = " ".join(["fathom repeat", *names, f"--runs {SUGGESTED}"])
    return f"no configuration was launched {LEAST_LAUNCHES} times; `{command}` would answer it"


def _spread_summary(launches: Sequence[Launches]) -> str:
    phase = drawn_phase(each.phase for each in launches)
    drawn = [each for each in launches if each.phase == phase]
    told = []
    for mode in dict.fromkeys(each.mode for each in drawn):
        own = [each for each in drawn if each.mode == mode]
        variations = {named(each, own): _variation(each) for each in own}
        told.append(f"{least_and_most(variations, '.1%')} on {mode}")
    return f"From launch to launch the total time varies by {' and by '.join(told)} (standard deviation over mean)."


def _variation(launches: Launches) -> float:
    return coefficient_of_variation(launches.seconds("wall_s")) or 0.0


def _contest_summary(contests: Sequence[Contest]) -> str:
    if not contests:
        return ""
    in_seconds = [told_apart(*contest.same_unit) for contest in contests]
    relative = [told_apart(*contest.own_unit) for contest in contests]
    lower, many = in_seconds.count("lower"), len(contests)
    return (
        f" In seconds the GPU's spread is lower than the CPU's for {lower} of {many} workloads and higher for "
        f"{in_seconds.count('higher')}; the Minsky study found it consistently lower. Over its own mean it is "
        f"lower for {relative.count('lower')} and higher for {relative.count('higher')}."
    )


def _contest_table(contests: Sequence[Contest]) -> Table:
    several = len({contest.cpu.machine for contest in contests}) > 1
    rows: list[list[Cell]] = []
    for contest in contests:
        cells: list[Cell] = [contest.cpu.workload, contest.cpu.phase, *([contest.gpu.place] if several else [])]
        for values in (contest.same_unit, contest.own_unit):
            cells += [*(100 * float(stats.tstd(each)) for each in values), told_apart(*values)]
        rows.append(cells)
    columns = ["workload", "phase", *(["GPU"] if several else [])]
    for unit in ("CPU's", "own"):
        columns += [f"CPU (% of {unit} mean)", f"CPU+GPU (% of {unit} mean)", f"the GPU's, of {unit} mean"]
    return Table(title="Standard deviation of the wall time, CPU against CPU+GPU", columns=columns, rows=rows)


def _spread_table(launches: Sequence[Launches]) -> Table:
    rows: list[list[Cell]] = []
    for each in launches:
        for name, section in {**SECTIONS, **PARTS}.items():
            if found := each.spread(section):
                moments: list[Cell] = [found.mean, found.deviation, in_percent(found.variation)]
                places: list[Cell] = [found.p5, found.median, found.p95, found.low, found.high]
                rows.append([*whose(each, launches), name, found.count, *moments, *places])
    columns = [*head(launches), "section", "launches", "mean (s)", "deviation (s)", "variation (%)", "p5 (s)"]
    columns += ["median (s)", "p95 (s)", "median, 95 % from (s)", "to (s)"]
    return Table(title="Every section over the launches", columns=columns, rows=rows)


def _chart(works: Sequence[Work]) -> Chart:
    phase = drawn_phase(work.phase for work in works)
    drawn = [work for work in works if work.phase == phase]
    several = len({work.machine for work in drawn}) > 1
    boxes: dict[str, tuple[list[str], list[float]]] = {}
    for work in drawn:
        for launches in work.modes:
            name = f"{launches.mode}, {launches.place}" if several else launches.mode
            names, values = boxes.setdefault(name, ([], []))
            own = over_mean(launches, work.cpu or launches)
            names += [work.workload] * len(own)
            values += own
    everything = [value for _, values in boxes.values() for value in values]
    return Chart(
        kind="box",
        title=f"Total time of every launch, over the mean on the CPU: {phase}",
        x_title="workload",
        y_title="wall time over the CPU's mean",
        series=[Series(name=name, x=names, y=values) for name, (names, values) in boxes.items()],
        log_y=max(everything) > WIDE * min(everything),
    )


def _notes(works: Sequence[Work]) -> list[str]:
    notes = [
        measured_on([launches for work in works for launches in work.modes]),
        "One launch is one process, and outliers count as any other. Variation is the standard deviation over the "
        "mean; the interval is the 95 % bootstrap interval of the median over launches.",
        f"Published: Fig. 4 of {published.MINSKY}, a picture without numbers: {published.MINSKY_LAUNCHES} launches of "
        f"each workload on {published.MINSKY_MACHINE}.",
    ]
    if any(work.cpu and work.gpus for work in works):
        notes.append(
            f"A spread is called lower or higher where the test of Brown and Forsythe has p below {SIGNIFICANT}."
        )
    if alone := [each for work in works if work.cpu is None for each in work.modes]:
        notes.append(f"Over their own mean, without launches on the CPU of the machine: {_names(alone)}.")
    return notes


def _few(works: Sequence[Work]) -> list[str]:
    few = [each for work in works for each in work.modes if len(each.runs) < LEAST_LAUNCHES]
    return [f"Left out, launched fewer than {LEAST_LAUNCHES} times: {_names(few)}."] if few else []


def _names(found: Sequence[Launches]) -> str:
    return "; ".join(f"{each.workload} {each.phase} on {each.place}" for each in found)
