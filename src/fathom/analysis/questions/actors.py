"""Parallel actors: frames per second of a workload that plays, over the number of threads that play for it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.questions.cores import GAIN, quotient
from fathom.analysis.scaling_law import STRONG, WEAK, law, serial_fraction
from fathom.analysis.selection import configuration, counted, told_apart
from fathom.analysis.statistics import Interval
from fathom.analysis.step_time import step_time
from fathom.core.formatting import count, in_percent
from fathom.core.record import Record
from fathom.core.spec import ACTORS, FRAME_SKIP, GAMES, RunSpec

TITLE = "Actors: how many frames a second do parallel emulators play?"
ORDER = 114


@dataclass(frozen=True)
class Point:
    """All launches with so many actors and games."""

    actors: int
    games: int
    frames: int  # of the emulators, in a step
    step: Interval

    @property
    def frames_per_s(self) -> float:
        return self.frames / self.step.median


@dataclass(frozen=True)
class Curve:
    """One workload in one phase on one device; scaling is weak, strong, or "" for a single point."""

    workload: str
    phase: str
    machine: str
    scaling: str
    points: list[Point]  # by actors
    name: str

    def speedup(self, point: Point) -> Interval | None:
        """Frames per second over those of one actor."""
        base = self.points[0]
        if base.actors != 1:
            return None
        found, gained = quotient(base.step, point.step), point.frames / base.frames
        return Interval(gained * found.median, gained * found.low, gained * found.high, found.launches)

    @property
    def serial(self) -> float | None:
        known = {point.actors: found.median for point in self.points[1:] if (found := self.speedup(point))}
        return serial_fraction(known, self.scaling) if self.scaling else None


def analyse(records: Sequence[Record]) -> Finding:
    records = [record for record in records if {GAMES, ACTORS, FRAME_SKIP} <= {*record.spec.options}]
    failed = [record for record in records if record.outcome != "ok"]
    curves, notes = curves_of(records), []
    if failed:
        reasons = counted(f"{count(int(record.spec.options[ACTORS]), 'actor')}: {record.reason}" for record in failed)
        notes = [f"Not shown: failed runs: {reasons}."]
    if not curves:
        reason = "every run failed" if failed else ""
        return not_measured("actors", TITLE, "fathom scale --actors 1,2,4", notes, reason)
    return Finding(
        question="actors",
        title=TITLE,
        summary=" ".join(_sentence(curve) for curve in curves),
        tables=[_table(curves)],
        charts=[_frames(curves), _efficiencies(curves)],
        notes=[*_notes(), *notes],
    )


def curves_of(records: Sequence[Record]) -> list[Curve]:
    """Points with the same games make a curve of strong scaling, those with the same games an actor one of weak."""
    groups: dict[tuple[str, str, str, str], dict[tuple[int, int], list[Record]]] = defaultdict(
        lambda: defaultdict(list)
    )
    specs: dict[str, RunSpec] = {}
    for record in records:
        if record.outcome == "ok" and record.step_s:
            options = dict(record.spec.options)
            where = int(options.pop(ACTORS)), int(options.pop(GAMES))
            free = dataclasses.replace(configuration(record), options=options)
            specs[str(free)] = free
            groups[record.spec.workload, record.spec.phase, record.machine_label, str(free)][where].append(record)
    several = len({machine for _, _, machine, _ in groups}) > 1
    ordered = sorted(groups.items())
    names = told_apart([(f"{workload} {phase}", specs[free]) for (workload, phase, _, free), _ in ordered])
    curves = []
    for ((workload, phase, machine, _), runs), told in zip(ordered, names, strict=True):
        points = [_point(*where, runs[where]) for where in sorted(runs)]
        for scaling, same in _series(points):
            name = ", ".join(filter(None, [told, scaling, machine * several]))
            curves.append(Curve(workload, phase, machine, scaling, same, name))
    return curves


def _point(actors: int, games: int, runs: Sequence[Record]) -> Point:
    return Point(actors, games, games * int(runs[0].spec.options[FRAME_SKIP]), step_time(runs))


def _series(points: Sequence[Point]) -> list[tuple[str, list[Point]]]:
    """Every point in at least one series; a point that others are compared with may be in several."""
    weak: dict[float, list[Point]] = defaultdict(list)
    strong: dict[float, list[Point]] = defaultdict(list)
    for point in points:
        weak[point.games / point.actors].append(point)
        strong[point.games].append(point)
    found = [(name, same) for name, by in ((WEAK, weak), (STRONG, strong)) for same in by.values() if len(same) > 1]
    used = {id(point) for _, same in found for point in same}
    return [*found, *(("", [point]) for point in points if id(point) not in used)]


def _sentence(curve: Curve) -> str:
    first, last = curve.points[0], curve.points[-1]
    if first is last:
        return f"{curve.name}: {first.frames_per_s:,.0f} frames/s with {count(first.actors, 'actor')}."
    best = max(curve.points, key=lambda point: point.frames_per_s)
    found = curve.speedup(last)
    gain = f", efficiency {100 * found.median / last.actors:.0f} %" if found else ""
    most = "" if best is last else f"; most with {best.actors}: {best.frames_per_s:,.0f}"
    return (
        f"{curve.name}: {first.frames_per_s:,.0f} frames/s with {count(first.actors, 'actor')}, "
        f"{last.frames_per_s:,.0f} with {last.actors}{gain}{most}."
    )


def _table(curves: Sequence[Curve]) -> Table:
    rows: list[list[Cell]] = []
    for curve in curves:
        serial = curve.serial
        for point in curve.points:
            fitted = None if serial is None else law(serial, point.actors, curve.scaling)
            rows.append(
                [
                    *(curve.workload, curve.phase, curve.machine, curve.scaling or None),
                    *(point.actors, point.games, 1e3 * point.step.median, point.frames_per_s),
                    *_gain(curve, point),
                    *(point.step.claim, in_percent(serial), fitted),
                ]
            )
    columns = ["workload", "phase", "machine", "scaling", "actors", "games", "step (ms)", "frames/s", *GAIN]
    columns += ["interval", "serial fraction (%)", "speed-up by it"]
    return Table(title="Frames per second over actors", columns=columns, rows=rows, leading=True)


def _gain(curve: Curve, point: Point) -> list[Cell]:
    found = curve.speedup(point)
    if found is None:
        return [None] * len(GAIN)
    return [*found.cells(), *found.cells(100 / point.actors)]


def _frames(curves: Sequence[Curve]) -> Chart:
    series = [
        Series(
            name=curve.name,
            workload=curve.workload,
            x=[point.actors for point in curve.points],
            y=[point.frames_per_s for point in curve.points],
            text=[count(point.games, "game") for point in curve.points],
        )
        for curve in curves
    ]
    title = "Frames per second over actors"
    return Chart(kind="line", title=title, x_title="actors", y_title="frames/s", series=series, log_x=True, log_y=True)


def _efficiencies(curves: Sequence[Curve]) -> Chart:
    series = []
    for curve in curves:
        gains = {point.actors: found.median for point in curve.points if (found := curve.speedup(point))}
        if len(gains) > 1:
            values = [100 * gain / actors for actors, gain in gains.items()]
            series.append(Series(name=curve.name, workload=curve.workload, x=list(gains), y=values))
    return Chart(
        kind="line",
        title="Efficiency over actors",
        x_title="actors",
        y_title="efficiency (%)",
        unit="%",
        series=series,
        log_x=True,
    )


def _notes() -> list[str]:
    return [
        "An actor is a thread of the emulator that plays its share of the games. Frames are the emulator's own. In "
        "inference the network chooses every action and nothing is learnt; in training every frame is stored and the "
        "network learns between actions, in proportion to the frames played.",
        "Weak: every actor has the same number of games (Gustafson). Strong: the same games are divided among the "
        "actors (Amdahl). Speed-up is frames per second over those of one actor, efficiency is speed-up over actors. "
        "In weak scaling it may exceed 100 %: one pass of the network then chooses the actions of more games.",
    ]
