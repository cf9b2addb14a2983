"""Findings and records -> one self-contained HTML page, or Markdown. Nothing here imports torch, nothing measures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fathom import registry
from fathom.analysis import Finding, analyse
from fathom.errors import BadOption
from fathom.record import Record
from fathom.report.page import html
from fathom.report.text import markdown

__all__ = ["html", "markdown", "write"]

TITLE = "Where the time goes"
STORY = (  # the order in which answers are read: where, how fast, why, then ever finer; others follow by name
    "breakdown", "phases", "learning", "roofline", "gpu_efficiency", "skew", "similarity", "layers", "parallelism",
    "cores", "sections", "variance", "stationarity",
)  # fmt: skip


def write(records: Sequence[Record], path: Path) -> Path:
    """Every question answered from the records, written as Markdown where the file is called so, else as HTML."""
    findings = sorted((analyse(question, records) for question in registry.names("analyses")), key=_place)
    render = markdown if path.suffix == ".md" else html
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(records, findings, TITLE), encoding="utf-8")
    except OSError as error:
        raise BadOption(f"cannot write {path}: {error.strerror or error}") from None
    return path


def _place(finding: Finding) -> tuple[object, ...]:
    """What could not be answered stands last, as a hint at what else could be measured."""
    place = STORY.index(finding.question) if finding.question in STORY else len(STORY)
    return not finding.tables, place, finding.question
