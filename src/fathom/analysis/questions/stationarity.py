"""Is an op's time the same throughout a program? Answers Fig. 1 of the 2016 paper: stationary, with low variance.

Step times are those of the whole timed run, op times those of the few profiled steps. A series that shows no drift is
not thereby stationary: the smallest drift that it could have shown stands beside it.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.changepoints import MATERIAL
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.selection import RunGroup, Selection, select
from fathom.analysis.statistics import (
    FEWEST,
    SIGNIFICANT,
    Drift,
    Steady,
    coefficient_of_variation,
    drift,
    steady_state,
)
from fathom.core.formatting import count, in_percent, listed, span
from fathom.core.record import Record

TITLE = "Are op times stationary?"
ORDER = 130
LEAST_PERCENT = 1.0  # of op time; smaller op types are not listed
DRAWN_PERCENT = 5.0  # of op time; smaller op types are not drawn

MEASURES = [
    "median (ms)",
    "variation (%)",
    "label",
    "drift p-value",
    "drift, first to last third (%)",
    "smallest drift it could have shown (%)",
    "result",
]
LEVELS = ["unsteady: median before (ms)", "unsteady: median after (ms)"]
DRIFTS, NOT_SHOWN = "drifts", "not shown to drift"


@dataclass(frozen=True)
class TimeSeries:
    """One series of times; variation and drift are those after warm-up."""

    values: list[float]
    steady: Steady
    drift: Drift | None
    variation: float | None

    @classmethod
    def of(cls, values: list[float]) -> TimeSeries:
        steady = steady_state(values)
        settled = values[steady.start :]
        return cls(values, steady, drift(settled), coefficient_of_variation(settled))

    @property
    def result(self) -> str | None:
        """Drifts, is unsteady, or neither was shown; None for a series that could not have shown a drift."""
        if self.steady.label in {"slowing", "unsteady"}:
            return self.steady.label
        if self.drift is None or (self.drift.detectable is None and not self.drift.significant):
            return None
        return DRIFTS if self.drift.significant else NOT_SHOWN

    def cells(self) -> list[Cell]:
        return [
            1000 * statistics.median(self.values[self.steady.start :]),
            in_percent(self.variation),
            self.steady.label or "too few steps",
            self.drift.p_value if self.drift else None,
            100 * self.drift.change if self.drift else None,
            in_percent(self.drift.detectable) if self.drift else None,
            self.result or "too few steps to show a drift",
        ]

    def levels(self) -> list[Cell]:
        """Of an unsteady series, the medians before and after its last change of level, in milliseconds."""
        return [1000 * level for level in self.steady.levels] if self.steady.levels else [None, None]


@dataclass(frozen=True)
class Op:
    """One op type of one group, with its share of the time of all ops."""

    group: RunGroup
    type: str
    percent: float
    series: TimeSeries


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=False)
    if not selection.groups:
        return not_measured("stationarity", TITLE, "fathom study", selection.notes)
    steps = [(group, TimeSeries.of(_longest_steps(group))) for group in selection.groups]
    ops = [op for group in selection.groups for op in _ops(group)]
    return Finding(
        question="stationarity",
        title=TITLE,
        summary=f"{_ops_summary(ops)} {_steps_summary([series for _, series in steps])}",
        tables=[_op_table(ops), _step_table(steps)],
        charts=[*_op_charts(selection, ops), *_step_charts(selection, steps)],
        notes=[*_notes(), *selection.notes],
    )


def _longest_steps(group: RunGroup) -> list[float]:
    """Warm-up included, of one process: two processes make no one series."""
    run = max(group.runs, key=lambda run: len(run.warmup_s) + len(run.step_s))
    return [*run.warmup_s, *run.step_s]


def _ops(group: RunGroup) -> list[Op]:
    """Op types of the longest profile, the heaviest first."""
    if not group.profiles:
        return []
    series = max(
        (profile.per_step_s for profile in group.profiles), key=lambda each: max(map(len, each.values()), default=0)
    )
    total = sum(map(sum, series.values()))
    percent = {kind: 100 * sum(values) / total for kind, values in series.items() if total > 0}
    heavy = sorted((kind for kind in percent if percent[kind] >= LEAST_PERCENT), key=lambda kind: -percent[kind])
    return [Op(group, kind, percent[kind], TimeSeries.of(series[kind])) for kind in heavy]


def _ops_summary(ops: list[Op]) -> str:
    """The share of op time that was not shown to drift, and what these few steps could have shown."""
    judged = [op for op in ops if op.series.result is not None]
    if not judged:
        return f"No profile has the {FEWEST} steps that can show a drift."
    total = sum(op.percent for op in ops)
    steady = [op for op in judged if op.series.result == NOT_SHOWN]
    share = 100 * sum(op.percent for op in steady) / total
    rest = _rest(ops, total)
    variation = statistics.median(op.series.variation or 0.0 for op in judged)
    profiles = len({id(op.group) for op in judged})
    counts = span([len(op.series.values) for op in judged])
    could = [op.series.drift.detectable for op in steady if op.series.drift and op.series.drift.detectable]
    least = ""
    if could:
        least = (
            f" The smallest drift it could have shown is {100 * statistics.median(could):.0f} % for the median op type."
        )
    return (
        f"{share:.0f} % of op time is not shown to drift, in {profiles} profiled {'run' if profiles == 1 else 'runs'} "
        f"of {counts} steps{rest}.{least} The median coefficient of variation of an op type is "
        f"{100 * variation:.1f} %. The 2016 paper found all ops stationary with low variance."
    )


def _rest(ops: list[Op], total: float) -> str:
    """What the op time is that was not found without a drift: "; 5 % drifts and 19 % is in series that ..."."""
    verbs = {DRIFTS: DRIFTS, None: "is in series too short or too noisy to show one"}
    shares: dict[str, float] = defaultdict(float)
    for op in ops:
        if op.series.result != NOT_SHOWN:
            shares[verbs.get(op.series.result, f"is {op.series.result}")] += 100 * op.percent / total
    told = [
        f"{share:.0f} % {verb}" for verb, share in sorted(shares.items(), key=lambda each: -each[1]) if share >= 0.5
    ]
    return f"; {listed(told)}" if told else ""


def _steps_summary(series: list[TimeSeries]) -> str:
    """Step times over the whole run, where there are more steps to tell from."""
    labels = Counter(series.steady.label or "too short" for series in series)
    counts = ", ".join(f"{many} {label}" for label, many in labels.most_common())
    least, most = min(len(each.values) for each in series), max(len(each.values) for each in series)
    lengths = count(most, "step") if least == most else f"{span([least, most])} steps"
    shown = sum(each.drift is not None and each.drift.significant for each in series)  # unsteady ones too
    return (
        f"Step times over the whole run, {len(series)} series of {lengths}: {counts}. After warm-up {shown} of "
        f"them {'drifts' if shown == 1 else 'drift'}."
    )


def _op_table(ops: list[Op]) -> Table:
    return Table(
        title="Time of each op type over the profiled steps",
        columns=["workload", "phase", "machine", "op type", "share of op time (%)", "steps", *MEASURES],
        rows=[[*_identity(op.group), op.type, op.percent, len(op.series.values), *op.series.cells()] for op in ops],
    )


def _step_table(steps: list[tuple[RunGroup, TimeSeries]]) -> Table:
    return Table(
        title="Step times, warm-up included",
        columns=["workload", "phase", "machine", "steps", "warm-up (steps)", *MEASURES, *LEVELS],
        rows=[
            [*_identity(group), len(series.values), series.steady.start, *series.cells(), *series.levels()]
            for group, series in steps
        ],
    )


def _op_charts(selection: Selection, ops: list[Op]) -> list[Chart]:
    """One per machine and phase: times over their own median, so that ops of all sizes share an axis."""
    charts = []
    for machine, phase in _views(selection):
        drawn = [
            op for op in ops if (op.group.machine, op.group.phase) == (machine, phase) and op.percent >= DRAWN_PERCENT
        ]
        if drawn:
            charts.append(
                Chart(
                    kind="box",
                    title=f"Op times over their median: {phase} on {machine}",
                    x_title="op type",
                    y_title="time over median",
                    series=[_boxes(name, drawn) for name in dict.fromkeys(op.group.workload for op in drawn)],
                    note=f"Op types above {DRAWN_PERCENT:.0f} % of op time.",
                )
            )
    return charts


def _boxes(workload: str, ops: list[Op]) -> Series:
    """One box per op type: its name is repeated for each of its steps."""
    own = [op for op in ops if op.group.workload == workload]
    return Series(
        name=workload,
        x=[op.type for op in own for _ in op.series.values],
        y=[value for op in own for value in _over_median(op.series.values)],
    )


def _step_charts(selection: Selection, steps: list[tuple[RunGroup, TimeSeries]]) -> list[Chart]:
    return [
        Chart(
            kind="line",
            title=f"Step times over their median: {phase} on {machine}",
            x_title="step",
            y_title="time over median",
            series=[
                Series(
                    name=group.workload,
                    x=list(range(1, len(series.values) + 1)),
                    y=_over_median(series.values),
                )
                for group, series in steps
                if (group.machine, group.phase) == (machine, phase)
            ],
            log_y=True,
        )
        for machine, phase in _views(selection)
    ]


def _views(selection: Selection) -> list[tuple[str, str]]:
    pairs = {(group.machine, group.phase) for group in selection.groups}
    return [
        (machine, phase) for machine in selection.machines for phase in ("train", "infer") if (machine, phase) in pairs
    ]


def _over_median(values: list[float]) -> list[float]:
    middle = statistics.median(values)
    return [value / middle if middle > 0 else 1.0 for value in values]


def _identity(group: RunGroup) -> list[Cell]:
    return [group.workload, group.phase, group.machine]


def _notes() -> list[str]:
    near = f"{100 * MATERIAL:.0f} %"
    return [
        f"Change points cut a series into levels. Flat: all levels within {near} of the last. Warm-up: slower at "
        f"first. Slowing: faster at first. Unsteady: a change after the first third, or levels that recur; nothing is "
        "cut off, and the medians before and after the last change are both given. A series that comes back to its "
        f"level is unsteady where the levels in between change its time by more than {near}; the median away from that "
        "level is then the one before.",
        f"A series drifts where the Mann-Kendall test, corrected for the correlation of steps, has p below "
        f"{SIGNIFICANT} and the last third lies more than {near} from the first. The smallest drift that a series "
        "could have shown is one that as many steps, as noisy, show in about three of four cases. Variation is the "
        "standard deviation over the mean.",
        f"Op types below {LEAST_PERCENT:.0f} % of op time are not listed; a series below {FEWEST} steps has no label. "
        "Of several runs the longest is shown. In the share of op time every profile has the same weight.",
        f"Published: Fig. 1 of {published.FATHOM}, a figure without printed numbers.",
    ]
