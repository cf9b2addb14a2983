"""Where in the network is the time? Answers section V-B of the 2016 paper: the decline of fully connected layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.selection import RunGroup, Selection, select
from fathom.core.formatting import count, listed
from fathom.core.record import OpRow, Record

TITLE = "Which layers take the time?"
ORDER = 80
FULLY_CONNECTED = "fully connected"  # the role of such layers
DEPTH = 2  # parts of a module's path that make a layer, below what wraps the whole network
TRUNK = 0.8  # of the modules below one submodule: that submodule is descended into
OUTSIDE = "(outside ops)"
LEAST_PERCENT = 0.5  # layers below it share one line
DRAWN = 30


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True)
    if not selection.groups:
        return not_measured("layers", TITLE, "fathom study", selection.notes)
    phases = selection.by_phase()
    return Finding(
        question="layers",
        title=TITLE,
        summary=" ".join(map(_summary, phases)),
        tables=[table for part in phases for table in _tables(part)],
        charts=[chart for part in phases for chart in _charts(part)],
        notes=[*_notes(), *selection.notes],
    )


def _tables(part: Selection) -> list[Table]:
    """Of one phase; the paper has numbers of training alone."""
    compared = [_connected_table(part)] if _is_training(part) else []
    return [*compared, _layer_table(part), _role_table(part)]


def _charts(part: Selection) -> list[Chart]:
    compared = [_connected_chart(part)] if _is_training(part) else []
    return [*compared, *_role_charts(part), *_layer_charts(part)]


def _is_training(part: Selection) -> bool:
    return part.groups[0].phase == "train"


def layer_of(row: OpRow, depth: int = DEPTH) -> str:
    """The first parts of the module's path; an op in no module is named by its role."""
    return ".".join(row.layer.split(".")[:depth]) if row.layer else f"({row.role or row.phase})"


def depth_of(group: RunGroup) -> int:
    """How many parts of a module's path name a layer, so that the repeated blocks of a wrapped network are separate.

    Counted from modules, not from time, so that it is the same on every machine: two parts below the prefix that all
    share, and at least one part below the submodule that holds nearly all of them.
    """
    paths = {tuple(row.layer.split(".")) for profile in group.profiles for row in profile.rows if row.layer}
    return max(DEPTH + _trunk(paths, 1.0), 1 + _trunk(paths, TRUNK))


def _trunk(paths: set[tuple[str, ...]], share: float) -> int:
    """The depth down to which one submodule holds that share of the modules below."""
    depth = 0
    while True:
        below = {path for path in paths if len(path) > depth}
        branches = Counter(path[depth] for path in below)
        heaviest, many = branches.most_common(1)[0] if branches else ("", 0)
        if many < 2 or many < share * len(below):
            return depth
        paths = {path for path in below if path[depth] == heaviest}
        depth += 1


def _layer_key(group: RunGroup) -> Callable[[OpRow], str]:
    depth = depth_of(group)
    return lambda row: layer_of(row, depth)


def fully_connected_percent(group: RunGroup) -> float:
    """Of the step, forward and backward; the optimizer's work on these layers counts as optimizer."""
    return group.percent_by(lambda row: row.role).get(FULLY_CONNECTED, 0.0)


def _summary(selection: Selection) -> str:
    sentences = []
    for machine in selection.machines:
        found = {group.workload: group for group in selection.on(machine)}
        shares = [
            f"{fully_connected_percent(found[name]):.1f} % of {name} (2016: {printed} %)"
            for name, printed in published.FULLY_CONNECTED_PERCENT.items()
            if name in found and _is_training(selection)
        ]
        doing = "" if _is_training(selection) else " in inference"
        if shares:
            sentences.append(f"Fully connected layers on {machine}: {', '.join(shares)}.")
        else:
            percent, layer = max(map(_heaviest, found.values()))
            sentences.append(f"Heaviest layer{doing} on {machine}: {layer} with {percent:.0f} %.")
    return " ".join(sentences)


def _heaviest(group: RunGroup) -> tuple[float, str]:
    percent = group.percent_by(_layer_key(group))
    layer = max(percent, key=lambda layer: percent[layer])
    return percent[layer], f"{layer} of {group.workload}"


def _connected_table(selection: Selection) -> Table:
    rows: list[list[Cell]] = []
    for name, printed in published.FULLY_CONNECTED_PERCENT.items():
        found = {group.machine: group for group in selection.groups if group.workload == name}
        ours = [fully_connected_percent(found[machine]) if machine in found else None for machine in selection.machines]
        rows.append([name, printed, *ours])
    return Table(
        title="Share of fully connected layers in three generations of ImageNet networks",
        columns=["workload", "published (%)", *(f"{machine} (% of step)" for machine in selection.machines)],
        rows=rows,
    )


def _connected_chart(selection: Selection) -> Chart:
    names = list(published.FULLY_CONNECTED_PERCENT)
    bounds = [name for name, text in published.FULLY_CONNECTED_PERCENT.items() if text.startswith("<")]
    printed = [float(text.removeprefix("< ")) for text in published.FULLY_CONNECTED_PERCENT.values()]
    series = [
        Series(
            name="published in 2016",
            role="published",
            x=names,
            y=printed,
            text=list(published.FULLY_CONNECTED_PERCENT.values()),
        )
    ]
    for machine in selection.machines:
        found = {group.workload: group for group in selection.on(machine)}
        values = [fully_connected_percent(found[name]) if name in found else None for name in names]
        series.append(Series(name=machine, x=names, y=values))
    return Chart(
        kind="bar",
        title="Fully connected layers",
        x_title="workload",
        y_title="share of step (%)",
        series=series,
        unit="%",
        note=f"Published as an upper bound: {listed(bounds)}." if bounds else "",
    )


