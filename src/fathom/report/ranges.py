"""The part of a y axis that is worth showing, where a few values lie far from all the others."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from fathom.analysis.finding import Chart
from fathom.report import words
from fathom.report.axes import Json

TARGET = "target"  # the series of a line chart that the others strive for
FEW = 6  # points of a line are shown from the first to the last: to leave out one of them is to leave out the story
FAR = 4  # values spread over so many times what the boxes do make lines of the boxes


def approach(chart: Chart) -> Json:
    """The y axis cut to the target and to each long line but for its first third, which in learning is far off."""
    lines = [_finite(series.y) for series in chart.series if series.name != TARGET]
    targets = [y for series in chart.series if series.name == TARGET for y in _finite(series.y)]
    cuts = [len(line) // 3 if len(line) > FEW else 0 for line in lines]
    early = [y for line, cut in zip(lines, cuts, strict=True) for y in line[:cut]]
    late = [y for line, cut in zip(lines, cuts, strict=True) for y in line[cut:]]
    if not targets or not early or chart.log_y:
        return {}
    rising = statistics.median(early) < statistics.median(late)
    corner = (0.99, 0 if rising else 1)  # away from where the lines come from, and from where they go
    return _cut(min(late + targets), max(late + targets), early + late, corner)


def clipped(chart: Chart) -> Json:
    """The y axis cut to where boxes and whiskers are, if some points are so far off that boxes would be lines."""
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
    return _cut(low, high, known, (0.01, 1))


def _cut(low: float, high: float, known: Sequence[float], corner: tuple[float, float]) -> Json:
    """The y axis from low to high with a little room, and a note in a corner on what that leaves out, if anything."""
    room = 0.1 * (high - low)
    low, high = low - room, high + room
    beyond = [value for value in known if not low <= value <= high]
    if not beyond or high <= low:
        return {}
    where = f"from {min(beyond):.3g} to {max(beyond):.3g}" if len(beyond) > 1 else f"at {beyond[0]:.3g}"
    told = f"{len(beyond)} of {len(known)} values {'lie' if len(beyond) > 1 else 'lies'} beyond, {where}"
    x, y = corner
    place = {"x": x, "y": y, "xanchor": "left" if x < 0.5 else "right", "yanchor": "bottom" if y < 0.5 else "top"}
    look = {"showarrow": False, "bgcolor": "var(--page)", "font": {"size": 12, "color": "var(--soft)"}}
    return {
        "yaxis": {"range": [low, high]},
        "annotations": [{"text": told, "xref": "paper", "yref": "paper"} | place | look],
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
    return [float(value) for value in values if words.is_number(value) and math.isfinite(value)]
