"""fathom analyse QUESTION RECORDS: one question answered from records, for people or scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fathom import published as paper
from fathom import registry
from fathom.analysis import Finding, Table, analyse
from fathom.commands._options import Json
from fathom.errors import BadOption
from fathom.record import Record
from fathom.store import read
from fathom.terminal import human, passed_over, print_json, print_table


def command(
    question: Annotated[str, typer.Argument(help="One of the analyses, e.g. breakdown.")],
    records: Annotated[list[Path] | None, typer.Argument(help="Folders of records, or single ones.")] = None,
    published: Annotated[bool, typer.Option("--published", help="Answer from the paper's own numbers.")] = False,
    as_json: Json = False,
) -> None:
    """Answers one question from records."""
    registry.check("analyses", question)
    finding = _published(question) if published else analyse(question, _records(records or []))
    if as_json:
        print_json(finding.to_json())
        return
    human.print(finding.summary)
    for table in finding.tables:
        print_table(table.title, table.columns, table.rows)
    for note in finding.notes:
        human.print(f"· {note}", highlight=False)


def _published(question: str) -> Finding:
    """An analysis answers with a function of that name; in most of them it is the module of the paper's numbers."""
    own = getattr(registry.module("analyses", question), "published", None)
    answer: Callable[[], Finding] | None = own if callable(own) else {"breakdown": _figure_3}.get(question)
    if answer is None:
        raise BadOption(f"the paper prints no numbers that {question} could be answered from")
    return answer()


def _figure_3() -> Finding:
    """The printed percentages themselves; the largest of each workload in words."""
    rows = paper.op_percent()
    heaviest = {workload: max(row, key=lambda kind: row[kind]) for workload, row in rows.items()}
    told = ", ".join(f"{kind} in {workload} ({rows[workload][kind]:.0f} %)" for workload, kind in heaviest.items())
    types = list(next(iter(rows.values())))
    return Finding(
        question="breakdown",
        title="Where does the time go, by op type?",
        summary=f"In the 2016 paper the largest part is {told}.",
        tables=[
            Table(
                title=f"Published in 2016: percent of execution time on {paper.MACHINE}",
                columns=["workload", *(f"{kind} (%)" for kind in types)],
                rows=[[workload, *(row[kind] for kind in types)] for workload, row in rows.items()],
            )
        ],
        notes=[f"{paper.SOURCES['fathom_fig3_op_percent']}; 0 is below 1 %, and what is left to 100 is not printed."],
    )


def _records(paths: list[Path]) -> list[Record]:
    if not paths:
        raise BadOption("name at least one folder of records (or --published)")
    return read(paths, passed_over)