def _layer_table(part: Selection) -> Table:
    rows: list[list[Cell]] = []
    training = _is_training(part)
    for group in part.groups:
        phases = _layers_by_phase(group)
        for layer, percent in _layers(group).items():
            parts: list[Cell] = [phases.get((layer, phase), 0.0) for phase in ("forward", "backward")]
            shown: list[Cell] = [None, None] if layer.startswith("(") else parts
            rows.append([group.workload, group.machine, layer, percent, *(shown if training else [])])
    passes = ["forward (% of step)", "backward (% of step)"] if training else []
    return Table(
        title=f"Share of {part.step} by layer, in network order",
        columns=["workload", "machine", "layer", "share of step (%)", *passes],
        rows=rows,
    )


def _layers_by_phase(group: RunGroup) -> dict[tuple[str, str], float]:
    layer = _layer_key(group)
    return group.percent_by(lambda row: (layer(row), row.phase))


def _layers(group: RunGroup) -> dict[str, float]:
    """Layer -> percent of the step, small ones together, and what is outside ops: they add up to 100."""
    percent = group.percent_by(_layer_key(group))
    shown = {layer: value for layer, value in percent.items() if value >= LEAST_PERCENT}
    small = [value for value in percent.values() if value < LEAST_PERCENT]
    if small:
        shown[f"({count(len(small), 'smaller layer')})"] = sum(small)
    return {**shown, OUTSIDE: 100 * group.outside_s / group.step_s}


def _role_table(part: Selection) -> Table:
    rows: list[list[Cell]] = []
    for group in part.groups:
        percent = group.percent_by(lambda row: row.role)
        for role in sorted(percent, key=lambda role: -percent[role]):
            rows.append([group.workload, group.machine, role, percent[role]])
    return Table(
        title=f"Share of {part.step} by role",
        columns=["workload", "machine", "role", "share of step (%)"],
        rows=rows,
    )


def _role_charts(selection: Selection) -> list[Chart]:
    charts = []
    for machine in selection.machines:
        shares = {group.workload: group.percent_by(lambda row: row.role) for group in selection.on(machine)}
        outside = [100 * group.outside_s / group.step_s for group in selection.on(machine)]
        total = {
            role: sum(each.get(role, 0.0) for each in shares.values()) for each in shares.values() for role in each
        }
        names = list(shares)
        series = [
            Series(name=role, x=names, y=[shares[name].get(role, 0.0) for name in names])
            for role in sorted(total, key=lambda role: -total[role])
        ]
        charts.append(
            Chart(
                kind="stacked",
                title=f"{'Training' if _is_training(selection) else 'Inference'} step by role on {machine}",
                x_title="workload",
                y_title="share of step (%)",
                unit="%",
                series=[*series, Series(name=OUTSIDE, role="remainder", x=names, y=outside)],
            )
        )
    return charts


def _layer_charts(selection: Selection) -> list[Chart]:
    """One per workload, its machines side by side."""
    charts = []
    for workload in dict.fromkeys(group.workload for group in selection.groups):
        groups = [group for group in selection.groups if group.workload == workload]
        shares = _same_layers(groups)
        names = list(dict.fromkeys(layer for each in shares.values() for layer in each))
        heavy = sorted(names, key=lambda layer: -max(each[layer] for each in shares.values()))[:DRAWN]
        drawn = [layer for layer in names if layer in heavy]
        charts.append(
            Chart(
                kind="bar",
                title=f"Layers of {groups[0].name}, in network order",
                x_title="layer",
                y_title=f"share of {selection.step.partition(' ')[2]} (%)",
                unit="%",
                series=[
                    Series(name=machine, x=drawn, y=[each[layer] for layer in drawn])
                    for machine, each in shares.items()
                ],
                note=f"The {DRAWN} heaviest of {len(names)}." if len(drawn) < len(names) else "",
            )
        )
    return charts


def _same_layers(groups: Sequence[RunGroup]) -> dict[str, dict[str, float]]:
    """Machine -> percent of the same layers: those that are not small on all of them, in the order of the network."""
    percent = {group.machine: group.percent_by(_layer_key(group)) for group in groups}
    names: list[str] = []
    for each in percent.values():
        place = 0  # behind the layer before it, where the machines before have not got it
        for layer in each:
            if layer not in names:
                names.insert(place, layer)
            place = names.index(layer) + 1
    large = [name for name in names if any(each.get(name, 0.0) >= LEAST_PERCENT for each in percent.values())]
    rest = f"({count(len(names) - len(large), 'smaller layer')})"
    shares = {}
    for group in groups:
        own = percent[group.machine]
        smaller = (
            {rest: sum(value for name, value in own.items() if name not in large)} if len(large) < len(names) else {}
        )
        shown = {name: own.get(name, 0.0) for name in large}
        shares[group.machine] = shown | smaller | {OUTSIDE: 100 * group.outside_s / group.step_s}
    return shares


def _notes() -> list[str]:
    printed = listed([f"{published.op_percent()[name]['MatMul']:.0f}" for name in published.FULLY_CONNECTED_PERCENT])
    return [
        f"A layer is named by the first {DEPTH} parts of a module's path, and by more where nearly all modules lie "
        "below one submodule. Names in brackets are in no module. A backward op is credited to the layer whose "
        "forward made it.",
        f"Published: section V-B of {published.FATHOM}, on {published.MACHINE}. It is not the MatMul column of its "
        f"Fig. 3, which prints {printed} for the same networks. {published.FULLY_CONNECTED_WORDING}",
        "The share of a fully connected layer is its forward and backward ops. Its part of the optimizer's work counts "
        "as optimizer.",
    ]
