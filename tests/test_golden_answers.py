"""Every number that the committed records answer with, against a stored copy: a change of code changes none of them.

The copy holds, for each folder of records and each question, the numbers of all tables and then of all charts, in order
and to nine significant digits. Where a number is meant to change, write the copy anew and say why in the commit:

    PYTHONPATH=src python tests/test_golden_answers.py
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fathom.analysis.finding import Finding, analyse
from fathom.core import plugins
from fathom.core.record import SCHEMA, Record
from fathom.core.store import read

RESULTS = Path(__file__).parents[1] / "results"
GOLDEN = Path(__file__).parent / "golden" / "answers.json.gz"
STUDIES = {  # name in the copy -> folders that are read together
    "neoverse-n1": ["neoverse-n1"],
    "h200": ["h200"],
    "both machines": ["neoverse-n1", "h200"],
    "h200-learning": ["h200-learning"],
    "h200-learning/earlier": ["h200-learning/earlier"],
    "h200-learning/validation": ["h200-learning/validation"],
}
DIGITS = 9
TOLERANCE = 1e-7  # relative: what another processor's rounding may come to, and no change of a method

Answers = dict[str, dict[str, list[float]]]  # study -> question -> numbers


def numbers(finding: Finding) -> list[float]:
    """The numbers of its tables row by row, then of its charts series by series, x before y."""
    rows = (cell for table in finding.tables for row in table.rows for cell in row)
    points = (value for chart in finding.charts for series in chart.series for value in (*series.x, *series.y))
    return [
        float(value) for value in (*rows, *points) if isinstance(value, int | float) and not isinstance(value, bool)
    ]


@cache
def records(study: str) -> list[Record]:
    problems: list[str] = []
    found = read([RESULTS / folder for folder in STUDIES[study]], problems.append)
    assert problems == []
    return found


@cache
def golden() -> Answers:
    stored: Answers = json.loads(gzip.decompress(GOLDEN.read_bytes()))
    return stored


def first_difference(stored: Sequence[float], found: Sequence[float]) -> str | None:
    """What differs first, in words; None where nothing does."""
    for index, (before, after) in enumerate(zip(stored, found, strict=False)):
        if after != pytest.approx(before, rel=TOLERANCE, abs=1e-12, nan_ok=True):
            return f"number {index} of {len(stored)} was {before!r} and is {after!r}"
    if len(stored) != len(found):
        return f"there were {len(stored)} numbers and there are {len(found)}"
    return None


def cases() -> Iterator[Any]:
    for study, answers in golden().items():
        for question in answers:
            yield pytest.param(study, question, id=f"{study}-{question}")


@pytest.mark.parametrize(("study", "question"), list(cases()))
def test_the_records_give_the_numbers_they_gave(study: str, question: str) -> None:
    stored = golden()[study][question]
    difference = first_difference(stored, numbers(analyse(question, records(study))))
    assert difference is None, difference


def test_the_copy_has_numbers_of_every_study_and_is_small() -> None:
    assert golden().keys() == STUDIES.keys()
    assert all(any(answers.values()) for answers in golden().values())
    assert sum(len(each) for answers in golden().values() for each in answers.values()) > 50_000
    assert GOLDEN.stat().st_size < 300_000


def test_the_records_are_older_than_todays_schema() -> None:
    """They are read as they were committed: what upgrades an old record is part of what is tested here."""
    paths = [path for folders in STUDIES.values() for folder in folders for path in (RESULTS / folder).glob("*.json")]
    assert min(json.loads(path.read_bytes())["schema"] for path in paths) < SCHEMA


def test_one_changed_digit_is_found() -> None:
    stored = golden()["h200"]["phases"]
    assert first_difference(stored, stored) is None
    changed = [*stored[:7], stored[7] * (1 + 1e-6), *stored[8:]]
    assert first_difference(stored, changed) == f"number 7 of {len(stored)} was {stored[7]!r} and is {changed[7]!r}"
    assert "there are" in str(first_difference(stored, stored[:-1]))


def write_golden() -> None:
    """Answers every question anew and stores the numbers; questions without any number are left out."""
    answers: Answers = {}
    for study in STUDIES:
        found = {question: numbers(analyse(question, records(study))) for question in plugins.names("questions")}
        answers[study] = {
            question: [float(f"{value:.{DIGITS}g}") for value in values] for question, values in found.items() if values
        }
    text = json.dumps(answers, separators=(",", ":"))
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{GOLDEN}: {GOLDEN.stat().st_size} bytes")


if __name__ == "__main__":
    write_golden()
