"""How large is the run-to-run variation of a program? Answers Fig. 4 of the Minsky study, CPU against CPU+GPU.

A launch is one process and gives one value per section. Every launch counts: outliers are shown, not dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.questions._launches import (
    PARTS,
    SECTIONS,
    Launches,
    Work,
    drawn_phase,
    head,
    identity,
    launched_often,
    measured_on,
    named,
    same_work,
    several_machines,
)
from fathom.analysis.statistics import LEAST_LAUNCHES, SIGN_TEST, coefficient_of_variation
from fathom.core.formatting import in_percent, least_and_most, span
from fathom.core.record import Record

TITLE = "How large is the run-to-run variation?"
ORDER = 120
SUGGESTED = 20  # launches
SIGNIFICANT = 0.05  # p-value of the Brown-Forsythe test: the error rate of the 95 % intervals
FEWEST_COMPARED = 5  # launches a side: of 3, no Brown-Forsythe test falls below p = 0.116
POWER = 0.8  # how often the smallest detectable ratio of deviations would have been significant
TRIALS = 2000  # simulated for it
MOST_SIMULATED = 200  # launches a side; for more, the ratio is that of so many, and smaller in truth
LARGEST_RATIO = 1000.0  # of deviations, tried; a test that misses this one finds none
WIDE = 3.0  # largest over smallest value from which an axis is logarithmic

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
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

    @property
    def fewest(self) -> int:
        """Launches on the side that has fewer."""
        return min(map(len, self.same_unit))

    @property
    def detectable(self) -> float | None:
        """The smallest ratio of deviations that as many launches would have shown; None where they would show none."""
        return None if self.fewest < FEWEST_COMPARED else detectable_ratio(*map(len, self.same_unit))


def analyse(records: Sequence[Record]) -> Finding:
    works, notes = same_work(records)
    often = launched_often(works)
    if not often:
        return not_measured("variance", TITLE, *missing(records, notes))
    launches = [each for work in often for each in work.modes]
    comparisons = [Comparison(work.cpu, gpu) for work in often if work.cpu for gpu in work.gpus]
    return Finding(
        question="variance",
        title=TITLE,
        summary=" ".join([_variation_summary(launches), *_comparison_summary(comparisons)]),
        tables=[*([_comparison_table(comparisons)] if comparisons else []), _distribution_table(launches)],
        charts=[_chart(often)],
        notes=[*_notes(often), *_few(works), *notes],
    )


def over_mean(launches: Launches, base: Launches) -> list[float]:
    """The wall times of launches over the mean of others, or of themselves."""
    mean = base.mean("wall_s") or 1.0
    return [seconds / mean for seconds in launches.seconds("wall_s")]


def gpu_variation(cpu: Sequence[float], gpu: Sequence[float]) -> str:
    """The GPU's variation relative to the CPU's, by the Brown-Forsythe test, which is robust to outliers."""
    if (fewest := min(len(cpu), len(gpu))) < FEWEST_COMPARED:
        return f"{fewest} launches a side cannot show a difference"
    if brown_forsythe(distances(cpu), distances(gpu))[0] < SIGNIFICANT:
        return "lower" if np.std(gpu, ddof=1) < np.std(cpu, ddof=1) else "higher"
    return "no significant difference"


def distances(values: Array | Sequence[float]) -> Array:
    """From the median of each row, without the distance that is zero by construction (Noguchi and Gel 2010).

    In an odd number of values the median is one of them; of an even number, two have the same distance. Left in, a test
    of five launches against five finds nothing: six in a thousand equal ones, where fifty are allowed.
    """
    rows = np.atleast_2d(np.asarray(values, dtype=float))
    found = np.sort(np.abs(rows - np.median(rows, axis=1, keepdims=True)), axis=1)
    if rows.shape[1] % 2:
        return np.asarray(found[:, 1:])
    return np.concatenate([np.sqrt(2) * found[:, :1], found[:, 2:]], axis=1)


def brown_forsythe(one: Array, other: Array) -> Array:
    """The p-value of each row: whether the distances of two groups have the same mean."""
    difference, free = one.mean(axis=1) - other.mean(axis=1), one.shape[1] + other.shape[1] - 2
    squares = sum(np.square(each - each.mean(axis=1, keepdims=True)).sum(axis=1) for each in (one, other))
    error = np.sqrt(squares / free * (1 / one.shape[1] + 1 / other.shape[1]))
    statistic = np.divide(np.abs(difference), error, out=np.where(difference == 0, 0.0, np.inf), where=error > 0)
    return np.asarray(2 * special.stdtr(free, -statistic))


def detectable_ratio(one: int, other: int) -> float | None:
    """The ratio of standard deviations that the test of so many launches finds with a probability of POWER."""
    return _simulated_ratio(min(one, other, MOST_SIMULATED), min(max(one, other), MOST_SIMULATED))


@cache
def _simulated_ratio(few: int, many: int) -> float | None:
    """By simulation with normal noise, the larger deviation on either side in turn: the larger ratio counts."""
    generator = np.random.default_rng(few)
    sides = [distances(generator.standard_normal((TRIALS, count))) for count in (few, many)]

    def power(ratio: float) -> float:
        one, other = sides
        found = [brown_forsythe(ratio * one, other), brown_forsythe(one, ratio * other)]
        return min(float(np.mean(each < SIGNIFICANT)) for each in found)

    low, high = 1.0, LARGEST_RATIO
    if power(high) < POWER:
        return None
    while high > 1.02 * low:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high


def missing(records: Sequence[Record], notes: list[str]) -> tuple[str, list[str], str]:
    """The command that would measure it, the notes, and the reason; a user's model or trace has no name to run."""
    known = [record.spec for record in records if record.outcome == "ok" and record.spec.source == "workload"]
    names = dict.fromkeys(spec.workload for spec in known)
    reason = f"no configuration has {LEAST_LAUNCHES} launches" if names else ""
    return " ".join(["fathom repeat", *names, f"--runs {SUGGESTED}"]), notes, reason


