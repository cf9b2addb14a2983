"""Power over time with the sections of a run marked, and the clock beside it; as charts and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from fathom.analysis.energy_runs import EnergyRuns
from fathom.analysis.finding import Cell, Chart, Series, Span, Table
from fathom.core.energy import STEPS, Energy, PowerTrace, Stretch

Points = Sequence[tuple[float, float]]  # seconds, and what was read then
COLUMNS: list[str] = ["section", "meter", "duration (s)", "mean power (W)", "peak power (W)", "integrated power (J)"]
COLUMNS.append("mean clock (MHz)")


def power_charts(runs: EnergyRuns) -> list[Chart]:
    """Of the first trial: watts of every meter, and clocks where a meter shows them."""
    energy = runs.energies[0]
    name = f"{runs.workload} {runs.phase} on {runs.machine}"
    shown = {
        ("Power", "power (W)", "W"): [(_name(trace, energy), trace.power) for trace in energy.traces],
        ("Clock", "clock (MHz)", "MHz"): [(_name(trace, energy), trace.clock) for trace in energy.traces],
    }
    charts = []
    for (title, y_title, unit), lines in shown.items():
        series = [
            Series(name=meter, x=[at for at, _ in points], y=[value for _, value in points])
            for meter, points in lines
            if points
        ]
        if series:
            charts.append(
                Chart(
                    kind="line",
                    title=f"{title}: {name}",
                    x_title="seconds since the first section began",
                    y_title=y_title,
                    unit=unit,
                    series=series,
                    spans=[Span(label=each.name, begin=each.begin_s, end=each.end_s) for each in energy.stretches],
                )
            )
    return charts


def _name(trace: PowerTrace, energy: Energy) -> str:
    """What it meters; with the meter where two meter the same, as a board may have two sensors."""
    several = sum(other.scope == trace.scope for other in energy.traces) > 1
    return f"{trace.scope} ({trace.meter})" if several else trace.scope


def sweep_chart(name: str, runs: Sequence[EnergyRuns], labels: Sequence[str]) -> Chart | None:
    """Power of every setting of a sweep from its first step on, over all meters, as the power study draws it."""
    series = []
    for each, label in zip(runs, labels, strict=True):
        energy = each.energies[0]
        window = next((stretch for stretch in energy.stretches if stretch.name == STEPS), None)
        counted = {(part.meter, part.scope) for part in energy.counted}
        traces = [trace.power for trace in energy.traces if (trace.meter, trace.scope) in counted and trace.power]
        if window is None or not traces:
            continue
        longest = max(traces, key=len)  # meters may be read at different moments: the last reading of each counts
        inside = [(at, sum(_last(trace, at) for trace in traces)) for at, _ in _within(longest, window)]
        x, y = [at - window.begin_s for at, _ in inside], [watts for _, watts in inside]
        series.append(Series(name=label, x=x, y=y))
    if not series:
        return None
    return Chart(
        kind="line",
        title=f"Power by setting: {name}",
        x_title="seconds since the first step",
        y_title="power (W)",
        unit="W",
        series=series,
    )


def section_table(runs: EnergyRuns) -> Table:
    """The same as numbers: each section of the first trial, by meter."""
    energy = runs.energies[0]
    rows = [section_row(trace, section) for section in energy.stretches for trace in energy.traces]
    title = f"Power by section: {runs.workload} {runs.phase} on {runs.machine}"
    return Table(title=title, columns=COLUMNS, rows=rows)


def section_row(trace: PowerTrace, section: Stretch) -> list[Cell]:
    power, clock = _within(trace.power, section), _within(trace.clock, section)
    seconds = section.end_s - section.begin_s
    mean = mean_over(trace.power, section)
    return [
        section.name,
        f"{trace.meter} of {trace.scope}",
        seconds,
        mean,
        max((watts for _, watts in power), default=None),
        None if mean is None else mean * seconds,
        sum(mhz for _, mhz in clock) / len(clock) if clock else None,
    ]


def mean_over(points: Points, section: Stretch) -> float | None:
    """By the trapezoidal rule. Beyond the first and the last reading inside, these are held: power jumps at the ends of
    a section, and a line to the next reading would mix in the next section's."""
    inside = _within(points, section)
    if not inside or section.end_s <= section.begin_s:
        return None
    curve = [(section.begin_s, inside[0][1]), *inside, (section.end_s, inside[-1][1])]
    area = sum((after[0] - before[0]) * (before[1] + after[1]) / 2 for before, after in pairwise(curve))
    return area / (section.end_s - section.begin_s)


def traced(energy: Energy) -> bool:
    """Whether there is something to draw: power from more than the steps alone."""
    return len(energy.stretches) > 1 and any(trace.power for trace in energy.traces)


def _last(points: Points, moment: float) -> float:
    """The last reading up to a moment, or the first one."""
    return next((value for at, value in reversed(points) if at <= moment), points[0][1])


def _within(points: Points, section: Stretch) -> list[tuple[float, float]]:
    return [(at, value) for at, value in points if section.begin_s <= at < section.end_s]
