"""Chart -> a Plotly figure as plain data. Colours are names of style.css that the page looks up for its theme."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from fathom.analysis.finding import Band, Chart, Series
from fathom.core import formatting
from fathom.core.thinning import extremes
from fathom.report import steps
from fathom.report.axes import (
    Json,
    axis,
    both_scales,
    clean,
    hover_label,
    marked,
    number_format,
    quoted,
    scale_of,
    wrapped,
)
from fathom.report.colours import Colours, Look
from fathom.report.ranges import approach, clipped

DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "star")
PATTERNS = ("", "/", ".", "x", "-")
SEQUENTIAL = [[step / 4, f"var(--heat{step})"] for step in range(5)]
DIVERGING = [[step / 4, f"var(--diverge{step})"] for step in range(5)]
FARTHEST = 1.1  # a cosine distance of 1, and room for its label: all trees have one scale
CELL = 16  # pixels of a heat map's column: two digits, and a page of 1300 px shows Fig. 3 whole
MOST_POINTS = 1500  # of a line: a page shows fewer columns of pixels
MANY_BARS = 14  # whose labels, if long, do not fit side by side at a slant
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
    """A sentence for those who do not see the chart."""
    kind = {"heatmap": "heat map", "stacked": "stacked bar chart"}.get(chart.kind, chart.kind)
    kind = kind if chart.kind in ("heatmap", "stacked", "dendrogram", "icicle", "timeline") else f"{kind} chart"
    axes = ", ".join(text for text in (chart.x_title, chart.y_title) if text)
    names = list(leaves(chart).values()) if chart.kind == "dendrogram" else [series.name for series in chart.series]
    shown = ", ".join(names[:12]) + (" and more" if len(names) > 12 else "")
    return f"{chart.title}: {kind}{f' of {axes}' if axes else ''}{f'; {shown}' if shown else ''}"


def leaves(chart: Chart) -> dict[float, str]:
    """Position -> label of a dendrogram's leaves, from the first position on."""
    ends = [(merge.y[end], merge.text[end]) for merge in chart.series for end in (0, 3) if merge.text]
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


def _lines(whole: Chart, colours: Colours) -> Json:
    chart = dataclasses.replace(whole, series=[_drawable(series) for series in whole.series])
    few = max((len(series.x) for series in chart.series), default=0) <= FEW_POINTS
    data: list[Json] = []
    targets = itertools.cycle(DASHES[1:])
    for series, look in zip(chart.series, colours.looks(chart), strict=True):
        if series.role == "target":
            line = {"color": "var(--soft)", "width": 1.5, "dash": next(targets)}
            data.append(_trace(chart, series, type="scatter", mode="lines", line=line))
            continue
        line = {"color": look.colour, "width": 2, "dash": DASHES[look.variant % len(DASHES)]}
        mode = "markers" if len(series.x) == 1 else "lines+markers" if few else "lines"
        marker = {"size": 6 if few else 10, "symbol": _symbol(look), "color": look.colour}
        data.append(_trace(chart, series, type="scatter", mode=mode, line=line, marker=marker))
    layout = _merged(both_scales(chart) | {"hovermode": "x unified"}, approach(chart))
    if chart.limits and not chart.log_y and _within(chart):
        layout = _merged(layout, {"yaxis": {"range": [*chart.limits]}})
    return {"data": data, "layout": layout | marked(chart)}


def _within(chart: Chart) -> bool:
    """Whether its limits hold for every value: one far outside would be drawn at a place that no browser knows."""
    low, high = chart.limits or (-math.inf, math.inf)
    known = [y for series in chart.series for y in series.y if formatting.is_number(y) and math.isfinite(y)]
    return all(low <= y <= high for y in known)


def _drawable(series: Series) -> Series:
    """A line of more points than the page has pixels looks the same by the least and the greatest of each stretch."""
    if len(series.y) <= MOST_POINTS or not all(y is None or formatting.is_number(y) for y in series.y):
        return series
    kept = extremes([y if y is not None and math.isfinite(y) else None for y in series.y], MOST_POINTS)
    texts = [series.text[at] for at in kept] if series.text else []
    return dataclasses.replace(series, x=[series.x[at] for at in kept], y=[series.y[at] for at in kept], text=texts)


