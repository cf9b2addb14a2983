"""Which op types take the time of each workload? Answers Fig. 3 of the 2016 paper, whose rows stand beside ours."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from fathom import published as paper
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.questions._words import listed, unanswered
from fathom.analysis.selection import RunGroup, Selection, on_gpu, op_seconds, op_type, plain_step_s, select
from fathom.core.record import Kernel, Record
from fathom.trace.taxonomy import GROUPS, group_of, kernel_type, short_name

TITLE = "Where does the time go, by op type?"
LEAST_PERCENT = 1.0  # a type that reaches it in no workload has no column
DIFFERENT_POINTS = 10.0
SHOWN_KERNELS = 5
CROWDED = 1.005  # kernels over the plain step: more than its noise
UNEVEN = 0.2  # of the median, between the quarters of the profiled steps
OTHER, OUTSIDE = "other ops", "outside ops"


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True, phases=("train",))
    if not selection.settings:
        return unanswered("breakdown", TITLE, "no training run with a profile", selection.notes)
    columns = columns_by_group(selection.settings)
    return Finding(
        question="breakdown",
        title=TITLE,
        summary=" ".join(_sentence(place, selection.at(place)) for place in selection.places),
        tables=[
            _differences(selection.settings),
            *(_table(place, selection, columns) for place in selection.places),
            *_kernels(selection.settings),
        ],
        charts=[_published_map(columns), *(_map(place, selection, columns) for place in selection.places)],
        notes=[
            *_notes(),
            *_crowded(selection.settings),
            *_uneven(selection.settings),
            *_slowdowns(selection.settings),
            *selection.notes,
        ],
    )


def columns_by_group(settings: Sequence[RunGroup]) -> dict[str, list[str]]:
    """Class A-G -> its op types: the published ones in their order, then ours above 1 %, heaviest first."""
    printed = next(iter(paper.op_percent().values()))
    columns = {group: [kind for kind in printed if group_of(kind) == group] for group in GROUPS}
    most: dict[tuple[str, str], float] = {}
    for setting in settings:
        # by today's classes: older records hold unknown ops among the elementwise ones
        for key, percent in setting.percent_by(lambda row: (group_of(row.type), row.type)).items():
            most[key] = max(percent, most.get(key, 0.0))
    for group, kind in sorted(most, key=lambda key: -most[key]):
        if most[group, kind] > LEAST_PERCENT and kind not in printed:
            columns.setdefault(group, []).append(kind)
    return columns


def differing_cells(workload: str, ours: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Op type, published and our percentage, where they are more than 10 points apart; the widest first."""
    theirs = paper.op_percent().get(workload)
    if theirs is None:
        return []
    pairs = [(kind, theirs.get(kind, 0.0), ours.get(kind, 0.0)) for kind in {**theirs, **ours}]
    apart = [pair for pair in pairs if abs(pair[2] - pair[1]) > DIFFERENT_POINTS]
    return sorted(apart, key=lambda pair: -abs(pair[2] - pair[1]))


def _sentence(place: str, settings: list[RunGroup]) -> str:
    heaviest: dict[str, list[str]] = {}
    for setting in settings:
        percent = setting.percent_by(lambda row: GROUPS.get(group_of(row.type), OTHER).lower())
        percent["time outside ops"] = 100 * setting.outside_s / setting.step_s
        group = max(percent, key=lambda name: percent[name])
        heaviest.setdefault(group, []).append(f"{setting.workload} ({percent[group]:.0f} %)")
    told = "; ".join(f"{group} in {listed(names)}" for group, names in heaviest.items())
    compared = [setting for setting in settings if setting.workload in paper.op_percent()]
    apart = sum(len(differing_cells(setting.workload, setting.percent_by(op_type))) for setting in compared)
    versus = f" Cells more than 10 points from the 2016 paper: {apart}." if compared else ""
    return f"On {place} the largest part is {told}.{versus}"


