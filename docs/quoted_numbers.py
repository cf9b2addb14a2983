"""The numbers in the pages, each from the record it names: lists the stale ones, or writes them anew (--write).

    python docs/quoted_numbers.py          # lists stale numbers and those without a source; exit code 1 if any
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

A title or column is given in full or by a part that only one has; * stands for anything, and of columns takes all that
fit. A row has all cells that are given: CELL in any column, COLUMN=CELL in that one, ~CELL as a part. Words with spaces
stand in quotes. "/REGEX/" at the end takes its group from a text. Where several numbers are selected, the first word
says what is made of them: min, median, max, mean, first, last, sum, count (of rows: no column is given), range ("5 to
7") or list ("5, 6, 7"). `REFERENCE over REFERENCE` is a quotient.

The number keeps its decimals. `.1f` asks for one decimal, `.2g` for two significant digits; `%`, `ms`, `us` multiply;
`duration` writes seconds as in "8 min 49 s". `or –` writes a dash where nothing is selected.

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
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from references import NUMBER, ROOT, WORD, BadReference, Reference, Sources, rows_with, the_one

from fathom.core import formatting

EVERY_NUMBER = ("docs/figure-3.md", "docs/ten-years.md", "docs/learning.md", "results/README.md")  # names its source
WHERE_A_RECORD_IS_NAMED = (
    "README.md",
    "docs/method.md",
    "docs/ranks.md",
    "docs/advise.md",
    "docs/cost.md",
    "docs/energy.md",
    "docs/engines.md",
    "docs/feed.md",
    "docs/frameworks.md",
    "docs/inference-engines.md",
    "docs/predict.md",
)  # in paragraphs that name something below results/
PAGES = (*EVERY_NUMBER, *WHERE_A_RECORD_IS_NAMED)

FREE_NUMBER = re.compile(rf"(?<![\w.,/=-]){NUMBER}(?!\w|-\w|\.\d|,\d)")
NAMES = re.compile(r"(?:Figures?|Figs?\.|Tables?|torch|TensorFlow|Python) [\d.]+(?: and \d+)?")
YEAR = re.compile(r"(?:19[89]|20[0-3])\d")
COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
NOT_FROM_RECORDS = re.compile(r"not from records(, on this page)?:(.*)", re.DOTALL)

Edit = tuple[int, int, str]  # from, to, and what to write there


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
        for row in rows[1:]:
            if len(row) != len(columns):
                self.stale.append(self._problem(row[0][0], f"{len(row)} cells under {len(columns)} columns"))
                return
        formulas = {name.strip(): formula for name, _, formula in (line.partition(": ") for line in lines)}
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
        if table is None:
            return
        for line in re.compile(r"\|[^\n]*\n?").finditer(self.text, table.start(1), table.end()):
            if not re.fullmatch(r"[|:\s-]+", line[0]):
                bars = [line.start() + bar.start() for bar in re.finditer(r"(?<!\\)\|", line[0])]
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
                self.edits.append((row[0][0] - 1, self._next_line(row), ""))
        added = ""
        for key in wanted:
            if key not in keys:
                self.stale.append(
                    self._problem(rows[0][0][0], f"the records have a row {' | '.join(key)}, the table not")
                )
                added += self._new_row(dict(zip(columns, key, strict=False)), columns, formulas)
        if added:
            self.edits.append((self._next_line(rows[-1]), self._next_line(rows[-1]), added))
        kept = [row for row, key in zip(body, keys, strict=True) if key in wanted]
        self.sourced += [cell for row in kept for cell in row[:width]]
        return kept

    def _next_line(self, row: Sequence[tuple[int, int]]) -> int:
        return self.text.find("\n", row[-1][1]) + 1 or len(self.text)

    def _wanted(self, formula: str) -> list[tuple[str, ...]]:
        selection, _, names = formula.rpartition(" : ")
        words = Reference.parse(selection).words
        if words[0].startswith("published/") or len(words) < 3:
            raise BadReference("rows: are those of a table of a question")
        table = self.sources.table(words[0], words[1], words[2])
        at = [
            table.columns.index(the_one(name.replace('"', ""), table.columns, "column")) for name in WORD.findall(names)
        ]
        found = [tuple(formatting.cell(row[index]) for index in at) for row in rows_with(table, words[3:])]
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


def main(words: Sequence[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Numbers in the pages against the records that they name.")
    parser.add_argument("pages", nargs="*", default=PAGES, help="by their paths in the repository")
    parser.add_argument("--write", action="store_true", help="put the numbers of the records into the pages")
    arguments = parser.parse_args(words)
    sources, problems = Sources(root), 0
    for name in arguments.pages:
        shown = page(name, sources)
        if arguments.write and shown.rewritten != shown.text:
            (root / name).write_text(shown.rewritten, encoding="utf-8")
            print(f"{name}: written anew, {formatting.count(len(shown.edits), 'change')}")
            shown = page(name, sources)
        for problem in (*shown.stale, *shown.without_source()):
            print(problem)
            problems += 1
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
