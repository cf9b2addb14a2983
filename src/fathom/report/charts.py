"""Chart -> a Plotly figure as plain data. Colours are names of style.css that the page looks up for its theme.

A dendrogram's series is one joint of four points: x = the distances of the first child, of the joint (twice) and of the
second child, y = the position of the first child (twice) and of the second (twice). Where a child is a leaf, text[0] or
text[3] is its label, else "". In a scatter, the series named ROOF is a line. In a line chart, the series named TARGET
is what the others strive for, and the y axis shows how they come near it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from fathom.analysis.finding import Chart, Series
from fathom.report import words
from fathom.report.axes import Json, axis, both_scales, clean, hover_label, number_format, quoted, scale_of, wrapped
from fathom.report.colours import Colours, Look
from fathom.report.ranges import TARGET, approach, clipped

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star")
PATTERNS = ("", "/", ".", "x", "-")
SEQUENTIAL = [[step / 4, f"var(--heat{step})"] for step in range(5)]
DIVERGING = [[step / 4, f"var(--diverge{step})"] for step in range(5)]
ROOF = "roof"
REST = "rest"  # the band of a heat map that is in no class
FARTHEST = 1.1  # a cosine distance of 1, and room for its label: all trees have one scale
CELL = 17  # pixels of a heat map's column: two digits, and a page of 1300 px shows Fig. 3 whole
FEW_POINTS = 40  # a line of more has no room for markers


def figure(chart: Chart, colours: Colours) -> Json:
    """Data and layout for Plotly, with the height to draw it at and the least width it is readable at."""
    drawn = KINDS[chart.kind](chart, colours)
    layout = {
        "xaxis": axis(chart.x_title),
        "yaxis": axis(chart.y_title),
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "var(--ink)"},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "hoverlabel": {"bgcolor": "var(--page)", "bordercolor": "var(--line)", "font": {"color": "var(--ink)"}},
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"size": 12.5},
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "var(--quiet)", "activecolor": "var(--ink)"},
        "hovermode": "closest",
        "showlegend": sum(bool(trace.get("showlegend", True)) for trace in drawn["data"]) > 1,
    }
    layout = _merged(layout, drawn["layout"])
    room = {"height": _height(chart, layout), "least_width": least_width(chart)}
    return {"data": drawn["data"], "layout": layout, **room}


def described(chart: Chart) -> str:
    """A sentence for those who do not see the picture."""
    kind = {"heatmap": "heat map", "stacked": "stacked bar chart"}.get(chart.kind, chart.kind)
    kind = kind if chart.kind in ("heatmap", "stacked", "dendrogram") else f"{kind} chart"
    axes = ", ".join(text for text in (chart.x_title, chart.y_title) if text)
    names = list(leaves(chart).values()) if chart.kind == "dendrogram" else [series.name for series in chart.series]
    shown = ", ".join(names[:12]) + (" and more" if len(names) > 12 else "")
    return f"{chart.title}: {kind}{f' of {axes}' if axes else ''}{f'; {shown}' if shown else ''}"


def leaves(chart: Chart) -> dict[float, str]:
    """Position -> label of a dendrogram's leaves, from the first position on."""
    ends = [(joint.y[end], joint.text[end]) for joint in chart.series for end in (0, 3) if joint.text]
    return {position: label for position, label in sorted(ends) if label}


def _bars(chart: Chart, colours: Colours) -> Json:
    data = []
    for series, look in zip(chart.series, colours.looks(chart), strict=True):
        categories = [wrapped(x) for x in series.x]
        own = [colours.workload(str(x)) for x in series.x]
        alone = len(chart.series) == 1 and all(own)  # then the bars themselves are the workloads
        marker: Json = {"color": own if alone else look.colour, "line": {"width": 0}}
        if look.variant:
            hatch = {"fillmode": "overlay", "fgcolor": "var(--page)", "size": 6}
            marker["pattern"] = {"shape": PATTERNS[look.variant % len(PATTERNS)], **hatch}
        data.append(_trace(chart, series, type="bar", x=categories, marker=marker))
    groups = len({x for series in chart.series for x in series.x})
    layout = {
        "barmode": "stack" if chart.kind == "stacked" else "group",
        "bargap": max(0.28, 0.62 - 0.045 * groups),  # few bars are slender too
        "bargroupgap": 0.08,
        "xaxis": {"type": "category", "showgrid": False},
        "yaxis": {"rangemode": "tozero"} | scale_of([y for series in chart.series for y in series.y], chart.log_y),
    }
    return {"data": data, "layout": layout}


