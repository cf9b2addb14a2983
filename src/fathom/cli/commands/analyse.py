"""fathom analyse QUESTION RECORDS: one analysis of records, for people or scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fathom.analysis.finding import Finding, analyse
from fathom.cli.commands._options import Json
from fathom.cli.terminal import print_json, print_table, print_text, skipped
from fathom.core import framework_store, plugins
from fathom.core.errors import BadOption
from fathom.core.store import read, read_nonempty


def command(
    question: Annotated[str, typer.Argument(help=f"One of: {', '.join(plugins.names('questions'))}.")],
    records: Annotated[list[Path] | None, typer.Argument(help="Folders of records, or single record files.")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Use the numbers printed in the 2016 paper instead of records.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run one analysis on records and print its tables."""
    plugins.check("questions", question)
    finding = _published(question) if published else _answer(question, records or [])
    if as_json:
        print_json(finding.to_json())
        return
    print_text(finding.summary)
    for table in finding.tables:
        print_table(table.title, table.columns, table.rows)
    for note in finding.notes:
        print_text(f"· {note}")


def _published(question: str) -> Finding:
    """An analysis may have a function `published`; in most of them this name is the imported module, if anything."""
    answer = getattr(plugins.load("questions", question), "published", None)
    if not callable(answer):
        raise BadOption(f"the paper prints no numbers for {question}")
    finding: Finding = answer()
    return finding


def _answer(question: str, paths: list[Path]) -> Finding:
    if not paths:
        raise BadOption("give at least one folder of records, or --published")
    frameworks = framework_store.read(paths, skipped)
    records = read(paths, skipped) if frameworks else read_nonempty(paths, skipped)
    return analyse(question, records, frameworks)
