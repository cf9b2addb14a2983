"""How do training and inference compare, on each machine? Answers Fig. 5 of the 2016 paper, per item.

The paper normalises to training on the CPU, its slowest configuration; among several CPUs the slowest is taken here.
Times are per item, because machines are measured at different batch sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from scipy import stats

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.formatting import listed, number
from fathom.analysis.selection import RunGroup, on_cpu, select, workload_order
from fathom.analysis.statistics import Interval, median_interval, steady_state
from fathom.core.record import Record

TITLE = "How fast are training and inference on each machine?"
ORDER = 20


@dataclass(frozen=True)
class Timing:
    """The step time of one group: median after warm-up, with a 95 % interval over runs and steps."""

    group: RunGroup
    step: Interval
    items: int

    @property
    def item_s(self) -> float:
        return self.step.median / self.items

    @property
    def key(self) -> tuple[str, str, str]:
        return self.group.workload, self.group.phase, self.group.machine

    @property
    def parameters(self) -> int | None:
        return self.group.runs[0].parameters

    @property
    def item(self) -> str | None:
        """What one item is; None where the record does not say."""
        return self.group.runs[0].item


Timings = dict[tuple[str, str, str], Timing]


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=False)
    timings = {timing.key: timing for timing in map(_timing, selection.groups) if timing}
    if not timings:
        return not_measured("phases", TITLE, "fathom study", selection.notes)
    base = _slowest_machine(timings)
    notes = [*_notes(base, timings), *selection.notes]
    uncounted = [group.workload for group in selection.groups if group.runs[0].items_per_step is None]
    if uncounted:
        notes.append(f"Not shown: runs without a recorded number of items per step: {listed(uncounted)}.")
    return Finding(
        question="phases",
        title=TITLE,
        summary=_summary(timings, base),
        tables=[_table(timings, base), _ratio_table(timings)],
        charts=[_chart(timings, base)],
        notes=notes,
    )


def settled_steps(run: Record) -> list[float]:
    """The timed steps after warm-up; all of them where the series has no steady state."""
    steady = steady_state([*run.warmup_s, *run.step_s])
    if steady.label == "unsteady":
        return run.step_s
    return run.step_s[max(0, steady.start - len(run.warmup_s)) :]


def relative(timings: Timings, key: tuple[str, str, str], base: str) -> float | None:
    """Time per item over that of training on the base; None without one, or if network or item differ."""
    ours, theirs = timings[key], timings.get((key[0], "train", base))
    if theirs is None or not _same_network(ours, theirs) or not _same_item(ours, theirs):
        return None
    return ours.item_s / theirs.item_s


def _timing(group: RunGroup) -> Timing | None:
    items = group.runs[0].items_per_step
    if not items:
        return None
    return Timing(group, median_interval([settled_steps(run) for run in group.runs]), items)


def _same_network(one: Timing, other: Timing) -> bool:
    return one.parameters is None or other.parameters is None or one.parameters == other.parameters


def _same_item(one: Timing, other: Timing) -> bool:
    return one.item is None or other.item is None or one.item == other.item


def _differing_items(timings: Timings) -> dict[str, tuple[str, str]]:
    """Workload -> what an item is in training and in inference, where that differs."""
    found: dict[str, tuple[str, str]] = {}
    for (workload, phase, machine), timing in timings.items():
        other = timings.get((workload, "infer", machine)) if phase == "train" else None
        if other and not _same_item(timing, other):
            found[workload] = str(timing.item), str(other.item)
    return found


def _slowest_machine(timings: Timings) -> str:
    """The CPU on which training takes longest over all workloads; without a CPU, the slowest machine there is."""
    trained = [timing for timing in timings.values() if timing.group.phase == "train"] or list(timings.values())
    candidates = [timing for timing in trained if on_cpu(timing.group.runs[0])] or trained
    fastest: dict[str, float] = {}
    for timing in candidates:
        name = timing.group.workload
        fastest[name] = min(timing.item_s, fastest.get(name, timing.item_s))
    slowness: dict[str, list[float]] = {}
    for timing in candidates:
        slowness.setdefault(timing.group.machine, []).append(timing.item_s / fastest[timing.group.workload])
    return max(slowness, key=lambda machine: (geometric_mean(slowness[machine]), len(slowness[machine])))


def _machines(timings: Timings) -> list[str]:
    return list(dict.fromkeys(machine for _, _, machine in timings))


def _speedups(timings: Timings, base: str, machine: str, phase: str) -> list[float]:
    """For each workload, how many times faster a machine is than the base in the same phase."""
    found = []
    for workload, timed_phase, timed_machine in timings:
        other = timings.get((workload, phase, base))
        ours = timings[workload, timed_phase, timed_machine]
        if (timed_phase, timed_machine) == (phase, machine) and other and _same_network(ours, other):
            found.append(other.item_s / ours.item_s)
    return found


def _train_over_infer(timings: Timings, machine: str) -> dict[str, float]:
    """Workload -> ratio of the times per item, where an item is the same thing in both phases."""
    return {
        workload: timing.item_s / timings[workload, "infer", machine].item_s
        for (workload, phase, timed_machine), timing in timings.items()
        if (phase, timed_machine) == ("train", machine)
        and (workload, "infer", machine) in timings
        and _same_item(timing, timings[workload, "infer", machine])
    }


def _summary(timings: Timings, base: str) -> str:
    ratios = {machine: _train_over_infer(timings, machine) for machine in _machines(timings)}
    speedups = {machine: _speedups(timings, base, machine, "train") for machine in ratios if machine != base}
    over_inference = [f"{_span(found.values())} on {machine}" for machine, found in ratios.items() if found]
    over_base = [f"{_span(found)} on {machine}" for machine, found in speedups.items() if found]
    sentences = []
    if over_inference:
        sentences.append(f"Training time over inference time per item: {'; '.join(over_inference)}.")
    if over_base:
        sentences.append(f"Training speed over that of {base}: {'; '.join(over_base)}.")
    if not sentences:
        return "Only one configuration: nothing to compare." if len(timings) == 1 else "No two comparable runs."
    several = any(len(found) > 1 for found in (*ratios.values(), *speedups.values()))
    return " ".join([*sentences, "Geometric mean and range over workloads."] if several else sentences)


def _span(ratios: Iterable[float]) -> str:
    """The geometric mean of ratios, and their range."""
    values = list(ratios)
    mean, low, high = (number(value) for value in (geometric_mean(values), min(values), max(values)))
    return mean if len(values) == 1 else f"{mean} ({low} to {high})"


def _table(timings: Timings, base: str) -> Table:
    rows: list[list[Cell]] = []
    for key, timing in timings.items():
        run = timing.group.runs[0]
        step: list[Cell] = [1000 * value for value in (timing.step.median, timing.step.low, timing.step.high)]
        rates: list[Cell] = [1 / timing.item_s, relative(timings, key, base)]
        rows.append([*key, run.spec.preset, timing.items, len(timing.group.runs), *step, *rates])
    return Table(
        title="Step times, and time per item relative to training",
        columns=[
            "workload",
            "phase",
            "machine",
            "preset",
            "items per step",
            "runs",
            "step, median (ms)",
            "95 % from (ms)",
            "95 % to (ms)",
            "items/s",
            f"time per item over training on {base}",
        ],
        rows=rows,
    )


def _ratio_table(timings: Timings) -> Table:
    machines = _machines(timings)
    ratios = {machine: _train_over_infer(timings, machine) for machine in machines}
    names = sorted({name for found in ratios.values() for name in found}, key=workload_order)
    return Table(
        title="Training over inference, time per item",
        columns=["workload", *(f"{machine} (ratio)" for machine in machines)],
        rows=[[name, *(ratios[machine].get(name) for machine in machines)] for name in names],
    )


def _chart(timings: Timings, base: str) -> Chart:
    names = list(dict.fromkeys(workload for workload, _, _ in timings))
    series = []
    for machine in _machines(timings):
        for phase in ("train", "infer"):
            keys = [(name, phase, machine) for name in names]
            if any(key in timings for key in keys):
                values = [relative(timings, key, base) if key in timings else None for key in keys]
                series.append(Series(name=f"{phase}, {machine}", x=names, y=values))
    return Chart(
        kind="bar",
        title=f"Time per item, relative to training on {base}",
        x_title="workload",
        y_title="time per item (training there = 1)",
        series=series,
        log_y=True,
        note=" ".join(
            f"{name} has no bar for inference: its items differ from those of training."
            for name in _differing_items(timings)
        ),
    )


def _notes(base: str, timings: Timings) -> list[str]:
    notes = [
        f"Normalised to training on {base}: the slowest CPU with training runs, or without one the slowest machine.",
        "Step time is the median after warm-up, with a bootstrap interval that resamples runs, then steps. Ratios over "
        "workloads are geometric means.",
        f"Published: Fig. 5 of {published.FATHOM}, a figure without printed numbers.",
    ]
    other = [
        f"{key[0]} {key[1]} on {key[2]}"
        for key, timing in timings.items()
        if (there := timings.get((key[0], "train", base))) and not _same_network(timing, there)
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
    return notes + _correlation(timings, base)


def _correlation(timings: Timings, base: str) -> list[str]:
    """The paper finds that a large gap between training and inference on the CPU implies one on the GPU."""
    notes, here = [], _train_over_infer(timings, base)
    for machine in _machines(timings):
        there = _train_over_infer(timings, machine)
        shared = [name for name in here if name in there]
        if machine != base and len(shared) >= 4:
            found = stats.spearmanr([here[name] for name in shared], [there[name] for name in shared]).statistic
            notes.append(
                f"Spearman's rank correlation of training over inference time, {machine} with {base}: {found:.2f} over "
                f"{len(shared)} workloads. The 2016 paper finds CPU and GPU strongly correlated."
            )
    return notes
