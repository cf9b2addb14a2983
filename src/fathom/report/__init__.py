"""Findings and records -> one self-contained HTML page, or Markdown. Nothing here imports torch, nothing measures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fathom.analysis import own_model
from fathom.analysis.finding import analyse, questions
from fathom.analysis.labels import labelled
from fathom.core.errors import BadOption
from fathom.core.files import replace_whole
from fathom.core.framework import FrameworkRecord
from fathom.core.record import Record
from fathom.report.page import html
from fathom.report.text import markdown

__all__ = ["html", "markdown", "write"]

TITLE = "Where the time goes"


def write(records: Sequence[Record], path: Path | str, frameworks: Sequence[FrameworkRecord] = ()) -> Path:
    """Every question answered from the records, written as Markdown where the file ends in .md, else as HTML."""
    path, records = Path(path), labelled(records)
    found = [analyse(question, records, frameworks) for question in questions()]
    asked = sorted(found, key=lambda each: not each.answered)
    findings = [*own_model.findings(records), *asked]
    answered = [finding for finding in findings if finding.answered]
    title = answered[0].title if len(answered) == 1 else TITLE
    render = markdown if path.suffix == ".md" else html
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, render(records, findings, title))
    except OSError as error:
        raise BadOption(f"cannot write {path}: {error.strerror or error}") from None
    return path
