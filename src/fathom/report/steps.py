"""Charts of one step: an icicle of what its time is spent on, and a timeline of threads and streams."""

from __future__ import annotations

import math
from typing import Any

from fathom.analysis.finding import Chart, Series
from fathom.core.formatting import is_number
from fathom.report.axes import Json, clean, quoted
from fathom.report.colours import OTHERS, Colours

LEVEL = 38  # pixels of an icicle's level: a label of two lines
DEEPEST = 18  # levels that are drawn at once; zooming in shows more
LANE = 44
MOST = 0.6
LABELLED = 0.015  # of the width: narrower rectangles have no room for a name
SMALLEST = {"minsize": 10, "mode": "hide"}  # letters: smaller ones are not drawn
PATTERNS = ("", "/", ".", "x", "-", "\\", "|", "+")
Path = tuple[str, ...]


def icicle(chart: Chart, colours: Colours) -> Json:
    """Plotly refuses a part that is larger than its whole, even by rounding: wholes are made to fit."""
    series = chart.series[0] if chart.series else Series(name="", x=[], y=[])
    paths: list[Path] = [tuple(path) for path in series.x]
    values = {path: _size(value) for path, value in zip(paths, series.y, strict=True)}
    parts: dict[Path, float] = {}
    for path in reversed(paths):  # children before parents
        values[path] = max(values[path], parts.get(path, 0.0))
        parts[path[:-1]] = parts.get(path[:-1], 0.0) + values[path]
    ids = {path: str(index) for index, path in enumerate(paths)}
    trace: Json = {
        "type": "icicle",
        "ids": list(ids.values()),
        "parents": [ids.get(path[:-1], "") for path in paths],
        "labels": [quoted(path[-1]) for path in paths],
        "values": [values[path] for path in paths],
        "customdata": [quoted(text) for text in series.text],
        "branchvalues": "total",
        "sort": False,
        "textinfo": "label+percent root",
        "hovertemplate": "<b>%{label}</b><br>%{customdata}<extra></extra>",
        "tiling": {"orientation": "v", "pad": 1},
        "maxdepth": DEEPEST,
        "pathbar": {"thickness": 24, "textfont": {"size": 12, "color": "var(--ink)"}},
        "marker": {"colors": _branch_colours(paths, values), "line": {"color": "var(--page)", "width": 1}},
        "textfont": {"size": 12},
    }
    hidden = {"visible": False}
    layout = {"xaxis": hidden, "yaxis": hidden, "margin": {"t": 4, "b": 4}, "uniformtext": SMALLEST}
    return {"data": [trace], "layout": layout}


def _size(value: Any) -> float:
    return value if is_number(value) and 0 < value < math.inf else 0.0


def _branch_colours(paths: list[Path], values: dict[Path, float]) -> list[str]:
    """One for each branch, from the first level on at which no branch has most of the whole."""
    at = 1
    while any(len(path) == at + 1 and values[path] > MOST * values[paths[0]] for path in paths):
        at += 1
    branches = list(dict.fromkeys(path[: at + 1] for path in paths if len(path) > at))
    shades = {branch: OTHERS[index % len(OTHERS)] for index, branch in enumerate(branches)}
    return [shades.get(path[: at + 1], "var(--rest)") for path in paths]


def timeline(chart: Chart, colours: Colours) -> Json:
    ends = [end for series in chart.series for _, end in series.x]
    least = LABELLED * max(ends, default=0.0)
    data = []
    for at, (series, look) in enumerate(zip(chart.series, colours.looks(chart), strict=True)):
        lengths = [end - begin for begin, end in series.x]
        named = [quoted(text) for text in series.text]
        marker: Json = {"color": look.colour, "line": {"width": 0}}
        marker["pattern"] = {"shape": PATTERNS[at % len(PATTERNS)], "fillmode": "overlay", "size": 7, "solidity": 0.12}
        marker["pattern"]["fgcolor"] = "var(--page)"
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": quoted(series.name),
                "base": clean([begin for begin, _ in series.x]),
                "x": clean(lengths),
                "y": clean(series.y),
                "text": [name if length >= least else "" for name, length in zip(named, lengths, strict=True)],
                "textposition": "inside",
                "insidetextanchor": "start",
                "textangle": 0,
                "constraintext": "inside",
                "customdata": [[name, length] for name, length in zip(named, lengths, strict=True)],
                "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]:.4~g} ms from %{base:.4~g} ms<br>"
                "%{y}<extra></extra>",
                "marker": marker,
            }
        )
    rows: dict[str, Any] = {"type": "category", "categoryorder": "array", "categoryarray": clean(chart.lanes)}
    layout = {
        "barmode": "overlay",
        "bargap": 0.25,
        "uniformtext": SMALLEST,
        "xaxis": {"type": "linear", "range": [0, max(ends, default=1.0)]},
        "yaxis": rows | {"autorange": "reversed", "showgrid": False, "ticks": ""},
    }
    return {"data": data, "layout": layout}


def height(chart: Chart) -> float:
    if chart.kind == "icicle":
        levels = max((len(path) for series in chart.series for path in series.x), default=1)
        return float(34 + LEVEL * min(DEEPEST, levels))
    return float(80 + LANE * max(1, len(chart.lanes)))
