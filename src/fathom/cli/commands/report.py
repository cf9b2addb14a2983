"""fathom report FOLDERS: one page from the records of one or several folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.terminal import human, skipped
from fathom.core.errors import BadOption, UnknownName
from fathom.core.store import read_some

FORMATS = {"html": "report.html", "md": "report.md"}


def command(
    folders: Annotated[list[Path], typer.Argument(help="Folders of records, e.g. mine/ results/h200.")],
    format_: Annotated[str | None, typer.Option("--format", help="html or md; as --out is called, else html.")] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; report.html or report.md.")] = None,
) -> None:
    """Writes the report of the records in these folders."""
    from fathom.report import write

    if format_ is not None and format_ not in FORMATS:
        raise UnknownName.among("format", format_, FORMATS)
    if format_ and out and (format_ == "md") != (out.suffix == ".md"):
        raise BadOption(f"a file called {out} would not be {format_}; Markdown ends in .md, and nothing else does")
    path = write(read_some(folders, skipped), out or Path(FORMATS[format_ or "html"]))
    human.print(f"report: {path}")