def _lines(chart: Chart, colours: Colours) -> Json:
    few = max((len(series.x) for series in chart.series), default=0) <= FEW_POINTS
    data = []
    for series, look in zip(chart.series, colours.looks(chart), strict=True):
        if series.name == TARGET:
            line = {"color": "var(--soft)", "width": 1.5, "dash": "dash"}
            data.append(_trace(chart, series, type="scatter", mode="lines", line=line))
            continue
        line = {"color": look.colour, "width": 2, "dash": DASHES[look.variant % len(DASHES)]}
        mode = "lines+markers" if few else "lines"
        marker = {"size": 6, "symbol": _symbol(look)}
        data.append(_trace(chart, series, type="scatter", mode=mode, line=line, marker=marker))
    return {"data": data, "layout": _merged(both_scales(chart) | {"hovermode": "x unified"}, approach(chart))}


def _scatter(chart: Chart, colours: Colours) -> Json:
    data = []
    for series, look in zip(chart.series, colours.looks(chart), strict=True):
        if series.name == ROOF:
            line = {"color": "var(--soft)", "width": 2}
            data.append(_trace(chart, series, type="scatter", mode="lines", line=line))
            continue
        marker = {"color": look.colour, "size": 9, "opacity": 0.85, "symbol": _symbol(look)}
        marker["line"] = {"width": 1, "color": "var(--page)"}
        data.append(_trace(chart, series, type="scatter", mode="markers", marker=marker))
    return {"data": data, "layout": both_scales(chart)}


def _boxes(chart: Chart, colours: Colours) -> Json:
    categories = [{str(x) for x in series.x} for series in chart.series]
    beside = any(one & other for one, other in itertools.combinations(categories, 2))
    data = []
    for series, look in zip(chart.series, colours.looks(chart), strict=True):
        x = [wrapped(value) for value in series.x]
        marker = {"color": look.colour, "size": 4, "symbol": "circle-open"}
        box: Json = {"type": "box", "name": quoted(series.name), "x": x, "y": clean(series.y), "boxpoints": "outliers"}
        box |= {"line": {"color": look.colour, "width": 1.5}, "marker": marker, "showlegend": beside}
        data.append(box)
    values = [y for series in chart.series for y in series.y]
    layout: Json = {"boxmode": "group" if beside else "overlay", "yaxis": scale_of(values, chart.log_y)}
    if not chart.log_y:
        layout = _merged(layout, clipped(chart))
    return {"data": data, "layout": layout | {"xaxis": {"type": "category", "showgrid": False}}}


def _heat_map(chart: Chart, colours: Colours) -> Json:
    chart = _summed(chart)
    columns = [quoted(x) for x in chart.series[0].x] if chart.series else []
    rows = [quoted(series.name) for series in chart.series]
    values = [clean(series.y) for series in chart.series]
    known = [value for row in values for value in row if value is not None]
    largest = max(map(abs, known), default=0)
    signed = min(known, default=0) < 0
    trace = {
        "type": "heatmap",
        "x": columns,
        "y": rows,
        "z": values,
        "text": [[_cell_text(value, largest) for value in row] for row in values],
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "customdata": [_hover_cells(series) for series in chart.series],
        "hovertemplate": "<b>%{y}</b> · %{x}<br>%{customdata}<extra></extra>",
        "colorscale": DIVERGING if signed else SEQUENTIAL,
        "xgap": 1.5,
        "ygap": 1.5,
        "showscale": True,
        "colorbar": {"thickness": 9, "outlinewidth": 0, "len": 0.9, "tickfont": {"size": 11}},
    }
    whole = 100 if _is_percent(chart) else largest or 1  # published and measured shares are compared by colour
    trace |= {"zmid": 0} if signed else {"zmin": 0, "zmax": whole}
    layout = {
        "xaxis": {"type": "category", "showgrid": False, "tickangle": -50, "ticks": "", "showline": False},
        "yaxis": {"type": "category", "showgrid": False, "autorange": "reversed", "ticks": "", "showline": False},
        **_bands(chart),
    }
    return {"data": [trace], "layout": layout}


