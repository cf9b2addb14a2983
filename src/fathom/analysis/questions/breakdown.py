"""Which op types take the time of each workload? Answers Fig. 3 of the 2016 paper, whose rows stand beside ours."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from fathom import published as paper
from fathom.analysis.finding import Band, Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.selection import RunGroup, Selection, on_gpu, op_type, plain_step_s, select
from fathom.core.formatting import listed
from fathom.core.record import SLOWDOWN, Kernel, Record
from fathom.trace.taxonomy import GROUPS, group_of, kernel_type, short_name

TITLE = "Which op types take the time?"
ORDER = 10
LEAST_PERCENT = 1.0  # a type that reaches it in no workload has no column
DIFFERENT_POINTS = 10.0
SHOWN_KERNELS = 5
OVERFULL = 1.005  # kernel time over the unprofiled step, from which it is more than noise
UNEVEN = 0.2  # interquartile range of the profiled steps over their median
OTHER, OUTSIDE = "other ops", "outside ops"


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True)
    if not selection.groups:
        return not_measured("breakdown", TITLE, "fathom study", selection.notes)
    phases = selection.by_phase()
    return Finding(
        question="breakdown",
        title=TITLE,
        summary=" ".join(_sentence(machine, part) for part in phases for machine in part.machines),
        tables=[table for part in phases for table in _tables(part)],
        charts=[chart for part in phases for chart in _charts(part)],
        notes=[
            *_notes(),
            *_profiled_time(selection.groups),
            *_overfull(selection.groups),
            *_uneven(selection.groups),
            *_slowdowns(selection.groups),
            *selection.notes,
        ],
    )


def _tables(part: Selection) -> list[Table]:
    """Of one phase; the paper has numbers of training alone."""
    columns = columns_by_class(part.groups)
    compared = [_differences(part.groups)] if _is_training(part) else []
    return [*compared, *(_table(machine, part, columns) for machine in part.machines), *_kernels(part.groups)]


def _charts(part: Selection) -> list[Chart]:
    columns = columns_by_class(part.groups)
    published = [_published_map(columns)] if _is_training(part) else []
    return [*published, *(_map(machine, part, columns) for machine in part.machines)]


def _is_training(part: Selection) -> bool:
    return part.groups[0].phase == "train"


def columns_by_class(groups: Sequence[RunGroup]) -> dict[str, list[str]]:
    """Class A-G -> its op types: the published ones in their order, then ours above 1 %, heaviest first."""
    printed = next(iter(paper.op_percent().values()))
    columns = {op_class: [kind for kind in printed if group_of(kind) == op_class] for op_class in GROUPS}
    most: dict[tuple[str, str], float] = {}
    for group in groups:
        # by today's classes: older records hold unknown ops among the elementwise ones
        for key, percent in group.percent_by(lambda row: (group_of(row.type), row.type)).items():
            most[key] = max(percent, most.get(key, 0.0))
    for op_class, kind in sorted(most, key=lambda key: -most[key]):
        if most[op_class, kind] > LEAST_PERCENT and kind not in printed:
            columns.setdefault(op_class, []).append(kind)
    return columns


def differing_cells(workload: str, ours: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Op type, published and our percentage, where they differ by more than 10 points; the largest difference first."""
    theirs = paper.op_percent().get(workload)
    if theirs is None:
        return []
    pairs = [(kind, theirs.get(kind, 0.0), ours.get(kind, 0.0)) for kind in {**theirs, **ours}]
    apart = [pair for pair in pairs if abs(pair[2] - pair[1]) > DIFFERENT_POINTS]
    return sorted(apart, key=lambda pair: -abs(pair[2] - pair[1]))


def _sentence(machine: str, part: Selection) -> str:
    groups = part.on(machine)
    heaviest: dict[str, list[str]] = {}
    for group in groups:
        percent = group.percent_by(lambda row: GROUPS.get(group_of(row.type), OTHER).lower())
        percent["time outside ops"] = 100 * group.outside_s / group.step_s
        op_class = max(percent, key=lambda name: percent[name])
        shown = group.outside_percent if op_class == "time outside ops" else f"{percent[op_class]:.0f}"
        heaviest.setdefault(op_class, []).append(f"{group.workload} ({shown} %)")
    parts = "; ".join(f"{op_class} in {listed(names)}" for op_class, names in heaviest.items())
    compared = [group for group in groups if group.workload in paper.op_percent() and group.phase == "train"]
    apart = sum(len(differing_cells(group.workload, group.percent_by(op_type))) for group in compared)
    shares = "op share differs" if apart == 1 else "op shares differ"
    versus = f" {apart} {shares} from the 2016 paper by more than 10 points." if compared else ""
    return f"Largest share of {part.step} on {machine}: {parts}.{versus}"