def _differences(settings: Sequence[RunGroup]) -> Table:
    rows: list[list[Cell]] = []
    for setting in settings:
        inside = 100 * setting.op_s / setting.step_s
        for kind, theirs, ours in differing_cells(setting.workload, setting.percent_by(op_type)):
            numbers: list[Cell] = [theirs, *(value for value in (ours, 100 * ours / inside, ours - theirs))]
            rows.append([setting.workload, setting.place, kind, *numbers])
    return Table(
        title="Cells more than 10 points from the published ones",
        columns=[
            "workload",
            "place",
            "op type",
            "published (%)",
            "ours (% of step)",
            "ours (% of op time)",
            "difference (points)",
        ],
        rows=rows,
    )


def _table(place: str, selection: Selection, columns: Mapping[str, list[str]]) -> Table:
    types = [kind for group in columns.values() for kind in group]
    return Table(
        title=f"Percent of a training step on {place}",
        columns=["workload", *(f"{kind} (%)" for kind in [*types, OTHER, OUTSIDE])],
        rows=[[setting.workload, *(value for value in _row(setting, types))] for setting in selection.at(place)],
    )


def _kernels(settings: Sequence[RunGroup]) -> list[Table]:
    """The longest kernels of each workload under the ops that launched them; no table without a GPU."""
    rows: list[list[Cell]] = []
    for setting in settings:
        kernels = setting.profiles[-1].kernels
        busy_s = sum(kernel.device_s for kernel in kernels)
        names = told_apart([kernel.name for kernel in kernels[:SHOWN_KERNELS]])
        for kernel in kernels[:SHOWN_KERNELS]:
            share = 100 * kernel.device_s / busy_s if busy_s else None
            owner = (_kernel_type(kernel) or None, kernel.op or None)
            name = names[kernel.name]
            rows.append([setting.workload, setting.place, *owner, name, kernel.calls, kernel.device_s * 1e3, share])
    columns = ["workload", "GPU", "op type", "op", "kernel", "calls", "per step (ms)", "of kernel time (%)"]
    return [Table(title="The longest kernels, under their ops", columns=columns, rows=rows)] if rows else []


def _kernel_type(kernel: Kernel) -> str:
    """Older records hold the kernels of a convolution's backward before its split; most of their names tell."""
    kind = kernel_type(kernel.name)
    return kind if kernel.type == "Conv2DBackward" and kind.startswith("Conv2DBack") else kernel.type


def told_apart(kernels: Sequence[str]) -> dict[str, str]:
    """Kernel -> its short name; different kernels of the same short name are numbered."""
    names: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for kernel in dict.fromkeys(kernels):
        short = short_name(kernel)
        seen[short] += 1
        names[kernel] = short if seen[short] == 1 else f"{short} ({seen[short]})"
    return names


def _row(setting: RunGroup, types: Sequence[str]) -> list[float]:
    """The percentages of the types, of all other ops, and of what is outside ops: they add up to 100."""
    percent = setting.percent_by(op_type)
    shown = [percent.get(kind, 0.0) for kind in types]
    other = sum(value for kind, value in percent.items() if kind not in types)
    return [*shown, other, 100 * setting.outside_s / setting.step_s]


def _map(place: str, selection: Selection, columns: Mapping[str, list[str]]) -> Chart:
    types = [kind for group in columns.values() for kind in group]
    rows = {setting.workload: _row(setting, types) for setting in selection.at(place)}
    return _heat_map(f"Percent of a training step on {place}", rows, columns)


def published() -> Finding:
    """The printed percentages themselves; the largest of each workload in words."""
    rows = paper.op_percent()
    heaviest = {workload: max(row, key=lambda kind: row[kind]) for workload, row in rows.items()}
    told = ", ".join(f"{kind} in {workload} ({rows[workload][kind]:.0f} %)" for workload, kind in heaviest.items())
    types = list(next(iter(rows.values())))
    return Finding(
        question="breakdown",
        title=TITLE,
        summary=f"In the 2016 paper the largest part is {told}.",
        tables=[
            Table(
                title=f"Published in 2016: percent of execution time on {paper.MACHINE}",
                columns=["workload", *(f"{kind} (%)" for kind in types)],
                rows=[[workload, *(row[kind] for kind in types)] for workload, row in rows.items()],
            )
        ],
        notes=[f"{paper.SOURCES['fathom_fig3_op_percent']}; 0 is below 1 %, and what is left to 100 is not printed."],
    )