def _scatter(chart: Chart, colours: Colours) -> Json:
    data = []
    for series, look in zip(chart.series, colours.looks(chart), strict=True):
        if series.role == "limit":
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
    unit = f" {quoted(chart.unit)}" if chart.unit else ""
    trace = {
        "type": "heatmap",
        "x": columns,
        "y": rows,
        "z": values,
        "text": [[_cell_text(value, largest) for value in row] for row in values],
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "customdata": [_hover_cells(series, unit) for series in chart.series],
        "hovertemplate": "<b>%{y}</b> · %{x}<br>%{customdata}<extra></extra>",
        "colorscale": DIVERGING if signed else SEQUENTIAL,
        "xgap": 1.5,
        "ygap": 1.5,
        "showscale": False,  # every cell has its number
    }
    low, high = chart.limits or (0, largest or 1)
    trace |= {"zmid": 0} if signed and not chart.limits else {"zmin": low, "zmax": high}
    layout = {
        "xaxis": {"type": "category", "showgrid": False, "tickangle": -50, "ticks": "", "showline": False},
        "yaxis": {"type": "category", "showgrid": False, "autorange": "reversed", "ticks": "", "showline": False},
        **_bands(chart),
    }
    return {"data": [trace], "layout": layout}


def _summed(chart: Chart) -> Chart:
    """A heat map with the bands that have no total, and the totals of the others, before everything else."""
    named = [band for band in chart.bands if band.total]
    if not named or sum(band.columns for band in chart.bands) != _columns(chart):
        return chart
    ends = list(itertools.accumulate(band.columns for band in chart.bands))
    cuts = [(band, slice(end - band.columns, end)) for band, end in zip(chart.bands, ends, strict=True)]
    first = [cut for band, cut in cuts if not band.total]
    summed = [cut for band, cut in cuts if band.total]
    series = [
        dataclasses.replace(
            each,
            x=[*_picked(each.x, first), *(band.total for band in named), *_picked(each.x, summed)],
            y=[*_picked(each.y, first), *(_sum(each.y[cut]) for cut in summed), *_picked(each.y, summed)],
        )
        for each in chart.series
    ]
    totals = Band(label="totals", columns=len(named))
    return dataclasses.replace(
        chart, series=series, bands=[*(band for band in chart.bands if not band.total), totals, *named]
    )


def _picked(values: Sequence[Any], cuts: Sequence[slice]) -> list[Any]:
    return [value for cut in cuts for value in values[cut]]


def _sum(values: Sequence[Any]) -> float | None:
    known = [value for value in clean(values) if value is not None]
    return sum(known) if known else None


def _columns(chart: Chart) -> int:
    return max((len(series.x) for series in chart.series), default=0)


def _cell_text(value: float | None, largest: float) -> str:
    """As many decimals as the largest cell has at two digits; a cell that is nothing beside it stays empty."""
    decimals = max(0, 1 - math.floor(math.log10(largest))) if largest else 0
    shown = formatting.fixed(value or 0, decimals)
    return shown if float(f"{value or 0:.{decimals}f}") else ""


def _hover_cells(series: Series, unit: str) -> list[str]:
    values = clean(series.y)
    shown = ["not measured" if value is None else f"{formatting.column([value])[0]}{unit}" for value in values]
    return [f"{value}<br>{quoted(text)}" if text else value for value, text in _with_text(shown, series)]


def _bands(chart: Chart) -> Json:
    """A bracket over each band of columns, with its label."""
    shapes, labels, start = [], [], 0
    slanted = any(len(band.label) * 7 > band.columns * CELL for band in chart.bands)
    for band in chart.bands:
        left, right = start - 0.42, start + band.columns - 1 + 0.42
        path = f"M {left},1.015 L {left},1.035 L {right},1.035 L {right},1.015"
        line = {"color": "var(--soft)", "width": 1.2}
        shapes.append({"type": "path", "path": path, "xref": "x", "yref": "paper", "line": line})
        position = {"x": (left + right) / 2, "y": 1.04, "xref": "x", "yref": "paper", "showarrow": False}
        look = {"xanchor": "left", "textangle": -32, "xshift": -6} if slanted else {"xanchor": "center"}
        font = {"size": 12, "color": "var(--soft)"}
        labels.append(position | look | {"text": quoted(band.label), "yanchor": "bottom", "font": font})
        start += band.columns
    if not labels:
        return {}
    longest = max(len(band.label) for band in chart.bands)
    room = 34 + (0.53 * 6.6 * longest if slanted else 0)
    return {"shapes": shapes, "annotations": labels, "margin": {"t": room, "r": 24}}


