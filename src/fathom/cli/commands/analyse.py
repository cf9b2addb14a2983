"""fathom analyse QUESTION RECORDS: one question answered from records, for people or scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fathom.analysis.finding import Finding, analyse
from fathom.cli.commands._options import Json
from fathom.cli.terminal import print_json, print_table, print_text, skipped
from fathom.core import plugins
from fathom.core.errors import BadOption
from fathom.core.record import Record
from fathom.core.store import read_some


def command(
    question: Annotated[str, typer.Argument(help="One of the analyses, e.g. breakdown.")],
    records: Annotated[list[Path] | None, typer.Argument(help="Folders of records, or single ones.")] = None,
    published: Annotated[bool, typer.Option("--published", help="Answer from the paper's own numbers.")] = False,
    as_json: Json = False,
) -> None:
    """Answers one question from records."""
    plugins.check("questions", question)
    finding = _published(question) if published else analyse(question, _records(records or []))
    if as_json:
        print_json(finding.to_json())
        return
    print_text(finding.summary)
    for table in finding.tables:
        print_table(table.title, table.columns, table.rows)
    for note in finding.notes:
        print_text(f"· {note}")


def _published(question: str) -> Finding:
    """An analysis answers with a function of that name; in most of them it is the module of the paper's numbers."""
    answer = getattr(plugins.load("questions", question), "published", None)
    if not callable(answer):
        raise BadOption(f"the paper prints no numbers that {question} could be answered from")
    finding: Finding = answer()
    return finding


def _records(paths: list[Path]) -> list[Record]:
    if not paths:
        raise BadOption("name at least one folder of records (or --published)")
    return read_some(paths, skipped)
