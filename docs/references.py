"""A reference to a number: its words, what they select from records, files and papers, and how that is written.

The words are explained in quoted_numbers.py.
"""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

from fathom.analysis.finding import Cell, Finding, Table, analyse
from fathom.analysis.frame import frame
from fathom.core import formatting, framework_store, plugins
from fathom.core.record import Record
from fathom.core.store import read
from fathom.report.text import chart_table

ROOT = Path(__file__).parents[1]
NUMBER = r"[-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
ATOM = rf"(?:{NUMBER}|[–—?])"
STANDING = {  # what stands before a comment, and is replaced
    "one": rf"(?<![\w.,−-]){ATOM}",
    "range": rf"(?<![\w.,−-]){ATOM}(?: to {ATOM})?",
    "list": rf"(?<![\w.,−-]){ATOM}(?:, {ATOM})*",
    "duration": r"(?:\d+ min )?\d+ s|\?",
}
WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')
SCALES = {"%": 100.0, "ms": 1e3, "us": 1e6}


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
        duration = words[-1:] == ["duration"]
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
        return STANDING["duration" if self.duration else self.aggregate if self.aggregate in SEVERAL else "one"]

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
            return _fixed(value, max(0, 2 - _magnitude(value)))  # three digits, and all of a large number
        return _fixed(value, max(len(each.partition(".")[2]) for each in standing))


def _fixed(value: float, decimals: int) -> str:
    """Halves are rounded up, as they are where a text such as 12.85 is rounded by hand; no minus before a zero."""
    rounded = float(Decimal(repr(value)).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))
    return formatting.fixed(rounded or 0.0, decimals)


def _significant(value: float, digits: int) -> str:
    """Never as a power of ten, which would not be read back as one number."""
    rounded = round(value, digits - 1 - _magnitude(value))
    return _fixed(rounded, max(0, digits - 1 - _magnitude(rounded)))


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def _is_style(word: str) -> bool:
    return re.fullmatch(r"\.\d[fg]", word) is not None


@dataclass
class Sources:
    """What references read, each folder, question and selection once."""

    root: Path = ROOT
    _records: dict[str, list[Record]] = field(default_factory=dict)
    _findings: dict[tuple[str, str], Finding] = field(default_factory=dict)
    _tables: dict[tuple[str, str], list[Table]] = field(default_factory=dict)
    _files: dict[str, Any] = field(default_factory=dict)
    _selections: dict[tuple[str | bool, ...], list[Cell]] = field(default_factory=dict)

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
        if not divisor or not all(map(math.isfinite, values)):
            raise BadReference("is not a finite number")
        return [value * reference.scale / divisor for value in values]

    def _cells(self, words: Sequence[str], counting: bool) -> list[Cell]:
        asked: tuple[str | bool, ...] = (*words, counting)
        if asked not in self._selections:
            self._selections[asked] = self._select(words, counting)
        return self._selections[asked]

    def _select(self, words: Sequence[str], counting: bool) -> list[Cell]:
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
            records = read([self.root / folder], problems.append)
            if problems:
                raise BadReference(problems[0])
            self._records[folder] = records
        return self._records[folder]

    def finding(self, folder: str, question: str) -> Finding:
        if question not in plugins.names("questions"):
            raise BadReference(f"no question {question!r}")
        if (folder, question) not in self._findings:
            frameworks = framework_store.read([self.root / folder], lambda problem: None)  # read() tells of problems
            self._findings[folder, question] = analyse(question, self.records(folder), frameworks)
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
        return tables[the_one(title, list(reversed(tables)), f"table of {question}")]

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


def the_one(word: str, names: Sequence[str], what: str) -> str:
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
        return [row[0] for row in rows_with(table, words)]
    several = "*" in words[-1] and _fitting(words[-1], table.columns)
    names = several or [the_one(words[-1], table.columns, "column")]
    at = [table.columns.index(name) for name in names]
    return [row[index] for row in rows_with(table, words[:-1]) for index in at]


def rows_with(table: Table, words: Sequence[str]) -> list[list[Cell]]:
    return [row for row in table.rows if all(_has(table, row, word) for word in words)]


def _has(table: Table, row: Sequence[Cell], word: str) -> bool:
    name, equals, rest = word.partition("=")
    if equals and name in table.columns:
        return _is(row[table.columns.index(name)], rest)
    return any(_is(cell, word) for cell in row)


def _is(cell: Cell, word: str) -> bool:
    if word.startswith("~"):
        return word[1:].casefold() in str(cell).casefold()
    if formatting.is_number(cell):
        return re.fullmatch(NUMBER, word) is not None and _value(word) == cell
    return word.casefold() == str(cell).casefold()


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))


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
        try:
            match = re.search(pattern, text)
        except re.error as error:
            raise BadReference(f"/{pattern}/ is no regular expression: {error}") from None
        if match is None:
            raise BadReference(f"/{pattern}/ is not in {text[:200]!r}")
        text = match[1] if match.re.groups else match[0]
    return [_value(each) for each in re.findall(NUMBER, text)]
