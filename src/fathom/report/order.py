"""In which order a report is read: which answer before which, and what of an answer before the rest."""

from __future__ import annotations

from collections.abc import Sequence

from fathom.analysis.finding import Finding, Table

STORY = (  # where, how fast, why, then ever finer; others follow by name
    "breakdown", "phases", "learning", "roofline", "gpu_efficiency", "skew", "similarity", "layers", "parallelism",
    "cores", "sections", "variance", "stationarity",
)  # fmt: skip
BEFORE_CHARTS = {"learning": 2}  # tables that are the answer themselves; elsewhere the charts are, and tables follow


def in_order(findings: Sequence[Finding]) -> list[Finding]:
    """What could not be answered stands last, as a hint at what else could be measured."""

    def place(finding: Finding) -> tuple[object, ...]:
        told = STORY.index(finding.question) if finding.question in STORY else len(STORY)
        return not finding.answered, told, finding.question

    return sorted(findings, key=place)


def split_tables(finding: Finding) -> tuple[list[Table], list[Table]]:
    """The tables that stand before the charts, and those after."""
    first = BEFORE_CHARTS.get(finding.question, 0)
    return finding.tables[:first], finding.tables[first:]
