"""The part of a y axis to show where a few values are far from all others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from fathom.analysis.finding import Chart
from fathom.core import formatting
from fathom.report.axes import Json

FEW = 6  # points of a line up to which all of them are shown
FAR = 4  # range of all values over that of the whiskers, from which boxes would be drawn as lines


def approach(chart: Chart) -> Json:
    """The y axis cut to the target and to each long line without its first third, which is far off in training."""
    lines = [_finite(series.y) for series in chart.series if series.role != "target"]
    targets = [y for series in chart.series if series.role == "target" for y in _finite(series.y)]
    cuts = [len(line) // 3 if len(line) > FEW else 0 for line in lines]
    early = [y for line, cut in zip(lines, cuts, strict=True) for y in line[:cut]]
    late = [y for line, cut in zip(lines, cuts, strict=True) for y in line[cut:]]
    if not targets or not early or chart.log_y:
        return {}
    rising = statistics.median(early) < statistics.median(late)
    corner = (0.99, 0 if rising else 1)  # away from where the lines come from, and from where they go
    return _cut(min(late + targets), max(late + targets), early + late, corner, "early value")


def clipped(chart: Chart) -> Json:
    """The y axis cut to boxes and whiskers, where outliers are so far off that boxes would be drawn as lines."""
    groups: dict[tuple[str, str], list[float]] = {}
    for series in chart.series:
        for x, y in zip(series.x, series.y, strict=False):
            groups.setdefault((series.name, str(x)), []).extend(_finite([y]))
    ends = [_whiskers(values) for values in groups.values() if values]
    known = [value for values in groups.values() for value in values]
    if not known:
        return {}
    low, high = min(end for end, _ in ends), max(end for _, end in ends)
    if high <= low or max(known) - min(known) <= FAR * (high - low):
        return {}
    return _cut(low, high, known, (0.01, 1), "outlier")


def _cut(low: float, high: float, known: Sequence[float], corner: tuple[float, float], what: str) -> Json:
    """The y axis from low to high with a margin, and a note in a corner on the values that are not shown, if any."""
    room = 0.1 * (high - low)
    low, high = low - room, high + room
    beyond = [value for value in known if not low <= value <= high]
    if not beyond or high <= low:
        return {}
    span = f"{min(beyond):.3g} to {max(beyond):.3g}" if len(beyond) > 1 else f"{beyond[0]:.3g}"
    text = f"{len(beyond)} {what}{'' if len(beyond) == 1 else 's'} not shown ({span})"
    x, y = corner
    position = {"x": x, "y": y, "xanchor": "left" if x < 0.5 else "right", "yanchor": "bottom" if y < 0.5 else "top"}
    look = {"showarrow": False, "bgcolor": "var(--page)", "font": {"size": 12, "color": "var(--soft)"}}
    return {
        "yaxis": {"range": [low, high]},
        "annotations": [{"text": text, "xref": "paper", "yref": "paper"} | position | look],
    }


def _whiskers(values: Sequence[float]) -> tuple[float, float]:
    """The ends of what a box plot draws as typical: within one and a half box lengths of the box."""
    if len(values) < 2:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, method="inclusive")
    reach = 1.5 * (third - first)
    inside = [value for value in values if first - reach <= value <= third + reach]
    return min(inside), max(inside)


def _finite(values: Sequence[Any]) -> list[float]:
    return [float(value) for value in values if formatting.is_number(value) and math.isfinite(value)]
