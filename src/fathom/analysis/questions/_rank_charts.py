"""Charts of scaling over ranks, for weak and for strong scaling apart: speed-up, efficiency, parts of a step."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from fathom.analysis.finding import Chart, Series
from fathom.analysis.rank_jobs import Curve, Job
from fathom.analysis.scaling_law import STRONG, WEAK, law
from fathom.analysis.statistics import Interval

PARTS = {"compute_s": "compute", "exposed_s": "exposed communication", "wait_s": "waiting for the slowest rank"}
LAWS = {WEAK: "Gustafson", STRONG: "Amdahl"}


def charts(curves: Sequence[Curve]) -> list[Chart]:
    """Weak and strong scaling answer two questions: neither shares a chart with the other."""
    found = []
    for scaling in (WEAK, STRONG):
        same = [curve for curve in curves if curve.scaling == scaling]
        several = [curve for curve in same if curve.base and len(curve.jobs) > 1]
        if several:
            found += [_speedups(several, scaling), _efficiencies(several, scaling)]
        if same:
            found.append(_parts(same, scaling))
    return found


def _speedups(curves: Sequence[Curve], scaling: str) -> Chart:
    """With the ideal, and the law at the median of the serial fractions."""
    ranks = sorted({job.ranks for curve in curves for job in curve.jobs})
    bounds = [Series(name="ideal", x=ranks, y=ranks, role="target")]
    serials = [curve.serial for curve in curves if curve.serial is not None]
    if serials:
        serial = statistics.median(serials)
        name = f"{LAWS[scaling]}, serial fraction {100 * serial:.3g} %{' (median)' if len(serials) > 1 else ''}"
        bounds.append(Series(name=name, x=ranks, y=[law(serial, count, scaling) for count in ranks], role="target"))
    return Chart(
        kind="line",
        title=f"Speed-up, {scaling} scaling",
        x_title="ranks",
        y_title="speed-up",
        series=[*_lines(curves, Curve.speedup, 1.0), *bounds],
        log_x=True,
        log_y=True,
    )


def _efficiencies(curves: Sequence[Curve], scaling: str) -> Chart:
    return Chart(
        kind="line",
        title=f"Parallel efficiency, {scaling} scaling",
        x_title="ranks",
        y_title="efficiency (%)",
        unit="%",
        series=_lines(curves, Curve.efficiency, 100.0),
        log_x=True,
    )


def _lines(curves: Sequence[Curve], of: Callable[[Curve, Job], Interval | None], factor: float) -> list[Series]:
    several, series = _several_strategies(curves), []
    for curve in curves:
        found = {job.ranks: gain for job in curve.jobs if (gain := of(curve, job))}
        text = [f"{factor * gain.low:.3g} to {factor * gain.high:.3g}" for gain in found.values()]
        values = [factor * gain.median for gain in found.values()]
        name = ", ".join(filter(None, [curve.workload, curve.strategy * several, curve.apart]))
        series.append(Series(name=name, workload=curve.workload, x=list(found), y=values, text=text))
    return series


def _several_strategies(curves: Sequence[Curve]) -> bool:
    return len({curve.strategy for curve in curves}) > 1


def _parts(curves: Sequence[Curve], scaling: str) -> Chart:
    """Stacked, in percent of the three together: steps of two workloads may differ a hundredfold."""
    several = _several_strategies(curves)
    labels, shares = [], []
    for curve in curves:
        for job in curve.jobs:
            parts = [curve.workload, curve.strategy * several, curve.apart, str(job.ranks)]
            labels.append(", ".join(filter(None, parts)))
            times = {name: job.part_s(name) for name in PARTS}
            whole = sum(times.values()) or 1.0
            shares.append({name: 100 * value / whole for name, value in times.items()})
    return Chart(
        kind="stacked",
        title=f"Parts of a step, {scaling} scaling",
        x_title="workload, ranks",
        y_title="share of a step (%)",
        unit="%",
        limits=(0.0, 100.0),
        series=[Series(name=word, x=labels, y=[each[name] for each in shares]) for name, word in PARTS.items()],
    )
