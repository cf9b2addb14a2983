"""Jobs of asynchronous groups over the size of a group and the bound on staleness: the guide's Fig. 2 has clusters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fathom.analysis.finding import Cell, Chart, Series, Table
from fathom.analysis.rank_jobs import circumstances
from fathom.core.formatting import count, number, seconds
from fathom.core.record import Record

STATEMENT = (
    "Guide, section IV: synchronous training inside a cluster and asynchronous training between clusters gives "
    "the best performance on large configurations with many clusters; complete asynchrony is avoided, as versions of "
    "the weights drift apart where updates are too rare."
)


@dataclass(frozen=True)
class Asynchrony:
    """The two settings of asynchronous groups, and what else a job must share with another to be compared by them."""

    ranks: int
    group_size: int
    staleness: int
    others: str  # scaling, and what was injected

    @property
    def groups(self) -> int:
        return self.ranks // self.group_size

    @property
    def where(self) -> str:
        return ", ".join(filter(None, [count(self.ranks, "rank"), self.others]))


@dataclass(frozen=True)
class Reached:
    """One job at the loss or quality that all of its task reach, in the median over launches."""

    task: str  # workload, data, machine
    target: float
    of: Asynchrony
    items: float
    seconds: float
    launches: int


def basis(launches: Sequence[int]) -> str:
    """On how many launches of each job a statement rests."""
    if min(launches) > 1:
        return f"{min(launches)} launches or more a job."
    which = "each job" if max(launches) == 1 else "some jobs"
    return f"One launch of {which}: nothing is said of the next."


def asynchrony_of(record: Record) -> Asynchrony | None:
    """None for a job without asynchronous groups."""
    settings = record.ranks.settings if record.ranks else {}
    size, bound = settings.get("group_size"), settings.get("staleness")
    if record.ranks is None or not isinstance(size, int) or not isinstance(bound, int):
        return None
    others = ", ".join(filter(None, [record.spec.scaling, circumstances(record)]))
    return Asynchrony(record.ranks.ranks, size, bound, others)


def sweeps_of(points: Sequence[Reached]) -> list[list[Reached]]:
    """Points that differ in group size or staleness alone, at least two of them, each sweep in order.

    One group has nobody to run ahead of: jobs that all have one differ by chance alone.
    """
    found: dict[tuple[str, str], list[Reached]] = defaultdict(list)
    for point in points:
        found[point.task, point.of.where].append(point)
    ordered = (sorted(same, key=lambda each: (each.of.group_size, each.of.staleness)) for same in found.values())
    return [
        same
        for same in ordered
        if len({(each.of.group_size, each.of.staleness) for each in same}) > 1
        and any(each.of.groups > 1 for each in same)
    ]


def sentences(sweeps: Sequence[Sequence[Reached]]) -> list[str]:
    """The best of each sweep, beside the other end."""
    found = []
    for sweep in sweeps:
        best, worst = (choose(sweep, key=lambda each: each.seconds) for choose in (min, max))
        found.append(
            f"{best.task}, {best.of.where}: fastest {_settings(best)} ({seconds(best.seconds)}), slowest "
            f"{_settings(worst)} ({seconds(worst.seconds)})."
        )
    return found


def _settings(point: Reached) -> str:
    if point.of.groups == 1:
        return "in one group"
    return f"in groups of {point.of.group_size} with staleness up to {point.of.staleness}"


def sweep_table(sweeps: Sequence[Sequence[Reached]], what: str) -> Table:
    """`what` is a loss or a quality."""
    rows: list[list[Cell]] = []
    for sweep in sweeps:
        best = min(each.seconds for each in sweep)
        for each in sweep:
            settings: list[Cell] = [
                each.of.ranks,
                each.of.others,
                each.of.group_size,
                each.of.groups,
                each.of.staleness,
            ]
            over = each.seconds / best if best > 0 else None
            rows.append([each.task, each.target, *settings, each.items, each.seconds, over, each.launches])
    columns = ["task", f"target {what}", "ranks", "scaling", "group size", "groups", "staleness bound", "items"]
    columns += ["time (s)", "over the fastest", "launches"]
    return Table(title=f"By group size and staleness, to the same {what}", columns=columns, rows=rows)


def sweep_charts(sweeps: Sequence[Sequence[Reached]], what: str) -> list[Chart]:
    """Time and items over each setting that has several values, with one line for each value of the other.

    Staleness says nothing of jobs of one group, which are left out there.
    """
    found = []
    for sweep in sweeps:
        name = f"{sweep[0].task}, {sweep[0].of.where}"
        for setting, other in (("group size", "staleness"), ("staleness", "group size")):
            shown = [each for each in sweep if setting == "group size" or each.of.groups > 1]
            if len({_SETTINGS[setting](each) for each in shown}) > 1:
                for quantity in _QUANTITIES:
                    found.append(_chart(shown, f"to the same {what}, by {setting}: {name}", quantity, setting, other))
    return found


_SETTINGS: dict[str, Callable[[Reached], int]] = {
    "group size": lambda each: each.of.group_size,
    "staleness": lambda each: each.of.staleness,
}
_QUANTITIES: dict[str, tuple[str, Callable[[Reached], float]]] = {
    "Time": ("s", lambda each: each.seconds),
    "Items": ("items", lambda each: each.items),
}


def _chart(sweep: Sequence[Reached], title: str, quantity: str, setting: str, other: str) -> Chart:
    x_of, line_of, (unit, y_of) = _SETTINGS[setting], _SETTINGS[other], _QUANTITIES[quantity]
    lines: dict[int, list[Reached]] = defaultdict(list)
    for each in sorted(sweep, key=x_of):
        lines[line_of(each)].append(each)
    series = [
        Series(
            name=f"{other} {value}",
            x=[x_of(each) for each in same],
            y=[y_of(each) for each in same],
            text=[f"{seconds(each.seconds)}, {number(each.items)} items" for each in same],
        )
        for value, same in sorted(lines.items())
    ]
    return Chart(
        kind="line",
        title=f"{quantity} {title}",
        x_title=f"{setting} ({'ranks' if setting == 'group size' else 'updates ahead, at most'})",
        y_title="seconds" if unit == "s" else unit,
        unit=unit,
        series=series,
        limits=(0.0, 1.08 * max(y_of(each) for each in sweep)),  # a difference of 1 % shall not fill the chart
        log_x=setting == "group size",
    )
