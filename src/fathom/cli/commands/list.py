"""fathom list: the workloads, and what each one is."""

from __future__ import annotations

from fathom.cli.commands._options import Json, Suite
from fathom.cli.terminal import print_json, print_table
from fathom.workloads import catalogue

COLUMNS = {  # as shown -> the fact
    "name": "name",
    "year": "year",
    "style": "style",
    "layers": "layers",
    "task": "task",
    "dataset": "dataset",
    "params": "parameters",
}


def command(suite: Suite = catalogue.SUITE, as_json: Json = False) -> None:
    """List the workloads of a suite."""
    found = [catalogue.facts(name) for name in catalogue.suite(suite)]
    rows = [{shown: each.get(fact) for shown, fact in COLUMNS.items()} for each in found]
    if as_json:
        print_json(rows)
        return
    cells = [[str(value) if key == "year" and value else value for key, value in row.items()] for row in rows]
    print_table("Workloads", list(COLUMNS), cells)