def _variation_summary(launches: Sequence[Launches]) -> str:
    phase = drawn_phase(each.phase for each in launches)
    drawn = [each for each in launches if each.phase == phase]
    parts = []
    for mode in dict.fromkeys(each.mode for each in drawn):
        own = [each for each in drawn if each.mode == mode]
        variations = {named(each, own): _variation(each) for each in own}
        parts.append(f"{least_and_most(variations, '.1f', ' %')} on {mode}")
    return f"Coefficient of variation of the wall time between launches: {'; '.join(parts)}."


def _variation(launches: Launches) -> float:
    """Of the wall time, in percent."""
    return 100 * (coefficient_of_variation(launches.seconds("wall_s")) or 0.0)


def _comparison_summary(comparisons: Sequence[Comparison]) -> list[str]:
    """What was shown, and what could have been: a test that could not have come out otherwise is not reported."""
    few = [each for each in comparisons if each.fewest < FEWEST_COMPARED]
    tested = [each for each in comparisons if each.fewest >= FEWEST_COMPARED]
    sentences = []
    if tested:
        absolute = [gpu_variation(*comparison.same_unit) for comparison in tested]
        relative = [gpu_variation(*comparison.own_unit) for comparison in tested]
        sentences.append(
            f"Absolute variation with a GPU is lower than on the CPU for {absolute.count('lower')} of {len(tested)} "
            f"{_things(tested)} and higher for {absolute.count('higher')}; the Minsky study found it consistently "
            f"lower. Relative to its own mean it is lower for {relative.count('lower')} and higher for "
            f"{relative.count('higher')}. "
            + could_have_shown([each.fewest for each in tested], [each.detectable for each in tested])
        )
    if few:
        names = f" for {len(few)} of {len(comparisons)} {_things(comparisons)}" if tested else ""
        sentences.append(too_few([each.fewest for each in few], names))
    return sentences


def _things(comparisons: Sequence[Comparison]) -> str:
    """What is counted: one workload may be compared in both phases, and on several machines."""
    names = {each.cpu.workload for each in comparisons}
    return "workloads" if len(names) == len(comparisons) else f"comparisons of {len(names)} workloads"


def too_few(fewest: Sequence[int], names: str = "") -> str:
    """Of so many launches a side no test is made."""
    return (
        f"{span(fewest)} launches a side cannot show a difference between CPU and GPU{names}; "
        f"at least {FEWEST_COMPARED} are needed."
    )


def could_have_shown(fewest: Sequence[int], detectable: Sequence[float | None]) -> str:
    """Of tests with so many launches on their smaller side, the smallest ratio of deviations that each would find."""
    launches = f"With {span(fewest)} launches a side"
    known = [ratio for ratio in detectable if ratio is not None]
    often = f"in {100 * POWER:.0f} of 100 cases"
    if not known:
        return f"{launches}, no ratio of standard deviations, however large, would have been found {often}."
    none = len(detectable) - len(known)
    some = f" ({none} of {len(detectable)} comparisons find none)" if none else ""
    return f"{launches}, the smallest ratio of standard deviations found {often} is {span(known)}{some}."


