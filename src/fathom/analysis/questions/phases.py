"""How do training and inference compare, on each machine? Answers Fig. 5 of the 2016 paper, at equal batches.

Machines are compared on equal work: same network, batch, precision and data. Where two machines have no work in common,
a table of its own compares them per item, with both batches in the row, and no summary is made of it. The paper
normalises to training on the CPU, its slowest configuration; among several CPUs the slowest is taken here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import geometric_mean

from fathom import published
from fathom.analysis.equal_work import same_network
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.questions._timings import (
    Pair,
    Timing,
    Timings,
    differing_items,
    machines_of,
    pairs_with,
    reference_of,
    relative,
    slowest_machine,
    timings_of,
    train_over_infer,
)
from fathom.analysis.ratio import FLOOR, Ratio
from fathom.analysis.selection import usable, workload_order
from fathom.analysis.step_time import UNSTEADY, levels, no_interval, throughput
from fathom.core.formatting import listed, mean_and_range, number
from fathom.core.record import Record
from fathom.core.spec import PHASES

TITLE = "How fast are training and inference on each machine?"
ORDER = 20
DOING = {"train": "training", "infer": "inference"}


def analyse(records: Sequence[Record]) -> Finding:
    sound, notes = usable(records, False, PHASES)
    timings = timings_of(sound)
    if not timings:
        return not_measured("phases", TITLE, "fathom study", notes)
    base = slowest_machine(timings)
    pairs = list(pairs_with(timings, base))
    equal = [pair for pair in pairs if pair.equal and pair.comparable]
    unequal = [pair for pair in pairs if not pair.equal and pair.comparable]
    uncounted = dict.fromkeys(run.spec.workload for run in sound if run.items_per_step is None)
    if uncounted:
        notes.append(f"Not shown: runs without a recorded number of items per step: {listed(list(uncounted))}.")
    return Finding(
        question="phases",
        title=TITLE,
        summary=_summary(timings, base, equal, unequal),
        tables=[
            *([_speed_table(equal, base)] if equal else []),
            _step_table(timings, base),
            _phase_table(timings, base),
            *([_unequal_table(unequal, base)] if unequal else []),
        ],
        charts=[_chart(timings, base)],
        notes=[*_notes(timings, base, pairs), *notes],
    )


def _summary(timings: Timings, base: str, equal: Sequence[Pair], unequal: Sequence[Pair]) -> str:
    sentences, apart = [], []
    for machine in dict.fromkeys(pair.ours.machine for pair in (*equal, *unequal)):
        own = [pair for pair in equal if pair.ours.machine == machine]
        if trained := [pair for pair in own if pair.ours.work.phase == "train"] or own:
            sentences.append(_speed_sentence(trained, base))
        else:
            apart.append(machine)
    sentences += [_no_headline(apart, base)] if apart else []
    for machine in machines_of(timings):
        found = train_over_infer(timings, base, machine)
        if found:
            mean, over = mean_and_range({name: pair.speed.value for name, pair in found.items()})
            sentences.append(f"On {machine}, training takes {mean} times as long as inference {over}.")
    if not sentences:
        return "Only one configuration: nothing to compare." if len(timings) == 1 else "No two comparable runs."
    return " ".join(sentences)


def _speed_sentence(pairs: Sequence[Pair], base: str) -> str:
    speeds = {pair.ours.work.workload: pair.speed for pair in pairs}
    mean, over = mean_and_range({name: speed.value for name, speed in speeds.items()})
    if len(speeds) == 1:
        ((name, only),) = speeds.items()
        over = f"({name}; {_interval(only)})"
    machine, doing = pairs[0].ours.machine, DOING[pairs[0].ours.work.phase]
    return f"On the same work, {doing} on {machine} is {mean} times as fast as on {base} {over}."


def _interval(speed: Ratio) -> str:
    if not math.isfinite(speed.high):
        return "from a single step, so without an interval"
    return f"95 % interval {number(speed.low)} to {number(speed.high)}"


def _no_headline(machines: Sequence[str], base: str) -> str:
    if len(machines) == 1:
        return (
            f"{machines[0]} and {base} did no work in common, so no speed-up is given; a table compares them per item."
        )
    named = " / ".join(machines)  # their names have commas
    return f"{named} did no work in common with {base}, so no speed-up is given; a table compares them per item."


def _speed_table(pairs: Sequence[Pair], base: str) -> Table:
    rows: list[list[Cell]] = []
    for pair in pairs:
        work, speed = pair.ours.work, pair.speed
        head: list[Cell] = [work.workload, work.phase, pair.ours.machine, work.preset, work.items]
        runs: list[Cell] = [len(pair.ours.group.runs), len(pair.base.group.runs)]
        rows.append([*head, *runs, *_bounded(speed)])
    for machine, phase in dict.fromkeys((pair.ours.machine, pair.ours.work.phase) for pair in pairs):
        values = [pair.speed.value for pair in pairs if (pair.ours.machine, pair.ours.work.phase) == (machine, phase)]
        if len(values) > 1:
            mean: list[Cell] = [f"geometric mean of {len(values)}", phase, machine, *[None] * 4, geometric_mean(values)]
            rows.append([*mean, None, None])
    columns = ["workload", "phase", "machine", "preset", "items per step", "launches", "launches of the base"]
    columns += ["times as fast", "95 % from", "95 % to"]
    return Table(title=f"Speed on the same work, over {base}", columns=columns, rows=rows, leading=True)


def _bounded(found: Ratio) -> list[Cell]:
    return [found.value, *_bounds(found.low, found.high)]


def _bounds(low: float, high: float) -> list[Cell]:
    """Neither bound where one is infinite: a single step bounds nothing."""
    return [low, high] if math.isfinite(high) else [None, None]


def _step_table(timings: Timings, base: str) -> Table:
    rows: list[list[Cell]] = []
    for timing in timings.values():
        work = timing.work
        none = no_interval(timing.step)
        bounds: list[Cell] = [None, None] if none else [1000 * timing.step.low, 1000 * timing.step.high]
        step: list[Cell] = [1000 * timing.step.median, *bounds, none or timing.step.claim]
        rates: list[Cell] = [throughput(timing.group.runs), relative(timings, timing, base)]
        head: list[Cell] = [work.workload, work.phase, timing.machine, work.preset, work.items]
        rows.append([*head, len(timing.group.runs), *step, *rates])
    columns = ["workload", "phase", "machine", "preset", "items per step", "runs", "step, median (ms)"]
    columns += [
        "95 % from (ms)",
        "95 % to (ms)",
        "interval",
        "items/s",
        f"over training on {base}, same work",
    ]
    return Table(title="Step times", columns=columns, rows=rows)


def _phase_table(timings: Timings, base: str) -> Table:
    found = {machine: train_over_infer(timings, base, machine) for machine in machines_of(timings)}
    rows: list[list[Cell]] = []
    for name in sorted({name for pairs in found.values() for name in pairs}, key=workload_order):
        for machine, pairs in found.items():
            if pair := pairs.get(name):
                times = pair.speed
                work = pair.ours.work
                rows.append([name, machine, work.preset, work.items, *_bounded(times)])
    columns = ["workload", "machine", "preset", "items per step", "training/inference", "95 % from", "95 % to"]
    return Table(title="Training over inference at the same batch, time of a step", columns=columns, rows=rows)


def _unequal_table(pairs: Sequence[Pair], base: str) -> Table:
    rows: list[list[Cell]] = []
    for pair in pairs:
        ours, theirs, speed = pair.ours.work, pair.base.work, pair.speed
        head: list[Cell] = [ours.workload, ours.phase, pair.ours.machine, ours.preset, ours.items]
        there: list[Cell] = [theirs.preset, theirs.items, listed(ours.differences(theirs))]
        rows.append([*head, *there, *_bounded(speed)])
    columns = ["workload", "phase", "machine", "preset", "items per step", "preset of the base"]
    columns += ["items per step of the base", "differs in", "items/s over the base's", "95 % from", "95 % to"]
    return Table(title=f"Different work, compared per item with {base}: no speed-up", columns=columns, rows=rows)


def _chart(timings: Timings, base: str) -> Chart:
    """Fig. 5: one work for each workload, that of the reference."""
    names = list(dict.fromkeys(work.workload for work, _ in timings))
    references = {name: reference_of(timings, base, name) for name in names}
    series = []
    for machine in machines_of(timings):
        for phase in PHASES:
            values = [_bar(timings, references[name], phase, machine) for name in names]
            if any(value is not None for value in values):
                series.append(Series(name=f"{phase}, {machine}", x=names, y=values))
    return Chart(
        kind="bar",
        title=f"Time of the same work, relative to training on {base}",
        x_title="workload",
        y_title="time (training there = 1)",
        series=series,
        log_y=True,
        note=" ".join(
            f"{name} has no bar for inference: its items differ from those of training."
            for name in differing_items(timings)
        ),
    )


def _bar(timings: Timings, reference: Timing | None, phase: str, machine: str) -> float | None:
    if reference is None:
        return None
    timing = timings.get((reference.work.in_phase(phase), machine))
    if timing is None or not Pair(timing, reference).comparable:
        return None
    return timing.item_s / reference.item_s


def _notes(timings: Timings, base: str, pairs: Sequence[Pair]) -> list[str]:
    notes = [
        "The same work is the same network, preset, items per step, precision, data and options. `fathom study` times "
        "the preset small on every device for this purpose.",
        f"Relative to {base}: the slowest CPU with training runs, or without one the machine with most of them. Over "
        "workloads, the geometric mean of the ratios. Items per second are over the time of all steps, slow ones too, "
        "and not over the median step.",
        "Step time is the median after warm-up; of several launches, the median of theirs, without disturbed ones "
        "where some were undisturbed. An interval over launches holds the machine's median. One within this process "
        "holds the median of the one process that was launched, and says nothing of the next. A ratio with one launch "
        f"on a side allows for the {100 * FLOOR:.0f} % that two launches are assumed to differ by.",
        f"Published: Fig. 5 of {published.FATHOM}, a figure without printed numbers: training and inference on a CPU "
        "and a GPU, relative to training on the CPU. Its text says that training is the more expensive phase "
        "throughout, and that a GPU is substantially faster.",
    ]
    other = [
        f"{pair.ours.work.workload} {pair.ours.work.phase} on {pair.ours.machine}"
        for pair in pairs
        if not same_network(pair.ours.run, pair.base.run)
    ]
    if other:
        notes.append(
            f"Not compared: networks whose number of parameters differs from the one timed on {base}: "
            f"{'; '.join(other)}."
        )
    notes += [
        f"{name}: an item is one {trained} in training and one {inferred} in inference, so their times are not "
        "compared."
        for name, (trained, inferred) in differing_items(timings).items()
    ]
    return notes + _unsteady(timings) + _correlation(timings, base)


def _unsteady(timings: Timings) -> list[str]:
    """A note with both medians of every run that has no steady state."""
    found = [
        f"{timing.work.workload} {timing.work.phase} on {timing.machine} ({timing.work.preset}): "
        + ", ".join(" then ".join(number(1000 * level) for level in both) for both in own)
        for timing in timings.values()
        if (own := [both for run in timing.group.runs if (both := levels(run))])
    ]
    if not found:
        return []
    return [
        f"Runs that are {UNSTEADY} have no steady state, and all of their timed steps count. Their medians before and "
        f"after the last change of level, in ms: {'; '.join(found)}."
    ]


def _correlation(timings: Timings, base: str) -> list[str]:
    """The paper finds that a large gap between training and inference on the CPU implies one on the GPU."""
    notes, here = [], train_over_infer(timings, base, base)
    for machine in machines_of(timings):
        there = train_over_infer(timings, base, machine)
        shared = [name for name in here if name in there and here[name].ours.work == there[name].ours.work]
        if machine != base and len(shared) >= 5:  # of four, no rank correlation is significant
            ratios = [[side[name].speed.value for name in shared] for side in (here, there)]
            from scipy.stats import spearmanr  # takes a second to import

            found = spearmanr(*ratios)
            notes.append(
                f"Spearman's rank correlation of training over inference time at the same batches, {machine} with "
                f"{base}: {found.statistic:.2f} over {len(shared)} workloads (p = {found.pvalue:.2g}). The 2016 paper "
                "finds CPU and GPU strongly correlated."
            )
    return notes
