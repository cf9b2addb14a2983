"""How do training and inference compare, on each machine? Answers Fig. 5 of the 2016 paper, per item.

The paper normalises to training on the CPU, its slowest configuration; ours may have several CPUs, and takes the
slowest of them. Times are per item, because machines are measured at different batch sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from scipy import stats

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.questions._words import unanswered
from fathom.analysis.selection import RunGroup, on_cpu, select, workload_order
from fathom.analysis.statistics import Interval, median_interval, steady_state
from fathom.core.record import Record

TITLE = "What do training and inference cost, and how much faster is each machine?"
# an item of training is another thing than one of inference: their times are not divided by each other
OTHER_ITEMS = {"deepq": "a transition that is replayed in training, and an action in the emulator in inference"}


@dataclass(frozen=True)
class Timing:
    """The step of one setting: median of its steady part with a 95 % interval over runs and steps."""

    setting: RunGroup
    step: Interval
    items: int

    @property
    def item_s(self) -> float:
        return self.step.median / self.items

    @property
    def key(self) -> tuple[str, str, str]:
        return self.setting.workload, self.setting.phase, self.setting.place

    @property
    def parameters(self) -> int | None:
        return self.setting.runs[0].parameters


Timings = dict[tuple[str, str, str], Timing]


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=False)
    timings = {timing.key: timing for timing in map(_timing, selection.settings) if timing}
    if not timings:
        return unanswered("phases", TITLE, "no run with timed steps and a known number of items", selection.notes)
    base = _slowest_place(timings)
    notes = [*_notes(base, timings), *selection.notes]
    uncounted = [setting.workload for setting in selection.settings if setting.runs[0].items_per_step is None]
    if uncounted:
        notes.append(f"Left out, items per step not recorded: {', '.join(uncounted)}.")
    return Finding(
        question="phases",
        title=TITLE,
        summary=_summary(timings, base),
        tables=[_table(timings, base), _ratio_table(timings)],
        charts=[_chart(timings, base)],
        notes=notes,
    )


def settled_steps(run: Record) -> list[float]:
    """The timed steps less those in which the series had not settled yet; all of them where it never did."""
    steady = steady_state([*run.warmup_s, *run.step_s])
    if steady.label == "unsteady":
        return run.step_s
    return run.step_s[max(0, steady.start - len(run.warmup_s)) :]


def relative(timings: Timings, key: tuple[str, str, str], base: str) -> float | None:
    """Time per item over that of training at the base; None without one, or if network or item are other things."""
    ours, theirs = timings[key], timings.get((key[0], "train", base))
    if theirs is None or not _same_network(ours, theirs) or (key[0] in OTHER_ITEMS and key[1] == "infer"):
        return None
    return ours.item_s / theirs.item_s


def _timing(setting: RunGroup) -> Timing | None:
    items = setting.runs[0].items_per_step
    if not items:
        return None
    return Timing(setting, median_interval([settled_steps(run) for run in setting.runs]), items)


def _same_network(one: Timing, other: Timing) -> bool:
    return one.parameters is None or other.parameters is None or one.parameters == other.parameters


def _other_items(timings: Timings) -> list[str]:
    """The workloads timed in both phases whose items are not the same thing in both."""
    return [name for name in OTHER_ITEMS if {"train", "infer"} <= {key[1] for key in timings if key[0] == name}]


def _slowest_place(timings: Timings) -> str:
    """The CPU on which training takes longest over all workloads; without a CPU, the slowest of what there is."""
    trained = [timing for timing in timings.values() if timing.setting.phase == "train"] or list(timings.values())
    candidates = [timing for timing in trained if on_cpu(timing.setting.runs[0])] or trained
    fastest: dict[str, float] = {}
    for timing in candidates:
        name = timing.setting.workload
        fastest[name] = min(timing.item_s, fastest.get(name, timing.item_s))
    slowness: dict[str, list[float]] = {}
    for timing in candidates:
        slowness.setdefault(timing.setting.place, []).append(timing.item_s / fastest[timing.setting.workload])
    return max(slowness, key=lambda place: (geometric_mean(slowness[place]), len(slowness[place])))


def _places(timings: Timings) -> list[str]:
    return list(dict.fromkeys(place for _, _, place in timings))


def _speedups(timings: Timings, base: str, place: str, phase: str) -> list[float]:
    """Of each workload: how many times faster a place is than the base in the same phase."""
    found = []
    for workload, timed_phase, timed_place in timings:
        other = timings.get((workload, phase, base))
        ours = timings[workload, timed_phase, timed_place]
        if (timed_phase, timed_place) == (phase, place) and other and _same_network(ours, other):
            found.append(other.item_s / ours.item_s)
    return found


def _train_over_infer(timings: Timings, place: str) -> dict[str, float]:
    """Workload -> ratio of the times per item, where an item is the same thing in both phases."""
    return {
        workload: timing.item_s / timings[workload, "infer", place].item_s
        for (workload, phase, timed_place), timing in timings.items()
        if (phase, timed_place) == ("train", place)
        and (workload, "infer", place) in timings
        and workload not in OTHER_ITEMS
    }


def _summary(timings: Timings, base: str) -> str:
    parts = []
    for place in _places(timings):
        ratios = _train_over_infer(timings, place)
        if ratios:
            parts.append(f"training takes {_span(ratios.values())} times as long as inference on {place}")
    for place in _places(timings):
        speedups = [] if place == base else _speedups(timings, base, place, "train")
        if speedups:
            parts.append(f"{place} trains {_span(speedups)} times as fast as {base}")
    if not parts:
        many = "1 setting" if len(timings) == 1 else f"{len(timings)} settings"
        return f"Times of {many}, with nothing to compare: one phase at one place."
    return f"Per item, {'; '.join(parts)}."


def _span(ratios: Iterable[float]) -> str:
    """The geometric mean of ratios, and their range."""
    values = list(ratios)
    mean = geometric_mean(values)
    if len(values) == 1:
        return _plain(mean)
    return f"{_plain(mean)} ({_plain(min(values))} to {_plain(max(values))})"


def _plain(value: float) -> str:
    """Three digits, and never an exponent where whole numbers will do."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(timings: Timings, base: str) -> Table:
    rows: list[list[Cell]] = []
    for key, timing in timings.items():
        run = timing.setting.runs[0]
        step: list[Cell] = [1000 * value for value in (timing.step.median, timing.step.low, timing.step.high)]
        rates: list[Cell] = [1 / timing.item_s, relative(timings, key, base)]
        rows.append([*key, run.spec.preset, timing.items, len(timing.setting.runs), *step, *rates])
    return Table(
        title="Steps, and time per item relative to training",
        columns=[
            "workload",
            "phase",
            "place",
            "preset",
            "items a step",
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
    places = _places(timings)
    ratios = {place: _train_over_infer(timings, place) for place in places}
    names = sorted({name for found in ratios.values() for name in found}, key=workload_order)
    return Table(
        title="Training over inference, time per item",
        columns=["workload", *(f"{place} (ratio)" for place in places)],
        rows=[[name, *(ratios[place].get(name) for place in places)] for name in names],
    )


def _chart(timings: Timings, base: str) -> Chart:
    names = list(dict.fromkeys(workload for workload, _, _ in timings))
    series = []
    for place in _places(timings):
        for phase in ("train", "infer"):
            keys = [(name, phase, place) for name in names]
            if any(key in timings for key in keys):
                values = [relative(timings, key, base) if key in timings else None for key in keys]
                series.append(Series(name=f"{phase}, {place}", x=names, y=values))
    return Chart(
        kind="bar",
        title=f"Time per item, relative to training on {base}",
        x_title="workload",
        y_title="time per item (training there = 1)",
        series=series,
        log_y=True,
        note=" ".join(
            f"{name} has no bar for inference: other items than in training." for name in _other_items(timings)
        ),
    )


def _notes(base: str, timings: Timings) -> list[str]:
    notes = [
        f"Normalised to training on {base}, the slowest CPU with training runs (without one, the slowest place).",
        "A step is the median of the steady part with a bootstrap interval, resampling runs and then steps; "
        "ratios over workloads are geometric means.",
        f"Published: Fig. 5 of {published.FATHOM}; a picture without numbers.",
    ]
    other = [
        f"{key[0]} {key[1]} on {key[2]}"
        for key, timing in timings.items()
        if (there := timings.get((key[0], "train", base))) and not _same_network(timing, there)
    ]
    if other:
        notes.append(
            f"Not compared, as the network is of another size than the one timed on {base}: {'; '.join(other)}."
        )
    notes += [
        f"An item of {name} is {OTHER_ITEMS[name]}: their times are not divided by each other, in table or chart."
        for name in _other_items(timings)
    ]
    return notes + _correlation(timings, base)


def _correlation(timings: Timings, base: str) -> list[str]:
    """The paper says that a large gap between training and inference on the CPU implies one on the GPU."""
    notes, here = [], _train_over_infer(timings, base)
    for place in _places(timings):
        there = _train_over_infer(timings, place)
        shared = [name for name in here if name in there]
        if place != base and len(shared) >= 4:
            found = stats.spearmanr([here[name] for name in shared], [there[name] for name in shared]).statistic
            notes.append(
                f"Training over inference on {place} and on {base} rank with a correlation of {found:.2f} (Spearman, "
                f"{len(shared)} workloads); the 2016 paper finds CPU and GPU strongly correlated."
            )
    return notes