def _comparison_table(comparisons: Sequence[Comparison]) -> Table:
    several = several_machines([comparison.gpu for comparison in comparisons])
    rows: list[list[Cell]] = []
    for comparison in comparisons:
        cells: list[Cell] = [
            comparison.cpu.workload,
            comparison.cpu.phase,
            *([comparison.gpu.machine] if several else []),
        ]
        for values in (comparison.same_unit, comparison.own_unit):
            cells += [*(100 * float(np.std(each, ddof=1)) for each in values), gpu_variation(*values)]
        rows.append([*cells, comparison.fewest, comparison.detectable])
    columns = ["workload", "phase", *(["GPU"] if several else [])]
    for unit in ("CPU's", "own"):
        columns += [f"CPU (% of {unit} mean)", f"CPU+GPU (% of {unit} mean)", f"variation with a GPU, of {unit} mean"]
    columns += ["launches a side", "smallest detectable ratio"]
    return Table(title="Standard deviation of the wall time, CPU and CPU+GPU", columns=columns, rows=rows)


def _distribution_table(launches: Sequence[Launches]) -> Table:
    rows: list[list[Cell]] = []
    for each in launches:
        for name, section in {**SECTIONS, **PARTS}.items():
            if found := each.distribution(section):
                moments: list[Cell] = [found.mean, found.deviation, in_percent(found.variation)]
                quantiles: list[Cell] = [found.p5, found.median, found.p95, found.low, found.high]
                following: list[Cell] = [found.next_low, found.next_high]
                rows.append([*identity(each, launches), name, found.count, *moments, *quantiles, *following])
    columns = [*head(launches), "section", "launches", "mean (s)", "standard deviation (s)", "variation (%)", "p5 (s)"]
    columns += ["median (s)", "p95 (s)", "median, 95 % from (s)", "median, 95 % to (s)"]
    columns += ["next launch, 95 % from (s)", "next launch, 95 % to (s)"]
    return Table(title="Every section, over launches", columns=columns, rows=rows)


def _chart(works: Sequence[Work]) -> Chart:
    phase = drawn_phase(work.phase for work in works)
    drawn = [work for work in works if work.phase == phase]
    several = several_machines([launches for work in drawn for launches in work.modes])
    boxes: dict[str, tuple[list[str], list[float]]] = {}
    for work in drawn:
        for launches in work.modes:
            name = f"{launches.mode}, {launches.machine}" if several else launches.mode
            names, values = boxes.setdefault(name, ([], []))
            own = over_mean(launches, work.cpu or launches)
            names += [work.workload] * len(own)
            values += own
    everything = [value for _, values in boxes.values() for value in values]
    return Chart(
        kind="box",
        title=f"Wall time of every launch over the CPU's mean: {phase}",
        x_title="workload",
        y_title="wall time over the CPU's mean",
        series=[Series(name=name, x=names, y=values) for name, (names, values) in boxes.items()],
        log_y=max(everything) > WIDE * min(everything),
    )


def _notes(works: Sequence[Work]) -> list[str]:
    notes = [
        measured_on([launches for work in works for launches in work.modes]),
        "A launch is one process; outliers count. Variation is the standard deviation over the mean.",
        f"The median's interval holds the median over all launches: by the sign test from {SIGN_TEST} launches on, by "
        "Student's t on logarithms for fewer. The interval of the next launch holds its time in 95 of 100 cases.",
        f"Published: Fig. 4 of {published.MINSKY}, a figure without printed numbers: {published.MINSKY_LAUNCHES} "
        f"launches of each workload on {published.MINSKY_MACHINE}.",
    ]
    if any(work.cpu and work.gpus for work in works):
        notes.append(
            f"Variation is lower or higher where the Brown-Forsythe test has p below {SIGNIFICANT}. It needs "
            f"{FEWEST_COMPARED} launches a side. The smallest detectable ratio of standard deviations is the one that "
            f"it finds in {100 * POWER:.0f} of 100 cases, with normal noise."
        )
    if alone := [each for work in works if work.cpu is None for each in work.modes]:
        notes.append(f"Over their own mean, as there are no launches on the host's CPU: {_names(alone)}.")
    return notes


def _few(works: Sequence[Work]) -> list[str]:
    few = [each for work in works for each in work.modes if len(each.runs) < LEAST_LAUNCHES]
    return [f"Not shown: fewer than {LEAST_LAUNCHES} launches: {_names(few)}."] if few else []


def _names(found: Sequence[Launches]) -> str:
    return "; ".join(f"{each.workload} {each.phase} on {each.machine}" for each in found)
