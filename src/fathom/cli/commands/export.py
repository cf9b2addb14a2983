"""fathom export FOLDERS --out runs.csv: records as one table, for pandas, a spreadsheet or a notebook."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fathom.cli.terminal import count, human, skipped
from fathom.core.errors import BadOption, MissingExtra, UnknownName
from fathom.core.files import written_beside
from fathom.core.store import check_writable, read_nonempty

if TYPE_CHECKING:
    from pandas import DataFrame

SUFFIXES = (".csv", ".parquet")


def command(
    folders: Annotated[list[Path], typer.Argument(help="Folders of records, or single record files.")],
    out: Annotated[Path, typer.Option(help="File to write; its suffix, .csv or .parquet, is the format.")],
    ops: Annotated[
        bool, typer.Option("--ops", help="One row per op of a profiled run, instead of one row per run.")
    ] = False,
) -> None:
    """Write records as one table, CSV or Parquet: a row per run, or with --ops a row per op."""
    if out.suffix not in SUFFIXES:
        raise UnknownName.among("table format", out.suffix or out.name, SUFFIXES)
    if out.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise MissingExtra("Parquet needs pyarrow, which is not installed: pip install 'fathom[parquet]'")
    check_writable(out)
    records = read_nonempty(folders, skipped)
    from fathom.analysis.frame import frame, op_frame

    table = op_frame(records) if ops else frame(records)
    _write(table, out)
    human.print(f"{count(len(table), 'row')}: {out}", highlight=False, soft_wrap=True)


def _write(table: DataFrame, path: Path) -> None:
    """Through a hidden file beside it: where the disk is full, an existing file stays as it was."""
    try:
        with written_beside(path) as hidden:
            if path.suffix == ".csv":
                table.to_csv(hidden, index=False)
            else:
                table.to_parquet(hidden, index=False)
    except OSError as error:
        raise BadOption(f"cannot write {path}: {error.strerror or error}") from None
