"""The report as one HTML file that needs nothing else: style, script, Plotly and data are all inside it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from fathom.analysis.finding import Chart, Finding, Table
from fathom.core import formatting
from fathom.core.record import Record
from fathom.report import charts, runs
from fathom.report.colours import Colours
from fathom.report.machines import machines
from fathom.report.method import method

HERE = Path(__file__).parent
MANY_ROWS = 16  # a table of more scrolls inside its box
BROAD = 13  # columns; the headings of a table with more stand upright on paper
LONG = 34  # letters; a column of longer texts breaks them into lines
SLIM = 440  # a chart that is readable at this width shares its row with another
SPARK_WIDTH, SPARK_HEIGHT = 180, 44


@dataclass(frozen=True, kw_only=True)
class Cell:
    text: str
    value: float | None  # what it sorts by, where the text alone would not do
    missing: bool
    numeric: bool
    long: bool  # of a column with texts that may take several lines
    colour: str | None  # of the workload it names
    alarming: bool


def html(records: Sequence[Record], findings: Sequence[Finding], title: str) -> str:
    """The page; it makes no request of any kind when it is opened."""
    losses = runs.losses(records)
    return _template().render(
        title=title,
        records=records,
        findings=[finding for finding in findings if finding.answered],
        not_measured=[finding for finding in findings if not finding.answered],
        colours=Colours(records),
        facts=_facts(records),
        trust=runs.trust(records),
        settings=runs.common_settings(records),
        headline=runs.headline(records),
        no_headline=runs.NO_HEADLINE,
        machines=machines(records),
        losses=losses,
        losses_in_words=runs.losses_in_words(records),
        outputs=runs.outputs(records),
        failed=runs.failed(records),
        method=method(records),
        every_run=runs.every_run(records),
        many_rows=MANY_ROWS,
        broad=BROAD,
        style=Markup((HERE / "style.css").read_text(encoding="utf-8")),
        script=Markup((HERE / "page.js").read_text(encoding="utf-8")),
        plotly=_plotly(),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "anchor": _anchor,
        "sentences": _sentences,
        "cells": _cells,
        "count": formatting.count,
        "described": charts.described,
        "figure": _figure,
        "in_pairs": _in_pairs,
        "number": formatting.number,
        "spark": _spark,
    }
    return environment.get_template("page.html.j2")


def _facts(records: Sequence[Record]) -> list[tuple[int, str]]:
    """The size of the study in a few numbers, without those that are zero."""
    hosts = len({record.machine.identity for record in records})
    # a GPU and the CPU of its host are two devices of one machine
    devices = len(
        {(record.machine.identity, record.gpu and (record.gpu.uuid or record.gpu.name)) for record in records}
    )
    found = [
        (len({record.spec.workload for record in records if record.spec.kind != "collectives"}), "workload"),
        (hosts, "machine"),
        (devices if devices > hosts else 0, "device"),
        (len(records), "run"),
        (sum(len(record.step_s) for record in records), "timed step"),
    ]
    return [(many, thing if many == 1 else f"{thing}s") for many, thing in found if many]


def _cells(table: Table, colours: Colours) -> list[list[Cell]]:
    """Rows of cells as they are shown; a column of numbers stands to the right."""
    if not table.rows:
        return []
    columns = list(zip(*table.rows, strict=True))
    shown = [formatting.column(column, heading) for column, heading in zip(columns, table.columns, strict=True)]
    long = [max(map(len, texts)) > LONG for texts in shown]
    numeric = [all(value is None or formatting.is_number(value) for value in column) for column in columns]

    def cell(row: int, column: int) -> Cell:
        value, text = table.rows[row][column], shown[column][row]
        return Cell(
            text=text,
            value=float(f"{value:.6g}") if formatting.is_number(value) and text != str(value) else None,
            missing=value is None,
            numeric=numeric[column],
            long=long[column],
            colour=colours.workload(value) if isinstance(value, str) and column == 0 else None,
            alarming=(row, column) in table.alarms,
        )

    return [[cell(row, column) for column in range(len(columns))] for row in range(len(table.rows))]


def _figure(chart: Chart, colours: Colours) -> Markup:
    return embedded(charts.figure(chart, colours))


def embedded(value: Any) -> Markup:
    """JSON that can stand inside a script element: no letter of it can end the element or begin another."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _in_pairs(drawn: Sequence[Chart]) -> list[tuple[Chart, bool]]:
    """Each chart, and whether it shares its row: two slim ones in succession do."""
    shares = [charts.least_width(chart) <= SLIM for chart in drawn]
    paired = [False] * len(shares)
    for index in range(len(shares) - 1):
        if shares[index] and shares[index + 1] and not paired[index]:
            paired[index] = paired[index + 1] = True
    return list(zip(drawn, paired, strict=True))


def _sentences(text: str) -> list[str]:
    """One by one: an answer has some for each machine, and as one paragraph of ten lines nobody reads them."""
    return re.split(r"(?<=\.) (?=[A-Z0-9])", text)


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "finding"


def _spark(losses: Sequence[float]) -> str:
    """The points of a small line that fills its box."""
    low, high = min(losses), max(losses)
    right, fall = SPARK_WIDTH / (len(losses) - 1), SPARK_HEIGHT / ((high - low) or 1)
    return " ".join(f"{index * right:.1f},{(high - loss) * fall:.1f}" for index, loss in enumerate(losses))


def _plotly() -> Markup:
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs().replace("</script", "<\\/script"))
