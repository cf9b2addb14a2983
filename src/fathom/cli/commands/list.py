"""fathom list: the workloads, and what each one is."""

from __future__ import annotations

from fathom.cli.commands._facts import facts
from fathom.cli.commands._options import Json
from fathom.cli.terminal import print_json, print_table
from fathom.core import plugins


def command(as_json: Json = False) -> None:
    """The workloads, and what each one is."""
    rows = [facts(name) for name in plugins.names("workloads")]
    if as_json:
        print_json(rows)
        return
    columns = ["name", "year", "style", "layers", "task", "dataset", "params"]
    shown = [[str(row[key]) if key == "year" else row[key] for key in columns] for row in rows]
    print_table("Workloads", columns, shown)
