"""Who gets which colour: a workload keeps its own through every chart and table of a report."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.finding import Chart, Series
from fathom.core.record import Record

OTHERS = [
    f"var(--o{index})" for index in range(7)
]  # machines, phases, op types; --w0 to --w7 are the paper's workloads
ROLES = {"published": "var(--quiet)", "remainder": "var(--rest)"}  # colours of series that stay in the background


@dataclass(frozen=True)
class Look:
    colour: str
    variant: int  # how many earlier series of the same chart have this colour already


class Colours:
    """The colours of one report. The paper's workloads have theirs in every report; another workload stands out in the
    colour of the text; a name that is no workload gets a colour when it first appears."""

    def __init__(self, records: Sequence[Record]) -> None:
        reference = list(published.op_percent())
        others = sorted({record.spec.workload for record in records} - {*reference})
        self._workloads = {name: f"var(--w{index})" for index, name in enumerate(sorted(reference))}
        self._workloads |= dict(zip(others, itertools.cycle(["var(--ink)", *OTHERS]), strict=False))
        self._others: dict[str, str] = {}
        self._many: dict[str, Look] = {}

    def workload(self, name: str) -> str | None:
        return self._workloads.get(name)

    def looks(self, chart: Chart) -> list[Look]:
        """One look per series; two series of one chart never have the same."""
        looks: list[Look] = []
        others = {series.name for series in chart.series if self._own(series) is None}
        for series in chart.series:
            if len(others) > len(OTHERS) and series.name in others:
                looks.append(self._of_many(series.name))
                continue
            taken = [look.colour for look in looks]
            colour = self._colour(series, taken)
            looks.append(Look(colour, taken.count(colour)))
        return looks

    def _own(self, series: Series) -> str | None:
        return self._workloads.get(series.workload or series.name) or ROLES.get(series.role)

    def _of_many(self, name: str) -> Look:
        """In charts with more names than colours, colour and pattern together are a name's own: one kind of layer
        looks the same in training and in inference."""
        number = len(self._many)
        return self._many.setdefault(name, Look(OTHERS[number % len(OTHERS)], number // len(OTHERS)))

    def _colour(self, series: Series, taken: list[str]) -> str:
        if own := self._own(series):
            return own
        free = [colour for colour in OTHERS if colour not in taken]
        before = self._others.get(series.name)
        if before is None or (before in taken and free):
            before = self._others[series.name] = free[0] if free else min(OTHERS, key=taken.count)
        return before
