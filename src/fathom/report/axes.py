"""Axes, texts and values in the form that Plotly takes them."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from fathom.analysis.finding import Chart
from fathom.core import formatting

Json = dict[str, Any]
LETTER = 0.022  # of a slim chart's width


def axis(title: str) -> Json:
    return {
        "title": {"text": quoted(title), "standoff": 10, "font": {"size": 12.5, "color": "var(--soft)"}},
        "automargin": True,
        "gridcolor": "var(--grid)",
        "linecolor": "var(--line)",
        "showline": True,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": "var(--line)",
        "tickfont": {"size": 12, "color": "var(--soft)"},
        "zeroline": False,
    }


def both_scales(chart: Chart) -> Json:
    x = [value for series in chart.series for value in series.x]
    y = [value for series in chart.series for value in series.y]
    return {"xaxis": scale_of(x, chart.log_x), "yaxis": scale_of(y, chart.log_y)}


def marked(chart: Chart) -> Json:
    """The named stretches of the x axis: every second one shaded, each with its label at the top."""
    if not chart.spans:
        return {}
    shapes, labels = [], []
    whole = chart.spans[-1].end - chart.spans[0].begin
    beside = [False]  # whether a label would run into the one before it, in a chart that shares its row
    for one, other in pairwise(chart.spans):
        distance = (other.begin + other.end - one.begin - one.end) / 2
        room = LETTER * (len(one.label) + len(other.label) + 1) / 2 * whole
        beside.append(distance < room and not beside[-1])
    for number, span in enumerate(chart.spans):
        reach = {"x0": span.begin, "x1": span.end, "y0": 0, "y1": 1, "xref": "x", "yref": "paper", "layer": "below"}
        fill = {"fillcolor": "var(--grid)", "opacity": 0.6 if number % 2 else 0.25, "line": {"width": 0}}
        shapes.append({"type": "rect"} | reach | fill)
        place = {"x": (span.begin + span.end) / 2, "y": 1, "xref": "x", "yref": "paper", "showarrow": False}
        look = {"xanchor": "center", "yanchor": "top", "font": {"size": 12, "color": "var(--soft)"}}
        lower = {"yshift": -15} if beside[number] else {}
        labels.append(place | look | lower | {"text": quoted(span.label)})
    return {"shapes": shapes, "annotations": labels}


def scale_of(values: Sequence[Any], log: bool) -> Json:
    """Type and ticks of an axis, set explicitly: Plotly would guess a date from "2014" and a number from "8"."""
    if any(isinstance(value, str) for value in values):
        return {"type": "category"}
    known = {value for value in values if formatting.is_number(value) and math.isfinite(value)}
    positive = {value for value in known if value > 0}
    exponents = _exponents(known)
    if not log or not positive:
        return {"type": "linear", "exponentformat": exponents}
    scale: Json = {"type": "log"}
    if len(positive) <= 12 and all(value == int(value) and value < 1e4 for value in positive):
        return scale | {"tickmode": "array", "tickvals": sorted(positive)}  # threads, cores, ranks: as they are
    decades = math.log10(max(positive)) - math.log10(min(positive))
    step = math.ceil(decades / 8) if decades > 2 else "D2"  # some eight ticks, or 1, 2 and 5 of each decade
    return scale | {"dtick": step, "tickformat": {"SI": "~s", "none": "~g"}.get(exponents, "~e")}


def _exponents(values: Collection[float]) -> str:
    """10G is read at a glance and 10m is not: prefixes are for what is large, powers of ten for what is tiny."""
    sizes = [abs(value) for value in values if value]
    return "SI" if max(sizes, default=1) >= 1e5 else "power" if min(sizes, default=1) < 1e-4 else "none"


def number_format(values: Sequence[Any]) -> str:
    """How Plotly writes the numbers of a series on hover, in d3's letters: four digits, with k, M, G where large."""
    largest = max((abs(value) for value in clean(values) if formatting.is_number(value)), default=0)
    return ".4~s" if largest >= 1e6 else ",.4~r" if largest >= 1e-3 else ".3~e"


def hover_label(title: str) -> str:
    """The beginning of a hover line; Plotly fills in what looks like %{...}, and a title must not."""
    return f"{quoted(title)}: ".replace("%{", "%&#123;") if title else ""


def wrapped(value: object) -> str:
    """A category of many words over several lines."""
    return "<br>".join(quoted(line) for line in textwrap.wrap(str(value), 22))


def quoted(text: object) -> str:
    """Plotly reads a little HTML in every text; what comes from outside is shown letter by letter."""
    return html.escape(str(text), quote=False)


def clean(values: Sequence[Any]) -> list[Any]:
    """Numbers as JSON has them (no NaN, no infinity), all else as quoted text."""

    def cleaned(value: Any) -> Any:
        if formatting.is_number(value):
            return value if math.isfinite(value) else None
        return None if value is None else quoted(value)

    return [cleaned(value) for value in values]
