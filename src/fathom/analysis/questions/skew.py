"""How few op types make up most of the time? Answers Fig. 2 of the 2016 paper: 5 to 15 types take over 90 %."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.questions._words import unanswered
from fathom.analysis.selection import RunGroup, Selection, op_type, select
from fathom.core.record import Record

TITLE = "How few op types take most of the time?"
MOST_PERCENT = 90.0


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True)
    if not selection.settings:
        return unanswered("skew", TITLE, "no run with a profile", selection.notes)
    return Finding(
        question="skew",
        title=TITLE,
        summary=_summary(selection),
        tables=[_table(selection.settings)],
        charts=_charts(selection),
        notes=[
            "Percentages are of the time inside ops.",
            f"Published: {published.SOURCES['fathom_fig3_op_percent']}. Counts beside ours add up the whole "
            "percentages printed there, in which types below 1 % are missing; the text says 5 to 15, from Fig. 2.",
            *selection.notes,
        ],
    )


def heaviest_first(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    """Op types with their cumulative percentage of all the time given."""
    ranked = sorted((kind for kind in seconds if seconds[kind] > 0), key=lambda kind: -seconds[kind])
    total = sum(seconds.values())
    return [
        (kind, 100 * sofar / total)
        for kind, sofar in zip(ranked, accumulate(seconds[kind] for kind in ranked), strict=True)
    ]


def types_for(cumulative: Sequence[float], percent: float = MOST_PERCENT) -> int | None:
    """How many types it takes; None if all of them together do not reach it."""
    return next((count for count, sofar in enumerate(cumulative, 1) if sofar >= percent - 1e-9), None)


def published_types() -> dict[str, int | None]:
    """The same count from the printed rows of Fig. 3."""
    return {
        workload: types_for(list(accumulate(sorted(row.values(), reverse=True))))
        for workload, row in published.op_percent().items()
    }


def _summary(selection: Selection) -> str:
    sentences = []
    for place in selection.places:
        counts = [_count(setting) for setting in selection.at(place)]
        span = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        take = "op type takes" if max(counts) == 1 else "op types take"
        sentences.append(f"On {place}, {span} {take} 90 % of the op time of a workload.")
    low, high = published.HEAVY_TYPES
    return " ".join(sentences)[:-1] + f"; the 2016 paper: usually {low} to {high}."


def _count(setting: RunGroup) -> int:
    ranked = heaviest_first(setting.seconds_by(op_type))
    return types_for([sofar for _, sofar in ranked]) or len(ranked)


def _table(settings: Sequence[RunGroup]) -> Table:
    printed = published_types()
    rows: list[list[Cell]] = []
    for setting in settings:
        ranked = heaviest_first(setting.seconds_by(op_type))
        (first, share), count = ranked[0], _count(setting)
        heavy = ", ".join(kind for kind, _ in ranked[:count])
        theirs = printed.get(setting.workload) if setting.phase == "train" else None
        rows.append(
            [
                setting.workload,
                setting.phase,
                setting.place,
                len(ranked),
                count,
                theirs,
                first,
                share,
                heavy,
            ]
        )
    return Table(
        title="Op types that take 90 % of the time",
        columns=[
            "workload",
            "phase",
            "place",
            "op types",
            "types for 90 %",
            "types for 90 %, published Fig. 3",
            "heaviest type",
            "its share of op time (%)",
            "the types for 90 %",
        ],
        rows=rows,
    )


def _charts(selection: Selection) -> list[Chart]:
    charts = []
    for place in selection.places:
        for phase in ("train", "infer"):
            settings = [setting for setting in selection.at(place) if setting.phase == phase]
            if settings:
                charts.append(
                    Chart(
                        kind="line",
                        title=f"Cumulative share of op time: {phase} on {place}",
                        x_title="op types, heaviest first",
                        y_title="share of op time (%)",
                        series=[_line(setting) for setting in settings],
                    )
                )
    return charts


def _line(setting: RunGroup) -> Series:
    ranked = heaviest_first(setting.seconds_by(op_type))
    return Series(
        name=setting.workload,
        x=list(range(1, len(ranked) + 1)),
        y=[sofar for _, sofar in ranked],
        text=[kind for kind, _ in ranked],
    )