def _dendrogram(chart: Chart, colours: Colours) -> Json:
    names, merges = leaves(chart), chart.series
    distances = [float(merge.x[1]) for merge in merges]
    x = [value for merge in merges for value in (*merge.x, None)]
    y = [value for merge in merges for value in (*merge.y, None)]
    branches: Json = {"type": "scatter", "mode": "lines", "x": x, "y": y, "hoverinfo": "skip"}
    branches["line"] = {"color": "var(--soft)", "width": 1.6}
    heights = {
        "type": "scatter",
        "mode": "markers+text",
        "x": distances,
        "y": [(merge.y[1] + merge.y[2]) / 2 for merge in merges],
        "text": [formatting.fixed(distance, 3) for distance in distances],
        "textposition": "top right",
        "textfont": {"size": 11, "color": "var(--soft)"},
        "customdata": [quoted(merge.name) for merge in merges],
        "hovertemplate": "%{customdata}<br>merged at %{text}<extra></extra>",
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
    "icicle": steps.icicle,
    "timeline": steps.timeline,
}


def _trace(chart: Chart, series: Series, **own: Any) -> Json:
    """A named trace with its hover text: both values, and the series' own text."""
    unified = chart.kind == "line"  # all lines in one box, under their common x
    numbers = chart.kind == "scatter" and all(map(formatting.is_number, series.x))
    x = f"%{{x:{number_format(series.x)}}}" if numbers else "%{x}"
    y = f"%{{y:{number_format(series.y)}}}"
    axes = f"{hover_label(chart.x_title)}{x}<br>{hover_label(chart.y_title)}{y}"
    hover = y if unified else f"<b>%{{fullData.name}}</b><br>{axes}"
    trace = {"name": quoted(series.name), "x": clean(series.x), "y": clean(series.y), **own}
    if series.text:
        trace["customdata"] = [quoted(text) for text in series.text]
        hover += " · %{customdata}" if unified else "<br>%{customdata}"
    return trace | {"hovertemplate": hover + ("" if unified else "<extra></extra>")}


def least_width(chart: Chart) -> int:
    """Pixels below which labels and marks would run into each other; the chart then scrolls in its box."""
    if chart.kind in ("icicle", "timeline"):
        return 600
    if chart.kind == "heatmap":
        label = max((len(series.name) for series in chart.series), default=0)
        return 50 + 7 * label + CELL * _columns(_summed(chart))
    if chart.kind in ("bar", "stacked", "box"):
        categories = len({str(x) for series in chart.series for x in series.x})
        beside = 1 if chart.kind == "stacked" else len(chart.series)
        broken = categories <= MANY_BARS and any("<br>" in wrapped(x) for series in chart.series for x in series.x)
        return max(300, 80 + categories * max(60 if broken else 34, 9 * beside))  # lines of slanted labels overlap
    return 300


def _height(chart: Chart, layout: Json) -> float:
    if chart.kind in ("icicle", "timeline"):
        return steps.height(chart)
    if chart.kind == "heatmap":
        return float(110 + layout["margin"]["t"] + 32 * len(chart.series))
    if chart.kind == "dendrogram":
        return 80 + 34 * max(2, len(leaves(chart)))
    return 460 if chart.kind == "scatter" else 380 + _upright(chart)


def _upright(chart: Chart) -> int:
    """Pixels for long labels of many bars, which stand upright and would leave the bars no room."""
    labels = {str(x) for series in chart.series for x in series.x} if chart.kind in ("bar", "stacked", "box") else set()
    longest = max((len(line) for label in labels for line in wrapped(label).split("<br>")), default=0)
    return 10 * max(0, longest - 8) if len(labels) > MANY_BARS else 0


def _symbol(look: Look) -> str:
    """A form beside the colour, for those who cannot tell the colours apart."""
    digits = [int(character) for character in look.colour if character.isdigit()]
    return SYMBOLS[(look.variant + sum(digits)) % len(SYMBOLS)]


def _with_text(hover: list[str], series: Series) -> list[tuple[str, str]]:
    return list(itertools.zip_longest(hover, series.text[: len(hover)], fillvalue=""))


def _merged(base: Json, own: Json) -> Json:
    merged = dict(base)
    for key, value in own.items():
        merged[key] = _merged(merged[key], value) if isinstance(merged.get(key), dict) else value
    return merged
