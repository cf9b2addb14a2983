"""Is an op's time the same throughout a program? Answers Fig. 1 of the 2016 paper: stationary, with low variance."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.questions._words import in_percent, unanswered
from fathom.analysis.selection import RunGroup, Selection, select
from fathom.analysis.statistics import (
    FEWEST,
    MATERIAL,
    SIGNIFICANT,
    Drift,
    Steady,
    coefficient_of_variation,
    drift,
    steady_state,
)
from fathom.core.record import Record

TITLE = "Does an op take the same time at every step?"
LEAST_PERCENT = 1.0  # op types below it are not judged
DRAWN_PERCENT = 5.0  # nor drawn below this

MEASURES = ["median (ms)", "variation (%)", "label", "drift p-value", "drift, first to last third (%)", "stationary"]


@dataclass(frozen=True)
class Judgement:
    """One series of times; variation and drift are those of its steady part."""

    values: list[float]
    steady: Steady
    drift: Drift | None
    variation: float | None

    @classmethod
    def of(cls, values: list[float]) -> Judgement:
        steady = steady_state(values)
        settled = values[steady.start :]
        return cls(values, steady, drift(settled), coefficient_of_variation(settled))

    @property
    def stationary(self) -> bool | None:
        """It settles, warm-up apart, and does not drift from there; None where it is too short to tell."""
        if self.steady.label is None:
            return None
        return self.steady.label in {"flat", "warm-up"} and not (self.drift and self.drift.called)

    def cells(self) -> list[Cell]:
        return [
            1000 * statistics.median(self.values[self.steady.start :]),
            in_percent(self.variation),
            self.steady.label or "too few steps",
            self.drift.p_value if self.drift else None,
            100 * self.drift.change if self.drift else None,
            {True: "yes", False: "no", None: None}[self.stationary],
        ]


@dataclass(frozen=True)
class Op:
    """One op type of one setting, with its share of the time of all ops."""

    setting: RunGroup
    type: str
    percent: float
    judgement: Judgement


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=False)
    if not selection.settings:
        return unanswered("stationarity", TITLE, "no run with timed steps", selection.notes)
    steps = [(setting, Judgement.of(_longest_steps(setting))) for setting in selection.settings]
    ops = [op for setting in selection.settings for op in _ops(setting)]
    return Finding(
        question="stationarity",
        title=TITLE,
        summary=f"{_ops_summary(ops)} {_steps_summary([judgement for _, judgement in steps])}",
        tables=[_op_table(ops), _step_table(steps)],
        charts=[*_op_charts(selection, ops), *_step_charts(selection, steps)],
        notes=[*_notes(), *selection.notes],
    )


def _longest_steps(setting: RunGroup) -> list[float]:
    """Warm-up included; a series is of one process, since two processes make no one life of a program."""
    run = max(setting.runs, key=lambda run: len(run.warmup_s) + len(run.step_s))
    return [*run.warmup_s, *run.step_s]


def _ops(setting: RunGroup) -> list[Op]:
    """Op types of the longest profile, the heaviest first."""
    if not setting.profiles:
        return []
    series = max(
        (profile.per_step_s for profile in setting.profiles), key=lambda each: max(map(len, each.values()), default=0)
    )
    total = sum(map(sum, series.values()))
    percent = {kind: 100 * sum(values) / total for kind, values in series.items() if total > 0}
    heavy = sorted((kind for kind in percent if percent[kind] >= LEAST_PERCENT), key=lambda kind: -percent[kind])
    return [Op(setting, kind, percent[kind], Judgement.of(series[kind])) for kind in heavy]


def _ops_summary(ops: list[Op]) -> str:
    judged = [op for op in ops if op.judgement.stationary is not None]
    if not judged:
        return f"No profile has the {FEWEST} steps that it takes to judge ops."
    total = sum(op.percent for op in judged)
    stationary = 100 * sum(op.percent for op in judged if op.judgement.stationary) / total
    variation = statistics.median(op.judgement.variation or 0.0 for op in judged)
    profiles = len({id(op.setting) for op in judged})
    return (
        f"{stationary:.0f} % of op time is stationary, over {profiles} profiled "
        f"{'run' if profiles == 1 else 'runs'}, and an op type's time varies by {100 * variation:.1f} % in the median; "
        "the 2016 paper found all ops stationary with low variance."
    )


def _steps_summary(judgements: list[Judgement]) -> str:
    labels = Counter(judgement.steady.label or "too short to tell" for judgement in judgements)
    counts = ", ".join(f"{count} {label}" for label, count in labels.most_common())
    return f"Of {len(judgements)} series of whole steps: {counts}."


def _op_table(ops: list[Op]) -> Table:
    return Table(
        title="Time of each op type over the profiled steps",
        columns=["workload", "phase", "place", "op type", "share of op time (%)", "steps", *MEASURES],
        rows=[[*_who(op.setting), op.type, op.percent, len(op.judgement.values), *op.judgement.cells()] for op in ops],
    )


def _step_table(steps: list[tuple[RunGroup, Judgement]]) -> Table:
    return Table(
        title="Time of whole steps, warm-up included",
        columns=["workload", "phase", "place", "steps", "settled after (steps)", *MEASURES],
        rows=[
            [*_who(setting), len(judgement.values), judgement.steady.start, *judgement.cells()]
            for setting, judgement in steps
        ],
    )


def _op_charts(selection: Selection, ops: list[Op]) -> list[Chart]:
    """One a place and phase: times over their own median, so that ops of all sizes share an axis."""
    charts = []
    for place, phase in _views(selection):
        drawn = [
            op for op in ops if (op.setting.place, op.setting.phase) == (place, phase) and op.percent >= DRAWN_PERCENT
        ]
        if drawn:
            charts.append(
                Chart(
                    kind="box",
                    title=f"Op times over their median: {phase} on {place}",
                    x_title="op type",
                    y_title="time over median",
                    series=[_boxes(name, drawn) for name in dict.fromkeys(op.setting.workload for op in drawn)],
                    note=f"Op types above {DRAWN_PERCENT:.0f} % of the op time.",
                )
            )
    return charts


def _boxes(workload: str, ops: list[Op]) -> Series:
    """One box an op type: its name is repeated for each of its steps."""
    own = [op for op in ops if op.setting.workload == workload]
    return Series(
        name=workload,
        x=[op.type for op in own for _ in op.judgement.values],
        y=[value for op in own for value in _over_median(op.judgement.values)],
    )


def _step_charts(selection: Selection, steps: list[tuple[RunGroup, Judgement]]) -> list[Chart]:
    return [
        Chart(
            kind="line",
            title=f"Step times over their median: {phase} on {place}",
            x_title="step",
            y_title="time over median",
            series=[
                Series(
                    name=setting.workload,
                    x=list(range(1, len(judgement.values) + 1)),
                    y=_over_median(judgement.values),
                )
                for setting, judgement in steps
                if (setting.place, setting.phase) == (place, phase)
            ],
            log_y=True,
        )
        for place, phase in _views(selection)
    ]


def _views(selection: Selection) -> list[tuple[str, str]]:
    pairs = {(setting.place, setting.phase) for setting in selection.settings}
    return [(place, phase) for place in selection.places for phase in ("train", "infer") if (place, phase) in pairs]


def _over_median(values: list[float]) -> list[float]:
    middle = statistics.median(values)
    return [value / middle if middle > 0 else 1.0 for value in values]


def _who(setting: RunGroup) -> list[Cell]:
    return [setting.workload, setting.phase, setting.place]


def _notes() -> list[str]:
    near = f"{100 * MATERIAL:.0f} %"
    return [
        f"A series is cut where its level changes. Flat: all levels within {near} of the last; warm-up: slower at "
        "first; slowing: faster at first; unsteady: a change in the last quarter, or levels that recur.",
        f"Stationary: flat or warm-up, and no drift afterwards (Mann-Kendall p below {SIGNIFICANT} and more than "
        f"{near} from the first third to the last). Variation is the standard deviation over the mean.",
        f"Op types of at least {LEAST_PERCENT:.0f} % of op time are judged; a series below {FEWEST} steps is not. "
        "Of several runs the longest is shown. In the share of stationary time every profile has the same weight.",
        f"Published: Fig. 1 of {published.FATHOM}; a picture without numbers.",
    ]
