"""A series of runs that answers one question: run what is missing, analyse all of it, print the answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fathom.analysis.finding import Finding, analyse
from fathom.cli.commands._running import Run, own_store, run_again, run_all
from fathom.cli.terminal import human, print_json, print_table
from fathom.core.errors import BadOption
from fathom.core.spec import RunSpec
from fathom.core.store import Store

Timeout = Annotated[float, typer.Option(help="Seconds without progress of a rank after which the job is ended.")]


def counts_of(text: str, option: str) -> list[int]:
    try:
        return [int(count) for count in text.split(",")]
    except ValueError:
        raise BadOption(f"{option} takes numbers such as 1,2,4, not {text!r}") from None


def measure(
    planned: Sequence[RunSpec],
    out: Path,
    run: Run | None,
    job: str,
    question: str,
    as_json: bool,
    also: str = "",
) -> None:
    """Makes the planned runs that are not in the folder yet, answers the question from all, and prints the answer.

    So is another question, where that has an answer.
    """
    several = any(spec.nodes > 1 for spec in planned)
    # a job of several nodes is of no one machine, and its nodes must agree on what is done
    store = Store(out) if several else own_store(out)
    left = store.remaining(planned)
    if done := len(planned) - len(left):
        human.print(f"{done} of {len(planned)} runs are in {out} already; another --out repeats them")
    run_all(left, store, job, run)
    if not several:  # nodes may disagree on what was disturbed
        run_again(planned, store, run=run)
    wanted = {spec.id for spec in planned}
    records = [record for record in store.records() if record.spec.id in wanted]
    finding = analyse(question, records)
    second = [found] if also and (found := analyse(also, records)).answered else []
    if as_json:
        print_json({"records": str(out), **finding.to_json(), **{each.question: each.to_json() for each in second}})
    else:
        for each in (finding, *second):
            print_finding(each)
    if store.remaining(planned):
        raise typer.Exit(1)


def print_finding(finding: Finding) -> None:
    for table in finding.tables:
        print_table(table.title, table.columns, table.rows)
    human.print(finding.summary)
    for note in finding.notes:
        human.print(note, style="dim")