def _differences(groups: Sequence[RunGroup]) -> Table:
    rows: list[list[Cell]] = []
    for group in groups:
        inside = 100 * group.op_s / group.step_s
        for kind, theirs, ours in differing_cells(group.workload, group.percent_by(op_type)):
            numbers: list[Cell] = [theirs, *(value for value in (ours, 100 * ours / inside, ours - theirs))]
            rows.append([group.workload, group.machine, kind, *numbers])
    return Table(
        title="Op shares that differ from the published ones by more than 10 points",
        columns=[
            "workload",
            "machine",
            "op type",
            "published (%)",
            "measured (% of step)",
            "measured (% of op time)",
            "difference (points)",
        ],
        rows=rows,
    )


def _table(machine: str, selection: Selection, columns: Mapping[str, list[str]]) -> Table:
    types = [kind for op_class in columns.values() for kind in op_class]
    return Table(
        title=f"Share of {selection.step} on {machine}",
        columns=["workload", *(f"{kind} (%)" for kind in [*types, OTHER, OUTSIDE]), f"{OUTSIDE}, range (%)"],
        rows=[
            [group.workload, *(value for value in _row(group, types)), group.outside_percent]
            for group in selection.on(machine)
        ],
    )


def _kernels(groups: Sequence[RunGroup]) -> list[Table]:
    """The longest kernels of each workload under the ops that launched them; no table without a GPU."""
    rows: list[list[Cell]] = []
    for group in groups:
        kernels = group.profiles[-1].kernels
        busy_s = sum(kernel.device_s for kernel in kernels)
        names = distinct_names([kernel.name for kernel in kernels[:SHOWN_KERNELS]])
        for kernel in kernels[:SHOWN_KERNELS]:
            share = 100 * kernel.device_s / busy_s if busy_s else None
            owner = (_kernel_type(kernel) or None, kernel.op or None)
            name = names[kernel.name]
            rows.append([group.workload, group.machine, *owner, name, kernel.calls, kernel.device_s * 1e3, share])
    columns = ["workload", "GPU", "op type", "op", "kernel", "calls", "per step (ms)", "of kernel time (%)"]
    phase = "" if groups[0].phase == "train" else " in inference"
    title = f"Longest kernels{phase} and the ops that launched them"
    return [Table(title=title, columns=columns, rows=rows)] if rows else []


def _kernel_type(kernel: Kernel) -> str:
    """Older records hold the kernels of a convolution's backward before its split; most names say which."""
    kind = kernel_type(kernel.name)
    return kind if kernel.type == "Conv2DBackward" and kind.startswith("Conv2DBack") else kernel.type


def distinct_names(kernels: Sequence[str]) -> dict[str, str]:
    """Kernel -> its short name; different kernels with the same short name are numbered."""
    names: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for kernel in dict.fromkeys(kernels):
        short = short_name(kernel)
        seen[short] += 1
        names[kernel] = short if seen[short] == 1 else f"{short} ({seen[short]})"
    return names


def _row(group: RunGroup, types: Sequence[str]) -> list[float]:
    """The percentages of these types, of all other ops, and outside ops: they add up to 100."""
    percent = group.percent_by(op_type)
    shown = [percent.get(kind, 0.0) for kind in types]
    other = sum(value for kind, value in percent.items() if kind not in types)
    return [*shown, other, 100 * group.outside_s / group.step_s]


def _map(machine: str, selection: Selection, columns: Mapping[str, list[str]]) -> Chart:
    types = [kind for op_class in columns.values() for kind in op_class]
    rows = {group.workload: _row(group, types) for group in selection.on(machine)}
    return _heat_map(f"Share of {selection.step} (%) on {machine}", rows, columns)


def published() -> Finding:
    """The printed percentages themselves."""
    rows = paper.op_percent()
    heaviest = {workload: max(row, key=lambda kind: row[kind]) for workload, row in rows.items()}
    parts = ", ".join(f"{kind} in {workload} ({rows[workload][kind]:.0f} %)" for workload, kind in heaviest.items())
    types = list(next(iter(rows.values())))
    return Finding(
        question="breakdown",
        title=TITLE,
        summary=f"Largest share of execution time in the 2016 paper: {parts}.",
        tables=[
            Table(
                title=f"Published in 2016: share of execution time on {paper.MACHINE}",
                columns=["workload", *(f"{kind} (%)" for kind in types)],
                rows=[[workload, *(row[kind] for kind in types)] for workload, row in rows.items()],
            )
        ],
        notes=[f"{paper.SOURCES['fathom_fig3_op_percent']}. 0 means below 1 %; the remainder to 100 % is not printed."],
    )


