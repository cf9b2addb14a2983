"""The numbers in the pages, each from the record it names: lists the stale ones, or writes them anew (--write).

    python docs/quoted_numbers.py          # stale numbers, and numbers that name no source; exit code 1 if there are any
    python docs/quoted_numbers.py --write  # puts the numbers of today's records and code into the pages

A number is followed by a comment, which readers of the page do not see, that says where it comes from:

    28.8<!-- results/h200 phases "Step times" vgg train ~H200 "step, median (ms)" --> ms

A source is one of these, with the words that select from it:

    results/FOLDER QUESTION TITLE CELL... COLUMN    a table or chart of `fathom analyse QUESTION results/FOLDER`
    results/FOLDER QUESTION summary "/REGEX/"       its summary; `notes` likewise
    results/FOLDER runs CELL... COLUMN              a run of `fathom export results/FOLDER`
    published/TABLE CELL... COLUMN                  a table of src/fathom/published
    results/FILE.json KEY... KEY=VALUE... KEY       in a list, KEY=VALUE selects elements, and a key is taken of each
                                                    that has it; * is every key
    results/FILE.txt "/REGEX/"                      any other file

A title or column is given in full or by a part that only one has; * stands for anything, and of columns takes all. A row
has all cells that are given: CELL in any column, COLUMN=CELL in that one, ~CELL as a part. Words with spaces stand in quotes. "/REGEX/" at the
end takes its group from a text. Where several numbers are selected, the first word says what is made of them: min,
median, max, mean, first, last, sum, count (of rows: no column is given), range ("5 to 7") or list ("5, 6, 7").
`REFERENCE over REFERENCE` is a quotient.

The number keeps its decimals. `.1f` asks for one decimal, `.2g` for two significant digits; `%`, `ms` and `us` multiply;
`min` writes a duration ("8 min 49 s"). `or –` writes a dash where nothing is selected.

A table is preceded by a comment with a line for each of its columns that comes from a source; {name} is the cell of the
same row in the column `name`. Other columns are written by hand. A line `rows:` says which rows there are: the columns
after the colon are the first ones of the page's table. --write adds missing rows, with "?" where a hand must write:

    <!-- table
    rows: results/h200 breakdown "Op shares that differ" ~H200 : workload "op type"
    ours: results/h200 breakdown "Op shares that differ" ~H200 {workload} "{op type}" "measured (% of step)"
    -->
    | workload | op type | ours | why |

A number that comes from no record is listed in its paragraph, with the reason: <!-- not from records: 95 (level) -->,
or once for the page: <!-- not from records, on this page: ... -->. Years, numbers in names (H200, VGG-19, Figure 3), in
code and in links need no comment.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

from fathom.analysis import formatting
from fathom.analysis.finding import Cell, Finding, Table, analyse
from fathom.analysis.frame import frame
from fathom.core import plugins
from fathom.core.record import Record
from fathom.core.store import read
from fathom.report.text import chart_table

ROOT = Path(__file__).parents[1]
EVERY_NUMBER = ("docs/figure-3.md", "docs/ten-years.md", "docs/learning.md", "results/README.md")  # names its source
WHERE_A_RECORD_IS_NAMED = ("README.md", "docs/method.md")  # in paragraphs that name something below results/
PAGES = (*EVERY_NUMBER, *WHERE_A_RECORD_IS_NAMED)

NUMBER = r"[-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
ATOM = rf"(?:{NUMBER}|[–—?])"
STANDING = {  # what stands before a comment, and is replaced
    "one": rf"(?<![\w.,−-]){ATOM}",
    "range": rf"(?<![\w.,−-]){ATOM}(?: to {ATOM})?",
    "list": rf"(?<![\w.,−-]){ATOM}(?:, {ATOM})*",
    "min": r"(?:\d+ min )?\d+ s|\?",
}
FREE_NUMBER = re.compile(rf"(?<![\w.,/=-]){NUMBER}(?!\w|-\w|\.\d|,\d)")
NAMES = re.compile(r"(?:Figures?|Figs?\.|Tables?|torch|TensorFlow|Python|Minsky's Fig\.) [\d.]+(?: and \d+)?")
YEAR = re.compile(r"(?:19[89]|20[0-3])\d")
COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
NOT_FROM_RECORDS = re.compile(r"not from records(, on this page)?:(.*)", re.DOTALL)
WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
SCALES = {"%": 100.0, "ms": 1e3, "us": 1e6}

Edit = tuple[int, int, str]  # from, to, and what to write there


class BadReference(Exception):
    """A reference that selects nothing, too much, or no number; its text says which, in a line."""


def of_one(values: Sequence[float]) -> float:
    if len(values) != 1:
        raise BadReference(f"selects {len(values)} numbers; select one, or begin with min, median, range, list ...")
    return values[0]


AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "median": statistics.median,
    "mean": statistics.fmean,
    "sum": sum,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}
SEVERAL = {"range": lambda values: [min(values), max(values)], "list": list}  # these write more than one number


@dataclass(frozen=True)
class Reference:
    """The words of a comment, sorted: what to make of the numbers, where they are, how they are written."""

    aggregate: str  # "" for a single number
    words: list[str]  # the source and what selects from it
    pattern: str | None  # of the group that a text is narrowed to
    style: str | None  # ".1f" or ".2g"; None keeps the decimals
    scale: float
    duration: bool
    default: str | None  # what to write where nothing is selected
    divisor: Reference | None

    @classmethod
    def parse(cls, text: str) -> Reference:
        words = [word.replace('"', "") for word in WORD.findall(text)]
        divisor = None
        if "over" in words:
            at = words.index("over")
            divisor = cls._of(words[at + 1 :])
            words = words[:at] + [word for word in words[at + 1 :] if word in SCALES or _is_style(word)]
        return cls._of(words, divisor)

    @classmethod
    def _of(cls, words: list[str], divisor: Reference | None = None) -> Reference:
        aggregate = words[0] if words and (words[0] in AGGREGATES or words[0] in (*SEVERAL, "count")) else ""
        words, default, style, scale = words[bool(aggregate) :], None, None, 1.0
        if words[-2:-1] == ["or"]:
            words, default = words[:-2], words[-1]
        duration = words[-1:] == ["min"]
        words = words[:-1] if duration else words
        while words and (_is_style(words[-1]) or words[-1] in SCALES):
            style = words[-1] if _is_style(words[-1]) else style
            scale *= SCALES.get(words[-1], 1.0)
            words = words[:-1]
        pattern = words[-1][1:-1] if words and re.fullmatch(r"/.+/", words[-1]) else None
        words = words[:-1] if pattern else words
        return cls(aggregate, words, pattern, style, scale, duration, default, divisor)

    @property
    def standing(self) -> str:
        return STANDING["min" if self.duration else self.aggregate if self.aggregate in SEVERAL else "one"]

    def written(self, values: Sequence[float], before: str) -> str:
        """The numbers as the page has them, with the decimals of what stands there before."""
        if not values:
            return self.default or "–"
        if self.duration:
            minutes, seconds = divmod(round(values[0]), 60)
            return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
        shown = [self._number(value, before) for value in values]
        return {"range": " to ", "list": ", "}.get(self.aggregate, "").join(
            dict.fromkeys(shown) if self.aggregate == "range" else shown
        )

    def _number(self, value: float, before: str) -> str:
        if self.style and self.style.endswith("g"):
            return _significant(value, int(self.style[1:-1]))
        if self.style:
            return _fixed(value, int(self.style[1:-1]))
        standing = re.findall(NUMBER, before)
        if not standing:
            return _significant(value, 3)
        return _fixed(value, max(len(each.partition(".")[2]) for each in standing))


def _fixed(value: float, decimals: int) -> str:
    """Halves are rounded up, as they are where a text such as 12.85 is rounded by hand; no minus before a zero."""
    rounded = float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))
    return formatting.fixed(rounded or 0.0, decimals)


def _significant(value: float, digits: int) -> str:
    """Never as a power of ten, which would not be read back as one number."""
    size = math.floor(math.log10(abs(value))) if value else 0
    rounded = round(value, digits - 1 - size)
    return _fixed(rounded, max(0, digits - 1 - (math.floor(math.log10(abs(rounded))) if rounded else 0)))


def _is_style(word: str) -> bool:
    return re.fullmatch(r"\.\d[fg]", word) is not None


@dataclass
class Sources:
    """What references read, each folder and question once."""

    root: Path = ROOT
    _records: dict[str, list[Record]] = field(default_factory=dict)
    _findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    _tables: dict[tuple[str, str], list[Table]] = field(default_factory=dict)
    _files: dict[str, Any] = field(default_factory=dict)

    def numbers(self, reference: Reference) -> list[float]:
        """What the reference stands for: one number, several for a range or a list, none for its default."""
        cells = self._cells(reference.words, counting=reference.aggregate == "count")
        if reference.aggregate == "count":
            values = [float(len(cells))]
        else:
            values = [value for cell in cells for value in _numbers(cell, reference.pattern)]
        if not values:
            if reference.default is None:
                raise BadReference("selects no number")
            return []
        if reference.aggregate in SEVERAL:
            values = SEVERAL[reference.aggregate](values)
        elif reference.aggregate != "count":
            values = [AGGREGATES.get(reference.aggregate, of_one)(values)]
        divisor = of_one(self.numbers(reference.divisor)) / reference.divisor.scale if reference.divisor else 1.0
        return [value * reference.scale / divisor for value in values]

    def _cells(self, words: Sequence[str], counting: bool) -> list[Cell]:
        source, rest = words[0] if words else "", list(words[1:])
        path = self.root / source
        if source.startswith("published/"):
            return _selected(self._published(source), rest, counting)
        if path.suffix == ".json" and path.is_file():
            return _in_json(self._file(source), rest)
        if path.is_file():
            return [self._file(source)]
        if not source.startswith("results/") or not path.is_dir():
            raise BadReference(f"no source {source!r}: a folder or file below results/, or published/TABLE")
        if not rest:
            raise BadReference(f"no question is asked of {source}")
        question, rest = rest[0], rest[1:]
        if question == "runs":
            return _selected(self.tables(source, question)[0], rest, counting)
        if rest[:1] in (["summary"], ["notes"]):
            finding = self.finding(source, question)
            return [finding.summary if rest == ["summary"] else "\n".join(finding.notes)]
        if not rest:
            raise BadReference("no table is named")
        return _selected(self.table(source, question, rest[0]), rest[1:], counting)

    def records(self, folder: str) -> list[Record]:
        if folder not in self._records:
            problems: list[str] = []
            self._records[folder] = read([self.root / folder], problems.append)
            if problems:
                raise BadReference(problems[0])
        return self._records[folder]

    def finding(self, folder: str, question: str) -> Finding:
        if question not in plugins.names("questions"):
            raise BadReference(f"no question {question!r}")
        if (folder, question) not in self._findings:
            self._findings[folder, question] = analyse(question, self.records(folder))
        return self._findings[folder, question]

    def tables(self, folder: str, question: str) -> list[Table]:
        """The tables of a finding and of its charts; of `runs`, the one of all runs."""
        if (folder, question) not in self._tables:
            if question == "runs":
                runs = frame(self.records(folder))
                rows = runs.astype(object).where(runs.notna(), None).to_numpy().tolist()
                self._tables[folder, question] = [Table(title=question, columns=list(runs.columns), rows=rows)]
            else:
                finding = self.finding(folder, question)
                self._tables[folder, question] = [*finding.tables, *map(chart_table, finding.charts)]
        return self._tables[folder, question]

    def table(self, folder: str, question: str, title: str) -> Table:
        tables = {table.title: table for table in reversed(self.tables(folder, question))}
        return tables[_the(title, list(reversed(tables)), f"table of {question}")]

    def _published(self, source: str) -> Table:
        path = self.root / "src" / "fathom" / f"{source}.csv"
        if not path.is_file():
            raise BadReference(f"no table {source}")
        if source not in self._files:
            columns, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
            self._files[source] = Table(title=source, columns=columns, rows=[list(row) for row in rows])
        table: Table = self._files[source]
        return table

    def _file(self, source: str) -> Any:
        if source not in self._files:
            text = (self.root / source).read_text(encoding="utf-8")
            self._files[source] = json.loads(text) if source.endswith(".json") else text
        return self._files[source]


def _the(word: str, names: Sequence[str], what: str) -> str:
    """The one name that is the word, or begins with it, or has it as a part."""
    found = _fitting(word, names)
    if len(found) != 1:
        raise BadReference(f"{len(found)} names fit {word!r} as a {what}; there are: {'; '.join(found or names)[:300]}")
    return found[0]


def _fitting(word: str, names: Sequence[str]) -> list[str]:
    part = re.compile(".*".join(map(re.escape, word.split("*"))), re.IGNORECASE)
    ways = (part.fullmatch, part.match, part.search)
    return next((found for way in ways if (found := [name for name in names if way(name)])), [])


def _selected(table: Table, words: Sequence[str], counting: bool) -> list[Cell]:
    """The cells of a column, or of all that a name with * fits, in the rows that have all cells that the words name.

    In a count, the first cells of these rows.
    """
    if not words and not counting:
        raise BadReference(f"no column of {table.title!r} is named")
    if counting:
        return [row[0] for row in _rows(table, words)]
    several = "*" in words[-1] and _fitting(words[-1], table.columns)
    names = several or [_the(words[-1], table.columns, "column")]
    at = [table.columns.index(name) for name in names]
    return [row[index] for row in _rows(table, words[:-1]) for index in at]


def _rows(table: Table, words: Sequence[str]) -> list[list[Cell]]:
    return [row for row in table.rows if all(_has(table, row, word) for word in words)]


def _has(table: Table, row: Sequence[Cell], word: str) -> bool:
    name, equals, rest = word.partition("=")
    if equals and name in table.columns:
        return _is(row[table.columns.index(name)], rest)
    return any(_is(cell, word) for cell in row)


def _is(cell: Cell, word: str) -> bool:
    text = formatting.ascii_minus(formatting.cell(cell)) if isinstance(cell, int) else str(cell)
    return word[1:].casefold() in text.casefold() if word.startswith("~") else word.casefold() == text.casefold()


def _in_json(value: Any, words: Sequence[str]) -> list[Cell]:
    """What the keys lead to; of a list, every element that has what KEY=VALUE says."""
    if isinstance(value, list):
        while words and "=" in words[0]:
            key, _, wanted = words[0].partition("=")
            value, words = (
                [each for each in value if isinstance(each, dict) and str(each.get(key)) == wanted],
                words[1:],
            )
        having = [each for each in value if not words or not isinstance(each, dict) or words[0] in (*each, "*")]
        return [cell for each in having for cell in _in_json(each, words)]
    if not words:
        if isinstance(value, dict):
            raise BadReference(f"stops above the keys {', '.join(value)[:200]}")
        return [value]
    if words[0] == "*" and isinstance(value, dict):
        return [cell for each in value.values() for cell in _in_json(each, words[1:])]
    if not isinstance(value, dict) or words[0] not in value:
        raise BadReference(f"no key {words[0]!r} there")
    return _in_json(value[words[0]], words[1:])


def _numbers(cell: Cell, pattern: str | None) -> list[float]:
    """The numbers in a cell: several in a text such as "32 (31 to 33)", none where nothing was measured."""
    if formatting.is_number(cell):
        return [float(cell)]
    text = "" if cell is None else str(cell)
    if pattern is not None:
        match = re.search(pattern, text)
        if match is None:
            raise BadReference(f"/{pattern}/ is not in {text[:200]!r}")
        text = match[1] if match.re.groups else match[0]
    return [float(each.replace(",", "").replace("−", "-")) for each in re.findall(NUMBER, text)]


@dataclass(frozen=True)
class Problem:
    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


class Page:
    """A page as it stands, and what its references make of it."""

    def __init__(self, name: str, text: str, sources: Sources, every_number: bool) -> None:
        self.name, self.text, self.sources, self.every_number = name, text, sources, every_number
        self.stale: list[Problem] = []
        self.edits: list[Edit] = []
        self.sourced: list[tuple[int, int]] = []  # where numbers stand that have a source
        for match in COMMENT.finditer(self._blanked(r"^```.*?^```")):
            self._read_comment(match)

    @cached_property
    def rewritten(self) -> str:
        text = self.text
        for start, end, new in sorted(self.edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def _blanked(self, pattern: str, text: str | None = None) -> str:
        """The text with spaces for what the pattern matches, so that positions stay."""
        text = self.text if text is None else text
        return re.sub(pattern, lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.DOTALL | re.MULTILINE)

    def _problem(self, at: int, text: str) -> Problem:
        return Problem(self.name, self.text.count("\n", 0, at) + 1, text)

    def _read_comment(self, match: re.Match[str]) -> None:
        content = match[1].strip()
        if NOT_FROM_RECORDS.match(content):
            return
        if content.startswith("table\n"):
            self._read_table(match.end(), content.splitlines()[1:])
            return
        reference = Reference.parse(content)
        before = re.search(rf"(?:{reference.standing})$", self.text[: match.start()])
        if before is None:
            self.stale.append(self._problem(match.start(), f"no number stands before <!-- {content} -->"))
        else:
            self._compare(reference, content, *before.span())

    def _compare(self, reference: Reference, content: str, start: int, end: int) -> None:
        """What stands from start to end, with what the reference says."""
        standing = self.text[start:end]
        self.sourced.append((start, end))
        try:
            found = reference.written(self.sources.numbers(reference), standing)
        except BadReference as error:
            self.stale.append(self._problem(start, f"{content}: {error}"))
            return
        if found != standing:
            self.stale.append(self._problem(start, f"{standing!r} stands here, {found!r} is what {content} says"))
            self.edits.append((start, end, found))

    def _read_table(self, at: int, lines: Sequence[str]) -> None:
        rows = list(self._table_rows(at))
        if len(rows) < 2:
            self.stale.append(self._problem(at, "no table follows its comment"))
            return
        columns = [self.text[start:end].strip() for start, end in rows[0]]
        formulas = dict(line.split(": ", 1) for line in lines if ": " in line)
        for name in formulas:
            if name not in (*columns, "rows"):
                self.stale.append(self._problem(at, f"the table has no column {name!r}, only {', '.join(columns)}"))
        kept = self._compare_rows(rows, columns, formulas)
        for row in kept:
            cells = {name: self.text[start:end].strip() for name, (start, end) in zip(columns, row, strict=True)}
            for name, (start, end) in zip(columns, row, strict=True):
                if name in formulas:
                    self._compare_cell(_filled(formulas[name], cells), start, end)
                elif cells[name] == "?":
                    self.stale.append(self._problem(start, f"{name!r} is still to be written by hand"))

    def _table_rows(self, at: int) -> Iterator[list[tuple[int, int]]]:
        """From and to of each cell of each row, the line of dashes left out."""
        table = re.compile(r"\s*((?:\|[^\n]*\n?)+)").match(self.text, at)
        for line in re.finditer(r"\|[^\n]*\n?", table[1]) if table else ():
            if not re.fullmatch(r"[|:\s-]+", line[0]):
                bars = [table.start(1) + line.start() + bar.start() for bar in re.finditer(r"(?<!\\)\|", line[0])]
                yield [(one + 1, other) for one, other in itertools.pairwise(bars)]

    def _compare_rows(
        self, rows: list[list[tuple[int, int]]], columns: list[str], formulas: dict[str, str]
    ) -> list[list[tuple[int, int]]]:
        """The rows that stay; where the table says which rows there are, others go and missing ones are added."""
        body = rows[1:]
        if "rows" not in formulas:
            return body
        try:
            wanted = self._wanted(formulas["rows"])
        except BadReference as error:
            self.stale.append(self._problem(rows[0][0][0], f"rows: {error}"))
            return body
        width = len(wanted[0]) if wanted else 1
        keys = [tuple(self.text[start:end].strip() for start, end in row[:width]) for row in body]
        for row, key in zip(body, keys, strict=True):
            if key not in wanted:
                self.stale.append(self._problem(row[0][0], f"the records have no row {' | '.join(key)} any more"))
                self.edits.append((row[0][0] - 1, row[-1][1] + 2, ""))
        end = rows[-1][-1][1] + 2
        for key in wanted:
            if key not in keys:
                self.stale.append(
                    self._problem(rows[0][0][0], f"the records have a row {' | '.join(key)}, the table not")
                )
                self.edits.append((end, end, self._new_row(dict(zip(columns, key, strict=False)), columns, formulas)))
        kept = [row for row, key in zip(body, keys, strict=True) if key in wanted]
        self.sourced += [cell for row in kept for cell in row[:width]]
        return kept

    def _wanted(self, formula: str) -> list[tuple[str, ...]]:
        selection, _, names = formula.rpartition(" : ")
        words = Reference.parse(selection).words
        if words[0].startswith("published/") or len(words) < 3:
            raise BadReference("rows: are those of a table of a question")
        table = self.sources.table(words[0], words[1], words[2])
        at = [table.columns.index(_the(name.replace('"', ""), table.columns, "column")) for name in WORD.findall(names)]
        found = [tuple(formatting.cell(row[index]) for index in at) for row in _rows(table, words[3:])]
        return list(dict.fromkeys(found))

    def _new_row(self, cells: dict[str, str], columns: list[str], formulas: dict[str, str]) -> str:
        shown = []
        for name in columns:
            text = cells.get(name, "?")
            if name in formulas:
                reference = Reference.parse(_filled(formulas[name], cells))
                try:
                    text = reference.written(self.sources.numbers(reference), "")
                except BadReference:
                    text = "?"
            shown.append(text)
        return f"| {' | '.join(shown)} |\n"

    def _compare_cell(self, content: str, start: int, end: int) -> None:
        reference = Reference.parse(content)
        match = re.search(reference.standing, self.text[start:end])
        if match is None:
            self.stale.append(self._problem(start, f"no number stands in {self.text[start:end].strip()!r}: {content}"))
        else:
            self._compare(reference, content, start + match.start(), start + match.end())

    def without_source(self) -> list[Problem]:
        """Numbers that name no source and are not listed as coming from none."""
        text = self._blanked(r"^```.*?^```")
        anywhere = self._listed(text, on_this_page=True)
        for start, end in self.sourced:
            text = text[:start] + " " * (end - start) + text[end:]
        found = []
        for block in re.finditer(r"(?:[^\n]*\S[^\n]*\n?)+", text):
            if self.every_number or self._names_a_record(block[0]):
                allowed = anywhere | self._listed(block[0], on_this_page=False)
                plain = block[0]
                for hidden in (COMMENT.pattern, r"`[^`]*`", r"\]\([^)]*\)", r"https?://\S+", NAMES.pattern):
                    plain = self._blanked(hidden, plain)
                for number in FREE_NUMBER.finditer(plain):
                    if number[0] not in allowed and not YEAR.fullmatch(number[0]):
                        found.append(self._problem(block.start() + number.start(), f"{number[0]} names no source"))
        return found

    def _names_a_record(self, text: str) -> bool:
        return any((self.sources.root / path).exists() for path in re.findall(r"results/[\w-]+(?:\.\w+)?", text))

    def _listed(self, text: str, on_this_page: bool) -> set[str]:
        comments = (NOT_FROM_RECORDS.match(match[1].strip()) for match in COMMENT.finditer(text))
        lists = [match[2] for match in comments if match and bool(match[1]) == on_this_page]
        return {number for each in lists for number in FREE_NUMBER.findall(each)}


def _filled(formula: str, cells: dict[str, str]) -> str:
    return re.sub(r"\{([^}]+)\}", lambda match: cells.get(match[1], match[0]), formula)


def page(name: str, sources: Sources) -> Page:
    text = (sources.root / name).read_text(encoding="utf-8")
    return Page(name, text, sources, every_number=name in EVERY_NUMBER)


def main() -> int:
    parser = argparse.ArgumentParser(description="Numbers in the pages against the records that they name.")
    parser.add_argument("pages", nargs="*", default=PAGES, help="by their paths in the repository")
    parser.add_argument("--write", action="store_true", help="put the numbers of the records into the pages")
    arguments = parser.parse_args()
    sources, left = Sources(), 0
    for name in arguments.pages:
        read_page = page(name, sources)
        problems = [*read_page.stale, *read_page.without_source()]
        if arguments.write and read_page.rewritten != read_page.text:
            (ROOT / name).write_text(read_page.rewritten, encoding="utf-8")
            again = page(name, sources)
            print(f"{name}: {len(read_page.edits)} numbers or rows written")
            problems = [*again.stale, *again.without_source()]
        for problem in problems:
            print(problem)
        left += len(problems)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
