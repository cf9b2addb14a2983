"""fathom report FOLDERS: one self-contained report from the records of one or several folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fathom.cli.terminal import human, skipped
from fathom.core import framework_store
from fathom.core.errors import BadOption, UnknownName
from fathom.core.store import read, read_nonempty

FORMATS = {"html": "report.html", "md": "report.md"}
SUFFIXES = (".html", ".htm", ".md")


def command(
    folders: Annotated[list[Path], typer.Argument(help="Folders of records, such as records/ results/h200.")],
    format_: Annotated[
        str | None, typer.Option("--format", help="html or md; default: by the suffix of --out, else html.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; default: report.html or report.md.")] = None,
) -> None:
    """Write a report of the records in these folders, as one HTML or Markdown file."""
    from fathom.report import write

    if format_ is not None and format_ not in FORMATS:
        raise UnknownName.among("format", format_, FORMATS)
    if format_ and out and (format_ == "md") != (out.suffix == ".md"):
        raise BadOption(f"--format {format_} does not match the file name {out}; only Markdown ends in .md")
    if out and out.suffix not in SUFFIXES:
        raise BadOption(f"a report is written as {', '.join(SUFFIXES)}, not as {out.name[-60:]}")
    frameworks = framework_store.read(folders, skipped)
    records = read(folders, skipped) if frameworks else read_nonempty(folders, skipped)
    path = write(records, out or Path(FORMATS[format_ or "html"]), frameworks)
    human.print(f"report: {path}")