def _published_map(columns: Mapping[str, list[str]]) -> Chart:
    """The printed rows in the same columns; what is left to 100 is other ops and outside ops, not told apart."""
    types = [kind for group in columns.values() for kind in group]
    rows: dict[str, list[float | None]] = {
        workload: [*(percent.get(kind) for kind in types), 100 - sum(percent.values()), None]
        for workload, percent in paper.op_percent().items()
    }
    return _heat_map(f"Published in 2016: percent of execution time on {paper.MACHINE}", rows, columns)


def _heat_map(title: str, rows: Mapping[str, Sequence[float | None]], columns: Mapping[str, list[str]]) -> Chart:
    names = [*(kind for group in columns.values() for kind in group), OTHER, OUTSIDE]
    bands = [(f"{letter} {GROUPS.get(letter, '')}".strip(), len(types)) for letter, types in columns.items() if types]
    return Chart(
        kind="heatmap",
        title=title,
        x_title="op type",
        y_title="workload",
        series=[Series(name=workload, x=names, y=list(values)) for workload, values in rows.items()],
        bands=[*bands, ("rest", 2)],
    )


def _notes() -> list[str]:
    low, high = paper.OUTSIDE_OPS_PERCENT
    return [
        f"Published: {paper.SOURCES['fathom_fig3_op_percent']}, training on {paper.MACHINE}; it prints whole "
        f"percentages of the types above 1 %, and says that {low:.0f} to {high:.0f} % of the time is outside ops.",
        "Ours are percent of the step: the op types, other ops and outside ops of a row add up to 100. On a GPU, "
        "outside ops is the time in which no kernel ran, against the step without the profiler.",
    ]


def _crowded(settings: Sequence[RunGroup]) -> list[str]:
    """Where a GPU's kernels come to more than the plain step, nothing is left outside them; said, not hidden."""
    told = []
    for setting in settings:
        shares = [op_seconds(profile) / plain_step_s(profile) for profile in setting.profiles if on_gpu(profile)]
        if shares and max(shares) > CROWDED:
            told.append(f"{setting.workload} on {setting.place} {100 * max(shares):.0f} %")
    if not told:
        return []
    return [
        f"Kernels come to more than the step without the profiler in {listed(told)}: the percentages are of their sum. "
        "Older records count kernels that run at once in full; newer ones let them share the time."
    ]


def _uneven(settings: Sequence[RunGroup]) -> list[str]:
    """Where a CPU's profiled steps differ much, something else ran meanwhile, and shares are those of a crowd."""
    told = []
    for setting in settings:
        for profile in setting.profiles:
            if on_gpu(profile) or len(profile.step_s) < 2:
                continue
            low, middle, high = statistics.quantiles(profile.step_s, n=4)
            if high - low > UNEVEN * middle:
                told.append(f"{setting.workload} on {setting.place}, {1000 * low:.3g} to {1000 * high:.3g} ms")
    if not told:
        return []
    return [f"Profiled steps differ even in their middle half; shares may move when measured again: {listed(told)}."]


def _slowdowns(settings: Sequence[RunGroup]) -> list[str]:
    """The profiler's own cost, printed beside every profile."""
    by_place: dict[str, list[str]] = {}
    for setting in settings:
        factors = [profile.slowdown for profile in setting.profiles if profile.slowdown is not None]
        if factors:
            by_place.setdefault(setting.place, []).append(f"{setting.workload} {max(factors):.2f}")
    return [
        f"The profiler made steps longer, on {place} by these factors: {listed(told)}."
        for place, told in by_place.items()
    ]