def _is_percent(chart: Chart) -> bool:
    return "percent" in chart.title.lower()


def _summed(chart: Chart) -> Chart:
    """A heat map of percentages with the rest and the sum of each band in front, where no one has to scroll to them."""
    if not _is_percent(chart) or len(chart.bands) < 2 or sum(many for _, many in chart.bands) != _columns(chart):
        return chart
    ends = list(itertools.accumulate(many for _, many in chart.bands))
    cuts = {label: slice(end - many, end) for (label, many), end in zip(chart.bands, ends, strict=True)}
    rest = cuts.pop(REST, slice(0, 0))
    names = [f"all {label.split()[0]}" if label.split() else label for label in cuts]
    series = [
        Series(
            name=each.name,
            x=[*each.x[rest], *names, *(x for cut in cuts.values() for x in each.x[cut])],
            y=[
                *each.y[rest],
                *(_sum(each.y[cut]) for cut in cuts.values()),
                *(y for cut in cuts.values() for y in each.y[cut]),
            ],
        )
        for each in chart.series
    ]
    bands = [(label, many) for label, many in chart.bands if label != REST]
    front = [(REST, many) for label, many in chart.bands if label == REST]
    return dataclasses.replace(chart, series=series, bands=[*front, ("classes", len(names)), *bands])


def _sum(values: Sequence[Any]) -> float | None:
    known = [value for value in clean(values) if value is not None]
    return sum(known) if known else None


def _columns(chart: Chart) -> int:
    return max((len(series.x) for series in chart.series), default=0)


def _cell_text(value: float | None, largest: float) -> str:
    """As many decimals as the largest cell has at two digits; a cell that is nothing beside it stays empty."""
    decimals = max(0, 1 - math.floor(math.log10(largest))) if largest else 0
    shown = words.fixed(value or 0, decimals)
    return shown if float(f"{value or 0:.{decimals}f}") else ""


def _hover_cells(series: Series) -> list[str]:
    told = [words.column([value])[0] if value is not None else "not measured" for value in clean(series.y)]
    return [f"{value}<br>{quoted(text)}" if text else value for value, text in _with_text(told, series)]


def _bands(chart: Chart) -> Json:
    """A bracket over each group of columns, with its label."""
    shapes, labels, start = [], [], 0
    slanted = any(len(label) * 7 > many * CELL for label, many in chart.bands)
    for label, many in chart.bands:
        left, right = start - 0.42, start + many - 1 + 0.42
        path = f"M {left},1.015 L {left},1.035 L {right},1.035 L {right},1.015"
        line = {"color": "var(--soft)", "width": 1.2}
        shapes.append({"type": "path", "path": path, "xref": "x", "yref": "paper", "line": line})
        place = {"x": (left + right) / 2, "y": 1.04, "xref": "x", "yref": "paper", "showarrow": False}
        look = {"xanchor": "left", "textangle": -32, "xshift": -6} if slanted else {"xanchor": "center"}
        font = {"size": 12, "color": "var(--soft)"}
        labels.append(place | look | {"text": quoted(label), "yanchor": "bottom", "font": font})
        start += many
    if not labels:
        return {}
    longest = max(len(label) for label, _ in chart.bands)
    room = 34 + (0.53 * 6.6 * longest if slanted else 0)
    return {"shapes": shapes, "annotations": labels, "margin": {"t": room, "r": 24}}


