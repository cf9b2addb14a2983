"""Who gets which colour: a workload keeps its own through every chart and table of a report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fathom import registry
from fathom.analysis import Chart
from fathom.record import Record

WORKLOAD_COLOURS = 8  # --w0 ... --w7 of style.css, told apart by the colour-blind too
OTHER_COLOURS = 7  # --o0 ... --o6, for places, phases and op types
QUIET = "var(--quiet)"  # what was published, beside what was measured
REST = "var(--rest)"  # what is in no op, or in none that is named


@dataclass(frozen=True)
class Look:
    colour: str
    variant: int  # how many earlier series of the same chart have this colour already


class Colours:
    """The colours of one report; those of other things than workloads are given out as their names come up."""

    def __init__(self, records: Sequence[Record]) -> None:
        measured = sorted({record.spec.workload for record in records})
        names = dict.fromkeys(measured + registry.names("workloads"))
        self._workloads = {name: f"var(--w{index % WORKLOAD_COLOURS})" for index, name in enumerate(names)}
        self._others: dict[str, str] = {}

    def workload(self, name: str) -> str | None:
        return self._workloads.get(name)

    def looks(self, chart: Chart) -> list[Look]:
        """One look a series; two series of one chart never have the same."""
        looks: list[Look] = []
        for series in chart.series:
            taken = [look.colour for look in looks]
            colour = self._colour(series.name, taken)
            looks.append(Look(colour, taken.count(colour)))
        return looks

    def _colour(self, name: str, taken: list[str]) -> str:
        first = re.match(r"[\w.:-]+", name)  # "vgg", and also "vgg train" or "vgg (infer)"
        if own := self._workloads.get(first.group().rstrip(":") if first else name):
            return own
        if "published" in name.lower():
            return QUIET
        if name.strip("()").lower() in ("outside ops", "other ops", "other"):
            return REST
        palette = [f"var(--o{index})" for index in range(OTHER_COLOURS)]
        free = [colour for colour in palette if colour not in taken]
        before = self._others.get(name)
        if before is None or (before in taken and free):
            before = self._others[name] = free[0] if free else min(palette, key=taken.count)
        return before
