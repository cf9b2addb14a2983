"""Finding: one question answered from records, as tables and charts that know nothing of how they are shown.

Each file of analyses/ defines TITLE and analyse(records) -> Finding, a pure function. Nothing here imports torch:
an analysis runs on any laptop, from stored records, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fathom.core import plugins
from fathom.core.record import Record

Cell = str | int | float | None  # None is "not measured", never zero


@dataclass(frozen=True, kw_only=True)
class Table:
    title: str
    columns: list[str]  # with units, e.g. "step (ms)"
    rows: list[list[Cell]]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: a row of {len(row)} cells under {len(self.columns)} columns")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One named line, bar group or cloud; x and y of equal length.

    In a dendrogram a series is one joint of four points: x are the distances of the first child, of the joint (twice)
    and of the second child; y the positions of the first child (twice) and of the second (twice); text[0] and text[3]
    name a child that is a leaf. In a scatter, a series named "roof" is drawn as a line.
    """

    name: str
    x: list[Any]
    y: list[Any]
    text: list[str] = field(default_factory=list)  # shown on hover


@dataclass(frozen=True, kw_only=True)
class Chart:
    kind: Literal["bar", "stacked", "line", "scatter", "heatmap", "dendrogram", "box"]
    title: str
    x_title: str
    y_title: str
    series: list[Series]  # a heat map has one series a row: name = row label, x = columns, y = values
    log_x: bool = False
    log_y: bool = False
    bands: list[tuple[str, int]] = field(default_factory=list)  # heat map: column groups as (label, how many)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    title: str
    png: str  # in base 64


@dataclass(frozen=True, kw_only=True)
class Finding:
    question: str  # the name of the analysis: "breakdown"
    title: str
    summary: str  # one or two sentences that a manager can read, with the numbers in them
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        """Whether the records had something to say; if not, the summary says what is missing."""
        return bool(self.tables or self.charts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def analyse(question: str, records: Sequence[Record]) -> Finding:
    """The answer of analyses/QUESTION.py."""
    finding: Finding = plugins.load("questions", question).analyse(records)
    return finding