def _dendrogram(chart: Chart, colours: Colours) -> Json:
    names, tree = leaves(chart), chart.series
    distances = [float(joint.x[1]) for joint in tree]
    x = [value for joint in tree for value in (*joint.x, None)]
    y = [value for joint in tree for value in (*joint.y, None)]
    branches: Json = {"type": "scatter", "mode": "lines", "x": x, "y": y, "hoverinfo": "skip"}
    branches["line"] = {"color": "var(--soft)", "width": 1.6}
    heights = {
        "type": "scatter",
        "mode": "markers+text",
        "x": distances,
        "y": [(joint.y[1] + joint.y[2]) / 2 for joint in tree],
        "text": [words.fixed(distance, 3) for distance in distances],
        "textposition": "top right",
        "textfont": {"size": 11, "color": "var(--soft)"},
        "customdata": [quoted(joint.name) for joint in tree],
        "hovertemplate": "%{customdata}<br>joined at %{text}<extra></extra>",
        "marker": {"size": 5, "color": "var(--soft)"},
        "cliponaxis": False,
    }
    tips: Json = {"type": "scatter", "mode": "markers", "x": [0] * len(names), "y": list(names), "hoverinfo": "skip"}
    shades = [colours.workload(name) or "var(--soft)" for name in names.values()]
    tips |= {"marker": {"size": 9, "color": shades}, "cliponaxis": False}
    ticks = {"tickmode": "array", "tickvals": list(names), "ticktext": [quoted(name) for name in names.values()]}
    layout = {
        "xaxis": {"range": [0, max(FARTHEST, 1.1 * max(distances, default=0))]},
        "yaxis": ticks | {"showgrid": False, "ticks": "", "showline": False, "ticklabelstandoff": 6},
    }
    return {"data": [trace | {"showlegend": False} for trace in (branches, heights, tips)], "layout": layout}


KINDS: dict[str, Callable[[Chart, Colours], Json]] = {
    "bar": _bars,
    "stacked": _bars,
    "line": _lines,
    "scatter": _scatter,
    "heatmap": _heat_map,
    "dendrogram": _dendrogram,
    "box": _boxes,
}


def _trace(chart: Chart, series: Series, **own: Any) -> Json:
    """A named trace with what is told on hover: both values, and the series' own text."""
    unified = chart.kind == "line"  # all lines are told in one box, under their common x
    numbers = chart.kind == "scatter" and all(map(words.is_number, series.x))
    x = f"%{{x:{number_format(series.x)}}}" if numbers else "%{x}"
    y = f"%{{y:{number_format(series.y)}}}"
    axes = f"{hover_label(chart.x_title)}{x}<br>{hover_label(chart.y_title)}{y}"
    told = y if unified else f"<b>%{{fullData.name}}</b><br>{axes}"
    trace = {"name": quoted(series.name), "x": clean(series.x), "y": clean(series.y), **own}
    if series.text:
        trace["customdata"] = [quoted(text) for text in series.text]
        told += " · %{customdata}" if unified else "<br>%{customdata}"
    return trace | {"hovertemplate": told + ("" if unified else "<extra></extra>")}


def least_width(chart: Chart) -> int:
    """Pixels below which labels and marks would run into each other; the chart then scrolls in its box."""
    if chart.kind == "heatmap":
        label = max((len(series.name) for series in chart.series), default=0)
        return 90 + 7 * label + CELL * _columns(_summed(chart))
    if chart.kind in ("bar", "stacked", "box"):
        categories = len({str(x) for series in chart.series for x in series.x})
        beside = 1 if chart.kind == "stacked" else len(chart.series)
        return max(300, 80 + categories * max(34, 9 * beside))
    return 300


def _height(chart: Chart, layout: Json) -> float:
    if chart.kind == "heatmap":
        return float(110 + layout["margin"]["t"] + 32 * len(chart.series))
    if chart.kind == "dendrogram":
        return 80 + 34 * max(2, len(leaves(chart)))
    return 460 if chart.kind == "scatter" else 380


def _symbol(look: Look) -> str:
    """A form beside the colour, for those who cannot tell the colours apart."""
    digits = [int(character) for character in look.colour if character.isdigit()]
    return SYMBOLS[(look.variant + sum(digits)) % len(SYMBOLS)]


def _with_text(told: list[str], series: Series) -> list[tuple[str, str]]:
    return list(itertools.zip_longest(told, series.text[: len(told)], fillvalue=""))


def _merged(base: Json, own: Json) -> Json:
    merged = dict(base)
    for key, value in own.items():
        merged[key] = _merged(merged[key], value) if isinstance(merged.get(key), dict) else value
    return merged
