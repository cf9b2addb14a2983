"""Finding: one question answered from records, as tables and charts that state what they show, not how it is drawn.

Each file of questions/ defines TITLE and analyse(records) -> Finding, a pure function, and may define ORDER, its place
in a report. A question with FRAMEWORKS = True is answered from framework records instead. Nothing here imports torch:
an analysis runs on any laptop, from stored records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from typing import Any, Literal

from fathom.analysis.labels import labelled
from fathom.analysis.selection import summarised, trusted
from fathom.core import plugins
from fathom.core.formatting import count
from fathom.core.framework import FrameworkRecord
from fathom.core.record import Record

Cell = str | int | float | None  # None is "not measured", never zero

MOST_TRIED = 4  # kinds of disturbed runs that a question is asked again without, one by one: an answer takes seconds
ORDER_LAST = 1000  # of a question that does not say where in a report it belongs


@dataclass(frozen=True, kw_only=True)
class Table:
    title: str
    columns: list[str]  # with units, e.g. "step (ms)"
    rows: list[list[Cell]]
    leading: bool = False  # the answer itself: a report shows it before the charts; others come after them
    alarms: list[tuple[int, int]] = field(default_factory=list)  # (row, column) of each cell that reports a problem

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: a row of {len(row)} cells under {len(self.columns)} columns")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One named line, bar group or set of points; x and y of equal length.

    In a dendrogram a series is one merge of four points: x are the distances of the first child, of the merge (twice)
    and of the second child; y the positions of the first child (twice) and of the second (twice); text[0] and text[3]
    name a child that is a leaf. In an icicle x are paths from the root, lists of names with parents first, and y the
    values, which include those of children. In a timeline x are pairs of begin and end, and y names of lanes.
    """

    name: str
    x: list[Any]
    y: list[Any]  # numbers, names or None
    text: list[str] = field(default_factory=list)  # shown on hover
    workload: str | None = None  # whose values these are; it has the same colour in every chart
    # published: printed in a paper; remainder: what is in none of the named parts; limit: a bound that points are seen
    # against, drawn as a line; target: what the other lines are to reach, drawn as a line
    role: Literal["measured", "published", "remainder", "limit", "target"] = "measured"

    def __post_init__(self) -> None:
        """A page leaves out what it cannot draw; an analysis must not give it such values."""
        for value in self.y:
            if not (value is None or isinstance(value, Real | str)):
                raise TypeError(f"{self.name}: {type(value).__name__} is nothing to draw")


@dataclass(frozen=True, kw_only=True)
class Band:
    """Neighbouring columns of a heat map that belong together."""

    label: str
    columns: int  # how many
    total: str = ""  # the name of a column with their sum; "" where they have none


@dataclass(frozen=True, kw_only=True)
class Span:
    """A stretch of the x axis that has a name, such as a section of a run."""

    label: str
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Chart:
    kind: Literal["bar", "stacked", "line", "scatter", "heatmap", "dendrogram", "box", "icicle", "timeline"]
    title: str
    x_title: str
    y_title: str
    series: list[Series]  # a heat map has one series a row: name = row label, x = columns, y = values
    unit: str = ""  # of the values (y): "%", "s", "ms", "FLOP/s"; "" for a ratio or where y_title says it all
    limits: tuple[float, float] | None = None  # of the values, known beforehand: charts that share them share a scale
    log_x: bool = False
    log_y: bool = False
    bands: list[Band] = field(default_factory=list)  # of a heat map: its columns from left to right, or none
    spans: list[Span] = field(default_factory=list)  # of a line chart: shaded in turns, each under its label
    lanes: list[str] = field(default_factory=list)  # of a timeline, from top to bottom
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Image:
    title: str
    png: str  # in base 64


@dataclass(frozen=True, kw_only=True)
class Finding:
    question: str  # the name of the analysis: "breakdown"
    title: str
    summary: str  # one or two sentences that a manager can read, with the numbers in them
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        """Whether the records had something to say; if not, the summary says which command would measure it."""
        return bool(self.tables or self.charts)

    @property
    def leading_tables(self) -> list[Table]:
        return [table for table in self.tables if table.leading]

    @property
    def other_tables(self) -> list[Table]:
        return [table for table in self.tables if not table.leading]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def analyse(question: str, records: Sequence[Record], frameworks: Sequence[FrameworkRecord] = ()) -> Finding:
    """The answer of questions/QUESTION.py, or of a question that another package brings.

    Of a disturbed and an undisturbed run of the same work, the undisturbed one answers. An answer that would be another
    without the disturbed runs that are left has a note on them. Jobs of several ranks answer those questions alone that
    ask for them (RANKED), and no other runs do.
    """
    module = plugins.load("questions", question)
    if getattr(module, "FRAMEWORKS", False):
        found: Finding = module.analyse(frameworks)
        return found
    answer: Callable[[Sequence[Record]], Finding] = module.analyse
    ranked = getattr(module, "RANKED", False)
    records = [record for record in records if (record.spec.ranks is not None) == ranked]
    used = trusted(labelled(records))
    finding = answer(used)
    notes = _on_disturbed(finding, answer, used) if finding.answered else []
    if finding.answered and (superseded := len(records) - len(used)):
        notes.append(f"Not shown: {count(superseded, 'disturbed run')}, of which an undisturbed one was made.")
    return replace(finding, notes=[*notes, *finding.notes]) if notes else finding


def _on_disturbed(finding: Finding, answer: Callable[[Sequence[Record]], Finding], used: list[Record]) -> list[str]:
    """A note on the disturbed runs that make this answer what it is; of many, that not all of them need to."""

    def matter(runs: list[Record]) -> bool:
        left_out = {id(run) for run in runs}
        return _differs(finding, answer([record for record in used if id(record) not in left_out]))

    disturbed = [record for record in used if record.disturbed and record.outcome == "ok"]
    if not disturbed or not matter(disturbed):
        return []
    kinds: dict[str, list[Record]] = {}
    for record in disturbed:
        kinds.setdefault(summarised([record]), []).append(record)
    if len(kinds) > MOST_TRIED:
        return [
            "Without disturbed runs, whose times are not to be trusted, this answer would be another; not all of these "
            f"need to enter into it: {summarised(disturbed)}."
        ]
    entering = [run for runs in kinds.values() if len(kinds) == 1 or matter(runs) for run in runs]
    return [f"Disturbed, so that their times are not to be trusted: {summarised(entering or disturbed)}."]


def _differs(one: Finding, other: Finding) -> bool:
    """In what it says; notes may name runs that are not in the answer."""
    return replace(one, notes=[]) != replace(other, notes=[])


def not_measured(question: str, title: str, command: str, notes: Sequence[str] = (), reason: str = "") -> Finding:
    """The answer where the records hold none: which command would measure it, and why there is none, if that helps."""
    why = f": {reason}" if reason else ""
    return Finding(question=question, title=title, summary=f"Not measured{why}. Run `{command}`.", notes=list(notes))


def questions() -> list[str]:
    """The names of all questions, in the order in which a report answers them."""

    def order(name: str) -> tuple[int, str]:
        return getattr(plugins.load("questions", name), "ORDER", ORDER_LAST), name

    return sorted(plugins.names("questions"), key=order)
