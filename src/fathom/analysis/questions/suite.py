"""How do the networks measured here compare with those of 2016? Table II of the paper, beside records.

Layers and parameters are counted in three places: as Table II prints them, as the public code of 2016 builds them, and
in the records. Ours are the networks of the papers that Table II cites.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.selection import RunGroup, completeness, select, workload_order
from fathom.analysis.step_time import settled_steps
from fathom.core.formatting import listed, number
from fathom.core.record import Record
from fathom.core.spec import PHASES

TITLE = "How do the networks compare with those of the 2016 suite?"
ORDER = 150
PRODUCTS = ("B", "D")  # groups of op types: matrix operations and convolutions
CLOSE = 0.01  # relative difference of two numbers of parameters that counts as none


def analyse(records: Sequence[Record]) -> Finding:
    timed = select(records, profiled=False)
    if not timed.groups:
        return not_measured("suite", TITLE, "fathom study", timed.notes)
    profiled = select(records, profiled=True)
    parameters = _parameters(timed.groups)
    modules = _modules(profiled.groups)
    names = sorted({group.workload for group in timed.groups}, key=workload_order)
    return Finding(
        question="suite",
        title=TITLE,
        summary=_summary(names, parameters),
        tables=[_table(names, parameters, modules), _times_table(timed.groups)],
        charts=[_chart(names, parameters)],
        notes=[*_notes(), *timed.notes],
    )


def products(group: RunGroup) -> int:
    """How many modules have a matrix product or a convolution in the forward pass."""
    rows = [row for profile in group.profiles for row in profile.rows if row.phase == "forward" and row.layer]
    return len({row.layer for row in rows if row.group in PRODUCTS})


def _parameters(groups: Sequence[RunGroup]) -> dict[str, int]:
    """Of the most complete configuration: presets may shrink a network."""
    return {group.workload: max(found) for group in _least_complete_first(groups) if (found := _counts(group))}


def _least_complete_first(groups: Sequence[RunGroup]) -> list[RunGroup]:
    return sorted(groups, key=lambda group: max(map(completeness, group.runs)))


def _counts(group: RunGroup) -> list[int]:
    return [run.parameters for run in group.runs if run.parameters]


def _modules(groups: Sequence[RunGroup]) -> dict[str, int]:
    """Counted in inference where it was profiled: in training a second network may run beside the first."""
    groups = _least_complete_first(groups)
    inferred = {group.workload: products(group) for group in groups if group.phase == "infer"}
    return {group.workload: products(group) for group in groups} | inferred


def _summary(names: Sequence[str], parameters: Mapping[str, int]) -> str:
    table, code = {each.name: each for each in published.workloads()}, published.code_of_2016()
    known = [name for name in names if name in table]
    unlike = [name for name in known if table[name].layers != code[name].layers]
    counted = [name for name in known if name in parameters]
    ratios = {name: parameters[name] / code[name].parameters for name in counted}
    close = [name for name, ratio in ratios.items() if abs(ratio - 1) <= CLOSE]
    were = "was" if len(known) == 1 else "were"
    sentences = [f"{len(known)} of the {len(table)} workloads of Table II {were} measured."]
    if unlike:
        layers = [f"{name} ({table[name].layers} and {code[name].layers})" for name in unlike]
        sentences.append(f"Table II and the code of 2016 differ in their number of layers for {listed(layers)}.")
    if counted:
        far = max(ratios, key=lambda name: max(ratios[name], 1 / ratios[name]))
        furthest = (
            f", and furthest for {far}: {parameters[far]:,} against {code[far].parameters:,}, "
            f"{number(ratios[far])} times"
            if far not in close
            else ""
        )
        sentences.append(
            f"Our number of parameters is within {100 * CLOSE:.0f} % of that of the code for {len(close)} of "
            f"{len(counted)}{furthest}."
        )
    return " ".join(sentences)


def _table(names: Sequence[str], parameters: Mapping[str, int], modules: Mapping[str, int]) -> Table:
    table, code = {each.name: each for each in published.workloads()}, published.code_of_2016()
    rows: list[list[Cell]] = []
    for name in names:
        printed, built = table.get(name), code.get(name)
        facts: list[Cell] = [None] * 5
        if printed:
            facts = [printed.year, printed.style, printed.task, printed.dataset, printed.layers]
        theirs: list[Cell] = [built.layers, built.parameters] if built else [None, None]
        ours: list[Cell] = [modules.get(name), parameters.get(name)]
        rows.append([name, *facts, *theirs, *ours, built.note if built else "not in the 2016 suite"])
    columns = ["workload", "year", "style", "task", "data set", "layers, Table II", "layers, code of 2016"]
    columns += ["parameters, code of 2016", "modules with products, ours", "parameters, ours", "the code of 2016"]
    return Table(
        title="Table II, the code of 2016 and the networks measured here", columns=columns, rows=rows, leading=True
    )


def _times_table(groups: Sequence[RunGroup]) -> Table:
    """The step times of the same groups; the paper prints none."""
    cells: dict[tuple[str, str, str, int | None], dict[str, float]] = {}
    for group in groups:
        run = group.runs[0]
        key = (group.workload, group.machine, run.spec.preset, run.items_per_step)
        launches = [statistics.median(settled_steps(each)) for each in group.timed]
        cells.setdefault(key, {})[group.phase] = 1000 * statistics.median(launches)
    rows: list[list[Cell]] = [[*key, *map(times.get, PHASES)] for key, times in cells.items()]
    columns = ["workload", "machine", "preset", "items per step", "training step (ms)", "inference step (ms)"]
    return Table(title="Measured step times of these networks", columns=columns, rows=rows)


def _chart(names: Sequence[str], parameters: Mapping[str, int]) -> Chart:
    code = published.code_of_2016()
    theirs = [code[name].parameters if name in code else None for name in names]
    series = [
        Series(name="code of 2016, counted", role="published", x=list(names), y=theirs),
        Series(name="measured here", x=list(names), y=[parameters.get(name) for name in names]),
    ]
    return Chart(
        kind="bar",
        title="Parameters of each network",
        x_title="workload",
        y_title="parameters",
        series=[each for each in series if any(value is not None for value in each.y)] or series[:1],
        log_y=True,
    )


def _notes() -> list[str]:
    return [
        f"Published: {published.SOURCES['fathom_table2_workloads']}: style, layers, task and data set. It prints "
        "neither parameters nor step times.",
        f"{published.SOURCES['fathom_2016_code']}. Where that code departs from the paper it cites, ours follows the "
        "paper, in its sizes unless the workload says otherwise; so parameters and times differ for that reason.",
        "Modules with products are those with a matrix product or a convolution in a profiled forward pass. A "
        "recurrent op of several layers is one module, and an attention or a projection on a shortcut counts too, so "
        "this is no number of layers as papers count them.",
        "Parameters and step times are of the most complete preset that was measured on a machine.",
    ]
