"""fathom list: the workloads, and what each one is."""

from __future__ import annotations

from fathom import registry
from fathom.commands._facts import facts
from fathom.commands._options import Json
from fathom.terminal import print_json, print_table


def command(as_json: Json = False) -> None:
    """The workloads, and what each one is."""
    rows = [facts(name) for name in registry.names("workloads")]
    if as_json:
        print_json(rows)
        return
    columns = ["name", "year", "style", "layers", "task", "dataset", "params"]
    shown = [[str(row[key]) if key == "year" else row[key] for key in columns] for row in rows]
    print_table("Workloads", columns, shown)