def _published_map(columns: Mapping[str, list[str]]) -> Chart:
    """The printed rows in the same columns; the remainder to 100 is other ops and outside ops together."""
    types = [kind for op_class in columns.values() for kind in op_class]
    rows: dict[str, list[float | None]] = {
        workload: [*(percent.get(kind) for kind in types), 100 - sum(percent.values()), None]
        for workload, percent in paper.op_percent().items()
    }
    return _heat_map(f"Published in 2016: share of execution time (%) on {paper.MACHINE}", rows, columns)


def _heat_map(title: str, rows: Mapping[str, Sequence[float | None]], columns: Mapping[str, list[str]]) -> Chart:
    names = [*(kind for op_class in columns.values() for kind in op_class), OTHER, OUTSIDE]
    bands = [
        Band(label=f"{letter} {GROUPS.get(letter, '')}".strip(), columns=len(types), total=f"all {letter}")
        for letter, types in columns.items()
        if types
    ]
    return Chart(
        kind="heatmap",
        title=title,
        x_title="op type",
        y_title="workload",
        series=[Series(name=workload, x=names, y=list(values)) for workload, values in rows.items()],
        unit="%",
        limits=(0, 100),
        bands=[*bands, Band(label="rest", columns=2)],
    )


def _notes() -> list[str]:
    low, high = paper.OUTSIDE_OPS_PERCENT
    return [
        f"Published: {paper.SOURCES['fathom_fig3_op_percent']}, training on {paper.MACHINE}. It prints whole "
        f"percentages of the types above 1 % and says that {low:.0f} to {high:.0f} % of the time is outside ops.",
        "Measured values are percentages of the unprofiled step: op types, other ops and outside ops of a row add up "
        "to 100. On a GPU, outside ops is the time in which no kernel ran. On a CPU, part of a profiled step is the "
        "profiler's own time: the range of outside ops is from all of that time outside ops to some of it, the table "
        "has the middle, and the ops share the rest in proportion to their profiled times.",
    ]


def _profiled_time(groups: Sequence[RunGroup]) -> list[str]:
    """Where only a trace was read, nothing tells how long a step is without the profiler."""
    found = [
        f"{group.name} on {group.machine}"
        for group in groups
        if any(not on_gpu(profile) and profile.unprofiled_s is None for profile in group.profiles)
    ]
    if not found:
        return []
    return [f"No unprofiled steps: {listed(found)}. The profiler's own time is included, most of it outside ops."]


def _overfull(groups: Sequence[RunGroup]) -> list[str]:
    """Where a GPU's kernels add up to more than the unprofiled step, nothing is left outside them."""
    found = []
    for group in groups:
        shares = [profile.op_s / plain_step_s(profile) for profile in group.profiles if on_gpu(profile)]
        if shares and max(shares) > OVERFULL:
            found.append(f"{group.name} on {group.machine} {100 * max(shares):.0f} %")
    if not found:
        return []
    return [
        f"Kernel times add up to more than the unprofiled step: {listed(found)}. Percentages there are of the sum of "
        "the kernel times. Older records count concurrent kernels in full; newer ones divide the time between them."
    ]


def _uneven(groups: Sequence[RunGroup]) -> list[str]:
    """Where a CPU's profiled steps vary much, other programs ran at the same time and the shares are less reliable."""
    found = []
    for group in groups:
        for profile in group.profiles:
            if on_gpu(profile) or len(profile.step_s) < 2:
                continue
            low, middle, high = statistics.quantiles(profile.step_s, n=4)
            if high - low > UNEVEN * middle:
                found.append(f"{group.name} on {group.machine}, {1000 * low:.3g} to {1000 * high:.3g} ms")
    if not found:
        return []
    wide = f"Interquartile range of the profiled steps above {100 * UNEVEN:.0f} % of their median"
    return [f"{wide}: {listed(found)}. These shares may change when measured again."]


def _slowdowns(groups: Sequence[RunGroup]) -> list[str]:
    """The profiler's own cost, printed beside every profile."""
    by_machine: dict[str, dict[str, float]] = {}
    for group in groups:
        factors = [profile.slowdown for profile in group.profiles if profile.slowdown is not None]
        if factors:
            by_machine.setdefault(group.machine, {})[group.name] = max(factors)
    notes = []
    for machine, found in by_machine.items():
        factors_text = listed([f"{workload} {factor:.2f}" for workload, factor in found.items()])
        disturbed = min(found.values()) < SLOWDOWN
        warning = f" Below {SLOWDOWN} means the timing was disturbed." if disturbed else ""
        notes.append(f"Profiled over unprofiled step time on {machine}: {factors_text}.{warning}")
    return notes
