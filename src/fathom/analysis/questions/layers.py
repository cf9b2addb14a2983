"""Where in the network is the time? Answers section V-B of the 2016 paper: the decline of fully connected layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.analysis.questions._words import unanswered
from fathom.analysis.selection import RunGroup, Selection, select
from fathom.core.record import OpRow, Record

TITLE = "Where in the network is the time?"
FULLY_CONNECTED = "fully connected"  # the role of such layers
DEPTH = 2  # parts of a module's path that make a layer, below what wraps the whole network
TRUNK = 0.8  # of the modules in one branch: the network branches further down
OUTSIDE = "(outside ops)"
LEAST_PERCENT = 0.5  # layers below it share one line
DRAWN = 30


def analyse(records: Sequence[Record]) -> Finding:
    selection = select(records, profiled=True, phases=("train",))
    if not selection.settings:
        return unanswered("layers", TITLE, "no training run with a profile", selection.notes)
    return Finding(
        question="layers",
        title=TITLE,
        summary=_summary(selection),
        tables=[_connected_table(selection), _layer_table(selection.settings), _role_table(selection.settings)],
        charts=[_connected_chart(selection), *_role_charts(selection), *_layer_charts(selection)],
        notes=[*_notes(), *selection.notes],
    )


def layer_of(row: OpRow, depth: int = DEPTH) -> str:
    """The first parts of the module's path; what is in no module is named by what it is for."""
    return ".".join(row.layer.split(".")[:depth]) if row.layer else f"({row.role or row.phase})"


def depth_of(setting: RunGroup) -> int:
    """How many parts of a path make a layer of this network, so that the repeated blocks of a wrapped one stand apart.

    Of modules, not of time, so that it is the same at every place: two parts below what all of them share, and at
    least one part below the branch that holds nearly all of them.
    """
    paths = {tuple(row.layer.split(".")) for profile in setting.profiles for row in profile.rows if row.layer}
    return max(DEPTH + _trunk(paths, 1.0), 1 + _trunk(paths, TRUNK))


def _trunk(paths: set[tuple[str, ...]], share: float) -> int:
    """How deep one walks from the root while one branch holds that share of the modules below."""
    depth = 0
    while True:
        below = {path for path in paths if len(path) > depth}
        branches = Counter(path[depth] for path in below)
        heaviest, many = branches.most_common(1)[0] if branches else ("", 0)
        if many < 2 or many < share * len(below):
            return depth
        paths = {path for path in below if path[depth] == heaviest}
        depth += 1


def _layer_key(setting: RunGroup) -> Callable[[OpRow], str]:
    depth = depth_of(setting)
    return lambda row: layer_of(row, depth)


def fully_connected_percent(setting: RunGroup) -> float:
    """Of the step, forward and backward; the optimizer's work on these layers is the optimizer's."""
    return setting.percent_by(lambda row: row.role).get(FULLY_CONNECTED, 0.0)


def _summary(selection: Selection) -> str:
    sentences = []
    for place in selection.places:
        found = {setting.workload: setting for setting in selection.at(place)}
        shares = [
            f"{fully_connected_percent(found[name]):.1f} % of {name} ({printed} % in 2016)"
            for name, printed in published.FULLY_CONNECTED_PERCENT.items()
            if name in found
        ]
        if shares:
            sentences.append(f"On {place}, fully connected layers take {', '.join(shares)}.")
        else:
            sentences.append(f"On {place}, {', '.join(map(_heaviest, found.values()))}.")
    return " ".join(sentences)


def _heaviest(setting: RunGroup) -> str:
    percent = setting.percent_by(_layer_key(setting))
    layer = max(percent, key=lambda layer: percent[layer])
    return f"{layer} takes {percent[layer]:.0f} % of {setting.workload}"


def _connected_table(selection: Selection) -> Table:
    rows: list[list[Cell]] = []
    for name, printed in published.FULLY_CONNECTED_PERCENT.items():
        found = {setting.place: setting for setting in selection.settings if setting.workload == name}
        ours = [fully_connected_percent(found[place]) if place in found else None for place in selection.places]
        rows.append([name, printed, *ours])
    return Table(
        title="Share of fully connected layers in three generations of ImageNet networks",
        columns=["workload", "published (%)", *(f"{place} (% of step)" for place in selection.places)],
        rows=rows,
    )


