"""Who gets which colour: a workload keeps its own through every chart and table of a report."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fathom import published
from fathom.analysis.finding import Chart
from fathom.core import plugins
from fathom.core.record import Record

OTHERS = [f"var(--o{index})" for index in range(7)]  # places, phases, op types; --w0 to --w7 are the paper's workloads
QUIET = "var(--quiet)"  # what was published, beside what was measured
REST = "var(--rest)"  # what is in no op, or in none that is named


@dataclass(frozen=True)
class Look:
    colour: str
    variant: int  # how many earlier series of the same chart have this colour already


class Colours:
    """The colours of one report. The eight of the paper have theirs in every report, a guest among them stands out in
    the colour of the text, and what is no workload gets a colour when its name comes up."""

    def __init__(self, records: Sequence[Record]) -> None:
        eight = list(published.op_percent())
        guests = sorted({*plugins.names("workloads"), *(record.spec.workload for record in records)} - {*eight})
        self._workloads = {name: f"var(--w{index})" for index, name in enumerate(sorted(eight))}
        self._workloads |= dict(zip(guests, itertools.cycle(["var(--ink)", *OTHERS]), strict=False))
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
        free = [colour for colour in OTHERS if colour not in taken]
        before = self._others.get(name)
        if before is None or (before in taken and free):
            before = self._others[name] = free[0] if free else min(OTHERS, key=taken.count)
        return before
