"""How do training and inference compare, on each machine? Answers Fig. 5 of the 2016 paper, at equal batches.

Machines are compared on equal work: same network, batch, precision and data. Where two machines have no work in common,
a table of its own compares them per item, with both batches in the row, and no summary is made of it. The paper
normalises to training on the CPU, its slowest configuration; among several CPUs the slowest is taken here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from scipy import stats

from fathom import published
from fathom.analysis.equal_work import Work, groups_by_work, same_item, same_network
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.formatting import listed, mean_and_range, number
from fathom.analysis.ratio import FLOOR, Ratio, ratio
from fathom.analysis.selection import RunGroup, completeness, on_cpu, usable, workload_order
from fathom.analysis.statistics import Interval
from fathom.analysis.step_time import UNSTEADY, bounded, levels, settled_steps, step_time, throughput
from fathom.core.record import Record
from fathom.core.spec import PHASES

TITLE = "How fast are training and inference on each machine?"
ORDER = 20
DOING = {"train": "training", "infer": "inference"}


@dataclass(frozen=True)
class Timing:
    """The step time of one work on one machine: median after warm-up, with a 95 % interval (Interval.claim)."""

    work: Work
    group: RunGroup
    step: Interval

    @property
    def machine(self) -> str:
        return self.group.machine

    @property
    def run(self) -> Record:
        return self.group.runs[0]

    @property
    def item_s(self) -> float:
        return self.step.median / self.work.items

    @property
    def launches(self) -> list[list[float]]:
        return [settled_steps(run) for run in self.group.runs]

    @property
    def per_item(self) -> list[list[float]]:
        return [[step_s / self.work.items for step_s in steps] for steps in self.launches]


@dataclass(frozen=True)
class Pair:
    """One workload on two machines, or in two phases on one."""

    ours: Timing
    base: Timing

    @property
    def equal(self) -> bool:
        return self.ours.work.in_phase("") == self.base.work.in_phase("")

    @property
    def comparable(self) -> bool:
        return same_network(self.ours.run, self.base.run) and same_item(self.ours.run, self.base.run)

    @property
    def speed(self) -> Ratio:
        """How many times as fast as the base, per item where the work is not equal."""
        return ratio(self.ours.per_item, self.base.per_item)


Timings = dict[tuple[Work, str], Timing]  # (work, machine) -> timing


def analyse(records: Sequence[Record]) -> Finding:
    sound, notes = usable(records, False, PHASES)
    timings = _timings(sound)
    if not timings:
        return not_measured("phases", TITLE, "fathom study", notes)
    base = _slowest_machine(timings)
    pairs = list(_pairs(timings, base))
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


def _timings(records: Sequence[Record]) -> Timings:
    """In the order of the report: workloads as in the paper, training first, CPUs before accelerators."""
    found = [Timing(work, group, step_time(group.runs)) for (work, _), group in groups_by_work(records).items()]
    return {(timing.work, timing.machine): timing for timing in sorted(found, key=_order)}


def _order(timing: Timing) -> tuple[object, ...]:
    work = timing.work
    machine = (not on_cpu(timing.run), timing.machine)
    return workload_order(work.workload), work.phase != "train", machine, work.preset, work.items, str(work)


def _complete(timing: Timing) -> tuple[float | str, ...]:
    return max(map(completeness, timing.group.runs))


def _machines(timings: Timings) -> list[str]:
    return list(dict.fromkeys(machine for _, machine in timings))


def _slowest_machine(timings: Timings) -> str:
    """The CPU that trains slowest, by the work that CPUs have in common; without a CPU, the slowest machine."""
    trained = [timing for timing in timings.values() if timing.work.phase == "train"] or list(timings.values())
    candidates = [timing for timing in trained if on_cpu(timing.run)] or trained
    fastest: dict[Work, float] = {}
    for timing in candidates:
        fastest[timing.work] = min(timing.item_s, fastest.get(timing.work, timing.item_s))
    slowness: dict[str, list[float]] = {}
    for timing in candidates:
        slowness.setdefault(timing.machine, []).append(timing.item_s / fastest[timing.work])
    return max(slowness, key=lambda machine: (geometric_mean(slowness[machine]), len(slowness[machine])))


def _pairs(timings: Timings, base: str) -> Iterator[Pair]:
    """Each workload and phase on each machine with that on the base: the most complete work that both did, or else
    what each did most completely."""
    names = dict.fromkeys((work.workload, work.phase, machine) for work, machine in timings if machine != base)
    for workload, phase, machine in names:
        ours, theirs = (
            {work: timing for (work, where), timing in timings.items() if where == own and _is(work, workload, phase)}
            for own in (machine, base)
        )
        common = [Pair(ours[work], theirs[work]) for work in ours if work in theirs]
        if common:
            yield max(common, key=lambda pair: _complete(pair.ours))
        elif theirs:
            yield Pair(*(max(side.values(), key=_complete) for side in (ours, theirs)))


def _is(work: Work, workload: str, phase: str) -> bool:
    return (work.workload, work.phase) == (workload, phase)


def _reference(timings: Timings, base: str, workload: str) -> Timing | None:
    """Training on the base, with the work that most machines did; of several, the most complete."""
    trained = [timing for timing in timings.values() if timing.machine == base and _is(timing.work, workload, "train")]

    def machines(timing: Timing) -> int:
        return sum(work == timing.work for work, _ in timings)

    return max(trained, key=lambda timing: (machines(timing), _complete(timing)), default=None)


def relative(timings: Timings, timing: Timing, base: str) -> float | None:
    """Time over that of the same work in training on the base; None where network or item differ, or without one."""
    trained = timings.get((timing.work.in_phase("train"), base))
    if trained is None or not Pair(timing, trained).comparable:
        return None
    return timing.item_s / trained.item_s


def _train_over_infer(timings: Timings, base: str, machine: str) -> dict[str, Pair]:
    """Workload -> training and inference at one batch; of several, the work of the reference, or the most complete."""
    found: dict[str, Pair] = {}
    ranks: dict[str, tuple[object, ...]] = {}
    for (work, where), trained in timings.items():
        inferred = timings.get((work.in_phase("infer"), machine))
        if where != machine or work.phase != "train" or inferred is None or not Pair(inferred, trained).comparable:
            continue
        reference = _reference(timings, base, work.workload)
        rank = (reference is not None and reference.work == work, _complete(trained))
        if work.workload not in found or rank > ranks[work.workload]:
            found[work.workload], ranks[work.workload] = Pair(inferred, trained), rank
    return found


def _summary(timings: Timings, base: str, equal: Sequence[Pair], unequal: Sequence[Pair]) -> str:
    sentences, apart = [], []
    for machine in dict.fromkeys(pair.ours.machine for pair in (*equal, *unequal)):
        own = [pair for pair in equal if pair.ours.machine == machine]
        if trained := [pair for pair in own if pair.ours.work.phase == "train"] or own:
            sentences.append(_speed_sentence(trained, base))
        else:
            apart.append(machine)
    sentences += [_no_headline(apart, base)] if apart else []
    for machine in _machines(timings):
        found = _train_over_infer(timings, base, machine)
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
        holds = timing.step.claim if bounded(timing.step) else "one step: no interval"
        step: list[Cell] = [1000 * timing.step.median, *_bounds(1000 * timing.step.low, 1000 * timing.step.high), holds]
        rates: list[Cell] = [throughput(timing.group.runs), relative(timings, timing, base)]
        head: list[Cell] = [work.workload, work.phase, timing.machine, work.preset, work.items]
        rows.append([*head, len(timing.group.runs), *step, *rates])
    columns = ["workload", "phase", "machine", "preset", "items per step", "runs", "step, median (ms)"]
    columns += ["95 % from (ms)", "95 % to (ms)", "interval", "items/s", f"over training on {base}, same work"]
    return Table(title="Step times", columns=columns, rows=rows)


def _phase_table(timings: Timings, base: str) -> Table:
    found = {machine: _train_over_infer(timings, base, machine) for machine in _machines(timings)}
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
    references = {name: _reference(timings, base, name) for name in names}
    series = []
    for machine in _machines(timings):
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
            for name in _differing_items(timings)
        ),
    )


def _bar(timings: Timings, reference: Timing | None, phase: str, machine: str) -> float | None:
    if reference is None:
        return None
    timing = timings.get((reference.work.in_phase(phase), machine))
    if timing is None or not Pair(timing, reference).comparable:
        return None
    return timing.item_s / reference.item_s


def _differing_items(timings: Timings) -> dict[str, tuple[str, str]]:
    """Workload -> what an item is in training and in inference, where that differs."""
    found: dict[str, tuple[str, str]] = {}
    trained = [timing for timing in timings.values() if timing.work.phase == "train"]
    for timing in trained:
        for other in timings.values():
            here = other.machine == timing.machine and _is(other.work, timing.work.workload, "infer")
            if here and not same_item(timing.run, other.run):
                found[timing.work.workload] = str(timing.run.item), str(other.run.item)
    return found


def _notes(timings: Timings, base: str, pairs: Sequence[Pair]) -> list[str]:
    notes = [
        "The same work is the same network, preset, items per step, precision, data and options. `fathom study` times "
        "the preset small on every device for this purpose.",
        f"Relative to {base}: the slowest CPU with training runs, or without one the slowest machine. Over workloads, "
        "the geometric mean of the ratios.",
        "Step time is the median after warm-up; of several launches, the median of theirs. An interval over launches "
        "holds the machine's median. One within this process holds the median of the one process that was launched, "
        "and says nothing of the next. A ratio with one launch on a side allows for the "
        f"{100 * FLOOR:.0f} % that two launches are assumed to differ by.",
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
        for name, (trained, inferred) in _differing_items(timings).items()
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
    notes, here = [], _train_over_infer(timings, base, base)
    for machine in _machines(timings):
        there = _train_over_infer(timings, base, machine)
        shared = [name for name in here if name in there and here[name].ours.work == there[name].ours.work]
        if machine != base and len(shared) >= 4:
            ratios = [[side[name].speed.value for name in shared] for side in (here, there)]
            found = stats.spearmanr(*ratios).statistic
            notes.append(
                f"Spearman's rank correlation of training over inference time at the same batches, {machine} with "
                f"{base}: {found:.2f} over {len(shared)} workloads. The 2016 paper finds CPU and GPU strongly "
                "correlated."
            )
    return notes