def _connected_chart(selection: Selection) -> Chart:
    names = list(published.FULLY_CONNECTED_PERCENT)
    printed = [float(text.removeprefix("< ")) for text in published.FULLY_CONNECTED_PERCENT.values()]
    series = [
        Series(name="published in 2016", x=names, y=printed, text=list(published.FULLY_CONNECTED_PERCENT.values()))
    ]
    for place in selection.places:
        found = {setting.workload: setting for setting in selection.at(place)}
        values = [fully_connected_percent(found[name]) if name in found else None for name in names]
        series.append(Series(name=place, x=names, y=values))
    return Chart(
        kind="bar",
        title="Fully connected layers, percent of a training step",
        x_title="workload",
        y_title="share of step (%)",
        series=series,
        note="The published value of residual is an upper bound.",
    )


def _layer_table(settings: Sequence[RunGroup]) -> Table:
    rows: list[list[Cell]] = []
    for setting in settings:
        phases = _layers_by_phase(setting)
        for layer, percent in _layers(setting).items():
            parts: list[Cell] = [phases.get((layer, phase), 0.0) for phase in ("forward", "backward")]
            shown: list[Cell] = [None, None] if layer.startswith("(") else parts
            rows.append([setting.workload, setting.place, layer, percent, *shown])
    return Table(
        title="Percent of a training step by layer, in the order of the network",
        columns=["workload", "place", "layer", "share of step (%)", "forward (% of step)", "backward (% of step)"],
        rows=rows,
    )


def _layers_by_phase(setting: RunGroup) -> dict[tuple[str, str], float]:
    layer = _layer_key(setting)
    return setting.percent_by(lambda row: (layer(row), row.phase))


def _layers(setting: RunGroup) -> dict[str, float]:
    """Layer -> percent of the step, small ones together, and what is outside ops: they add up to 100."""
    percent = setting.percent_by(_layer_key(setting))
    shown = {layer: value for layer, value in percent.items() if value >= LEAST_PERCENT}
    small = [value for value in percent.values() if value < LEAST_PERCENT]
    if small:
        shown[f"({len(small)} smaller layers)"] = sum(small)
    return {**shown, OUTSIDE: 100 * setting.outside_s / setting.step_s}


def _role_table(settings: Sequence[RunGroup]) -> Table:
    rows: list[list[Cell]] = []
    for setting in settings:
        percent = setting.percent_by(lambda row: row.role)
        for role in sorted(percent, key=lambda role: -percent[role]):
            rows.append([setting.workload, setting.place, role, percent[role]])
    return Table(
        title="Percent of a training step by role",
        columns=["workload", "place", "role", "share of step (%)"],
        rows=rows,
    )


def _role_charts(selection: Selection) -> list[Chart]:
    charts = []
    for place in selection.places:
        shares = {setting.workload: setting.percent_by(lambda row: row.role) for setting in selection.at(place)}
        outside = [100 * setting.outside_s / setting.step_s for setting in selection.at(place)]
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
                title=f"What a training step is spent on: {place}",
                x_title="workload",
                y_title="share of step (%)",
                series=[*series, Series(name=OUTSIDE, x=names, y=outside)],
            )
        )
    return charts


def _layer_charts(selection: Selection) -> list[Chart]:
    """One a workload, its places side by side."""
    charts = []
    for workload in dict.fromkeys(setting.workload for setting in selection.settings):
        settings = [setting for setting in selection.settings if setting.workload == workload]
        shares = {setting.place: _layers(setting) for setting in settings}
        names = list(dict.fromkeys(layer for each in shares.values() for layer in each))
        heavy = sorted(names, key=lambda layer: -max(each.get(layer, 0.0) for each in shares.values()))[:DRAWN]
        drawn = [layer for layer in names if layer in heavy]
        charts.append(
            Chart(
                kind="bar",
                title=f"Layers of {workload}, in the order of the network",
                x_title="layer",
                y_title="share of training step (%)",
                series=[
                    Series(name=place, x=drawn, y=[each.get(layer, 0.0) for layer in drawn])
                    for place, each in shares.items()
                ],
                note=f"The {DRAWN} heaviest of {len(names)}." if len(drawn) < len(names) else "",
            )
        )
    return charts


def _notes() -> list[str]:
    return [
        f"A layer is the first {DEPTH} parts of a module's path, and more where nearly all modules lie below one; "
        "names in brackets are in no module. A backward op is credited to the layer whose forward made it.",
        f"Published: section V-B of {published.FATHOM}, on {published.MACHINE}. It is not the MatMul column of its "
        "Fig. 3, which prints 7, 0 and 0 for the same three networks.",
        "A fully connected layer's share is its forward and backward ops; its part of the optimizer's work is in the "
        "optimizer's line.",
    ]
