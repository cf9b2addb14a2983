"""How few op types make up most of the time? Answers Fig. 2 of the 2016 paper: 5 to 15 types take over 90 %."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.selection import RunGroup, Selection, op_type, select
from fathom.core.record import Record

TITLE = "How few op types take most of the time?"
ORDER = 60
MOST_PERCENT = 90.0


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True)
    if not selection.groups:
        return not_measured("skew", TITLE, "fathom study", selection.notes)
    return Finding(
        question="skew",
        title=TITLE,
        summary=_summary(selection),
        tables=[_table(selection.groups)],
        charts=_charts(selection),
        notes=[
            "Percentages are of the time inside ops.",
            f"Published: {published.SOURCES['fathom_fig3_op_percent']}. Published counts add up the whole "
            "percentages printed there, without the types below 1 %. The text says 5 to 15, from Fig. 2.",
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
    parts = []
    for machine in selection.machines:
        counts = [_count(group) for group in selection.on(machine)]
        span = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        parts.append(f"{span} on {machine}")
    low, high = published.HEAVY_TYPES
    usual = f"The 2016 paper: usually {low} to {high}."
    return f"Op types that take {MOST_PERCENT:.0f} % of op time: {'; '.join(parts)}. {usual}"


def _count(group: RunGroup) -> int:
    ranked = heaviest_first(group.seconds_by(op_type))
    return types_for([sofar for _, sofar in ranked]) or len(ranked)


def _table(groups: Sequence[RunGroup]) -> Table:
    printed = published_types()
    rows: list[list[Cell]] = []
    for group in groups:
        ranked = heaviest_first(group.seconds_by(op_type))
        (first, share), count = ranked[0], _count(group)
        heavy = ", ".join(kind for kind, _ in ranked[:count])
        theirs = printed.get(group.workload) if group.phase == "train" else None
        rows.append(
            [
                group.workload,
                group.phase,
                group.machine,
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
            "machine",
            "op types",
            "types for 90 %",
            "types for 90 %, published Fig. 3",
            "heaviest type",
            "share of op time (%)",
            "names of these types",
        ],
        rows=rows,
    )


def _charts(selection: Selection) -> list[Chart]:
    charts = []
    for machine in selection.machines:
        for phase in ("train", "infer"):
            groups = [group for group in selection.on(machine) if group.phase == phase]
            if groups:
                charts.append(
                    Chart(
                        kind="line",
                        title=f"Cumulative share of op time: {phase} on {machine}",
                        x_title="op types, heaviest first",
                        y_title="share of op time (%)",
                        unit="%",
                        series=[_line(group) for group in groups],
                    )
                )
    return charts


def _line(group: RunGroup) -> Series:
    ranked = heaviest_first(group.seconds_by(op_type))
    return Series(
        name=group.workload,
        x=list(range(1, len(ranked) + 1)),
        y=[sofar for _, sofar in ranked],
        text=[kind for kind, _ in ranked],
    )
