"""The report as GitHub Markdown: the same content, with the data of each chart as a compact table."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from fathom.analysis.finding import Cell, Chart, Finding, Series, Table
from fathom.core import formatting
from fathom.core.record import Record
from fathom.report import runs
from fathom.report.charts import leaves
from fathom.report.machines import machines
from fathom.report.method import method

MANY_POINTS = 24  # a chart of more is summarised: a line by some of its points, others by median and range
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # letters that move a cursor or ring a bell
_COMMAND = re.compile(r"(`fathom [\w .,:/=+-]+`)")
SAMPLED_POINTS = 5  # from the first point to the last
MANY_PARTS = 40  # of an icicle
INDENT = "· "


def markdown(records: Sequence[Record], findings: Sequence[Finding], title: str) -> str:
    blocks = [f"# {_plain(title)}", runs.trust(records), "## Summary"]
    blocks += ["\n".join(f"- **{_plain(each.title)}**: {_plain(each.summary)}" for each in findings)]
    headline = runs.headline(records)
    blocks += ["## Results", *_settings(records), *(_table(headline) if headline.rows else [runs.NO_HEADLINE])]
    seen = machines(records)
    for number, machine in enumerate(seen, start=1):
        facts = Table(title="", columns=["", machine.name], rows=[list(fact) for fact in machine.facts])
        blocks += [f"## Machine {number}" if len(seen) > 1 else "## Machine", *_table(facts)]
    for finding in findings:
        blocks += _finding(finding)
    blocks += _samples(records)
    failed = runs.failed(records)
    blocks += ["## Failed runs", *(_table(failed, caption=False) if failed.rows else ["No run failed."])]
    blocks += ["## How it was measured", *(f"**{heading}.** {_plain(text)}" for heading, text in method(records))]
    blocks += ["## Every run", *_table(runs.every_run(records), caption=False)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def chart_table(chart: Chart) -> Table:
    """The numbers of a chart: all of them where they are few, else some of each line or the range of each series."""
    if chart.kind in OWN_TABLES:
        return OWN_TABLES[chart.kind](chart)
    if chart.kind == "heatmap":
        columns = [str(x) for x in chart.series[0].x] if chart.series else []
        rows: list[list[Cell]] = [[series.name, *series.y] for series in chart.series]
        return Table(title=chart.title, columns=[chart.y_title, *columns], rows=rows)
    across = list(dict.fromkeys(x for series in chart.series for x in series.x))
    repeated = any(len(set(series.x)) < len(series.x) for series in chart.series)
    has_target = chart.kind == "line" and any(series.role == "target" for series in chart.series)
    if has_target or repeated or len(across) > MANY_POINTS:
        return _sampled(chart) if chart.kind == "line" else _ranges(chart)
    lines = [dict(zip(series.x, series.y, strict=True)) for series in chart.series]
    rows = [[x, *(line.get(x) for line in lines)] for x in across]
    return Table(title=chart.title, columns=[chart.x_title, *(series.name for series in chart.series)], rows=rows)


def _merges(chart: Chart) -> Table:
    """Each merge with the leaves on its two sides, in their order; a merge lies halfway between its children."""
    below = dict(leaves(chart))
    rows: list[list[Cell]] = []
    for merge in chart.series:  # a later merge may be nearer than one that it contains
        sides = [below.get(merge.y[end], "") for end in (0, 3)]
        below[(merge.y[0] + merge.y[3]) / 2] = ", ".join(sides)
        rows.append([*sides, merge.x[1]])
    return Table(title=chart.title, columns=["cluster", "merged with", chart.x_title], rows=rows)


def _nested(chart: Chart) -> Table:
    """The largest parts of an icicle in their order, each indented below its whole."""
    series = chart.series[0] if chart.series else Series(name="", x=[], y=[])
    whole = series.y[0] if series.y else 0.0
    largest = sorted(range(len(series.y)), key=lambda at: -series.y[at])[:MANY_PARTS]
    rows: list[list[Cell]] = [
        [
            f"{INDENT * (len(series.x[at]) - 1)}{series.x[at][-1]}",
            series.y[at],
            100 * series.y[at] / whole if whole else None,
            series.text[at],
        ]
        for at in sorted(largest)
    ]
    return Table(title=chart.title, columns=[chart.x_title, chart.y_title, "share (%)", "in words"], rows=rows)


def _lanes(chart: Chart) -> Table:
    """How much of the time each lane of a timeline is busy, and with what most."""
    end = max((end for series in chart.series for _, end in series.x), default=0.0)
    rows: list[list[Cell]] = []
    for lane in chart.lanes:
        spans = [
            (stop - begin, series.name, text)
            for series in chart.series
            for (begin, stop), where, text in zip(series.x, series.y, series.text, strict=True)
            if where == lane
        ]
        busy, longest = sum(length for length, _, _ in spans), max(spans, default=(0.0, "", ""))
        kinds = {kind: sum(length for length, of, _ in spans if of == kind) for _, kind, _ in spans}
        most = max(kinds, key=lambda kind: kinds[kind], default="")
        rows.append([lane, len(spans), busy, 100 * busy / end if end else None, most, longest[2], longest[0]])
    columns = ["lane", "rectangles", "busy (ms)", "busy (%)", "mostly", "longest", "longest (ms)"]
    return Table(title=chart.title, columns=columns, rows=rows)


OWN_TABLES = {"dendrogram": _merges, "icicle": _nested, "timeline": _lanes}


def _sampled(chart: Chart) -> Table:
    """Some points of each line from the first to the last: a median would show neither its course nor its end."""
    rows: list[list[Cell]] = []
    for series in chart.series:
        last = len(series.x) - 1
        points = (
            sorted({round(last * step / (SAMPLED_POINTS - 1)) for step in range(SAMPLED_POINTS)}) if series.x else []
        )
        rows += [[series.name, series.x[point], series.y[point]] for point in points]
    return Table(title=chart.title, columns=["", chart.x_title, chart.y_title], rows=rows)


def _ranges(chart: Chart) -> Table:
    columns = ["", "points", f"median {chart.y_title}", "min", "max"]
    return Table(title=chart.title, columns=columns, rows=[_range(series) for series in chart.series])


def _range(series: Series) -> list[Cell]:
    values: list[Any] = [y for y in series.y if formatting.is_number(y)]
    middle = statistics.median(values) if values else None
    return [series.name, len(series.y), middle, min(values, default=None), max(values, default=None)]


def _finding(finding: Finding) -> list[str]:
    blocks = [f"## {_plain(finding.title)}", _plain(finding.summary)]
    for table in finding.leading_tables:
        blocks += _table(table)
    for chart in finding.charts:
        blocks += [*_table(chart_table(chart)), _plain(chart.note)]
    blocks += [f"![{_plain(each.title)}](data:image/png;base64,{_base64(each.png)})" for each in finding.images]
    for table in finding.other_tables:
        blocks += _table(table)
    return [*blocks, _bullets(finding.notes)]


def _samples(records: Sequence[Record]) -> list[str]:
    losses, outputs = runs.losses(records), runs.outputs(records)
    if not losses and not outputs:
        return []
    rows: list[list[Cell]] = [
        [each.workload, each.machine, each.values[0], each.values[-1], len(each.values), each.trend] for each in losses
    ]
    columns = ["workload", "machine", "first loss", "last loss", "steps", "trend"]
    blocks = ["## Losses and outputs", _plain(runs.losses_in_words(records)), "Inference ran on untrained weights."]
    blocks += _table(Table(title="Losses", columns=columns, rows=rows)) if rows else []
    for each in outputs:
        blocks += [f"**{_plain(each.workload)}** on {_plain(each.machine)} gave:"]
        blocks += [_fenced(text) for text in each.texts]
    return blocks


def _settings(records: Sequence[Record]) -> list[str]:
    shared = [f"{name} **{_plain(value)}**" for name, value in runs.common_settings(records)]
    return [f"All runs: {', '.join(shared)}."] if shared else []


def _table(table: Table, caption: bool = True) -> list[str]:
    """A caption and a pipe table; numbers stand to the right."""
    heading = f"**{_plain(table.title)}**" if caption and table.title else ""
    if not table.rows:
        return [heading, "None."]
    columns = list(zip(*table.rows, strict=True))
    shown = [formatting.column(column, heading) for column, heading in zip(columns, table.columns, strict=True)]
    numeric = [all(value is None or formatting.is_number(value) for value in column) for column in columns]
    lines = [_row(table.columns), "|" + "|".join("---:" if right else "---" for right in numeric) + "|"]
    lines += [_row(cells) for cells in zip(*shown, strict=True)]
    return [heading, "\n".join(lines)]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_plain(cell) for cell in cells) + " |"


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(f"- {_plain(text)}" for text in texts)


def _plain(text: str) -> str:
    """Text that means only itself in Markdown, on one line: no tag, no emphasis, no end of a cell.

    Commands between a pair of backticks stay so.
    """
    parts = _COMMAND.split(" ".join(_CONTROL.sub("", text).split()))
    return "".join(part if number % 2 else _literal(part) for number, part in enumerate(parts))


def _literal(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]|~$#])", r"\\\1", text)
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)  # inside a word it is a letter


def _base64(png: str) -> str:
    """An image's text without any letter that could end its link: a record may come from anywhere."""
    return re.sub(r"[^A-Za-z0-9+/=]", "", png)


def _fenced(text: str) -> str:
    """A code block whose fence is longer than any row of backticks in it."""
    text = _CONTROL.sub("", text)
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
