"""Numbers in the pages are those of the records they name; the tool that says so finds every fault planted here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from quoted_numbers import EVERY_NUMBER, PAGES, Page, main, page
from references import BadReference, Reference, Sources
from sample_records import GPU, record_of

from fathom.core.store import Store

Make = Callable[..., Page]


@cache
def sources() -> Sources:
    return Sources()


@cache
def committed(name: str) -> Page:
    return page(name, sources())


@pytest.mark.parametrize("name", PAGES)
def test_every_number_is_what_its_record_says(name: str) -> None:
    assert [str(problem) for problem in committed(name).stale] == []


@pytest.mark.parametrize("name", PAGES)
def test_every_number_beside_a_record_names_its_source(name: str) -> None:
    assert [str(problem) for problem in committed(name).without_source()] == []


@pytest.mark.parametrize("name", EVERY_NUMBER)
def test_the_pages_about_records_refer_to_many(name: str) -> None:
    """An empty page, or one whose comments were lost, would pass the tests above."""
    assert len(committed(name).sourced) > 30


@pytest.mark.parametrize("name", PAGES)
def test_no_comment_begins_a_line_of_prose(name: str) -> None:
    """In Markdown such a line is HTML, and ends the paragraph before it."""
    assert re.findall(r"^ {0,3}<!--.*-->.*\S.*$", committed(name).text, flags=re.MULTILINE) == []


@pytest.mark.parametrize("name", PAGES)
def test_a_changed_digit_is_found_where_it_stands_and_put_right(name: str) -> None:
    original = committed(name)
    places = [start for start, _ in original.sourced if original.text[start].isdigit()]
    for at in (places[0], places[len(places) // 2], places[-1]):
        digit = "3" if original.text[at] != "3" else "4"
        text = original.text[:at] + digit + original.text[at + 1 :]
        changed = Page(name, text, sources(), original.every_number)
        assert [problem.line for problem in changed.stale] == [text.count("\n", 0, at) + 1]
        assert changed.rewritten == original.text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a folder of records, a benchmark, a text and a published table."""
    store = Store(tmp_path / "results" / "lab")
    for workload, step_s in (("vgg", 2.0), ("memnet", 0.0041), ("deepq", 1234.5678)):
        store.add(record_of(workload, step_s=[step_s] * 10))
    store.add(record_of("vgg", place=GPU, spec={"device": "cuda"}, step_s=[0.5] * 10))
    results = [
        {"name": "one", "ratio": {"low": 0.9, "high": 1.25}},
        {"name": "two", "ratio": {"low": 0.95, "high": 1.5}},
    ]
    (tmp_path / "results" / "bench.json").write_text(json.dumps({"held": 45, "of": 48, "zero": 0, "results": results}))
    (tmp_path / "results" / "log.txt").write_text("round 1: loss 5.88\nround 2: loss 4.94\n")
    published = tmp_path / "src" / "fathom" / "published"
    published.mkdir(parents=True)
    (published / "table.csv").write_text("workload,RUN\nVGG,0.9288\nMemnet,\n")
    return tmp_path


@pytest.fixture
def make(root: Path) -> Make:
    def made(text: str, every_number: bool = True) -> Page:
        return Page("page.md", text, Sources(root), every_number)

    return made


STEP = 'results/lab phases "Step times"'


@pytest.mark.parametrize(
    ("stands", "reference", "found"),
    [
        ("9.00", f'{STEP} vgg machine~ "step, median (ms)"', None),  # a word that no row has
        ("9.0", f'{STEP} vgg ~laptop "step, median (ms)"', "2000.0"),
        ("9", f'{STEP} workload=vgg "machine=Laptop CPU, 4 cores" "step, median"', "2000"),
        ("9.99", f'{STEP} memnet "step, median (ms)"', "4.10"),
        ("9", f'{STEP} deepq "step, median (ms)"', "1,234,568"),
        ("9", f'{STEP} deepq "step, median (ms)" .2g', "1,200,000"),
        ("9", f'{STEP} memnet "step, median (ms)" .2g', "4.1"),
        ("9", f'{STEP} vgg "step, median (ms)"', None),  # two rows
        ("9", f'max {STEP} vgg "step, median (ms)"', "2000"),
        ("9 to 10", f'range {STEP} vgg "step, median (ms)"', "500 to 2000"),
        ("9", f'range {STEP} memnet "step, median (ms)"', "4"),
        ("9, 9", "list results/bench.json results ratio high .2f", "1.25, 1.50"),
        ("9.9", "list results/bench.json results name=two ratio *", "1.0, 1.5"),
        ("9", "sum results/bench.json results ratio low .2f", "1.85"),
        ("9", "count results/lab runs vgg", "2"),
        ("9", f"count {STEP} nobody", "0"),
        ("9", "results/bench.json held over results/bench.json of %", "94"),
        ("9.99", "results/bench.json held over results/bench.json of", "0.94"),
        ("9", "results/bench.json held over results/bench.json zero", None),
        ("9 s", "results/lab runs deepq step_median_s duration", "20 min 35 s"),
        ("1 min 9 s", "results/lab runs vgg cores=None ~laptop step_median_s duration", "2 s"),
        ("9", "results/lab runs memnet step_median_s us", "4100"),
        ("9.99", 'results/log.txt "/round 2: loss (.*)/"', "4.94"),
        ("9.99", 'results/log.txt "/round 3: loss (.*)/"', None),
        ("9.99", 'results/log.txt "/round (/"', None),
        ("9", "results/log.txt", None),  # four numbers
        ("9", "published/table vgg RUN %", "93"),
        ("9", "published/table memnet RUN or –", "–"),
        ("–", "published/table vgg RUN .3f", "0.929"),
        ("9", "published/table speech RUN", None),
        ("9", "published/nothing speech RUN", None),
        ("9", "results/elsewhere phases x y", None),
        ("9", "results/lab fazes x y", None),
        ("9", "results/lab phases", None),
        ("9", "results/lab", None),
        ("9", 'results/lab phases "No such table" vgg x', None),
        ("9", f"{STEP} vgg nothing", None),
        ("9", "results/bench.json nothing", None),
        ("9", "results/bench.json results", None),
        ("9", "a comment of another kind", None),
    ],
)
def test_a_reference_is_found_and_written_or_says_what_is_wrong(
    make: Make, stands: str, reference: str, found: str | None
) -> None:
    text = f"# Title\n\nIt takes {stands}<!-- {reference} --> of it.\n"
    made = make(text)
    (problem,) = made.stale
    assert problem.line == 3
    if found is None:
        assert made.rewritten == text
        return
    assert f"{stands!r} stands here, {found!r} is what {reference} says" in str(problem)
    assert made.rewritten == f"# Title\n\nIt takes {found}<!-- {reference} --> of it.\n"
    assert make(made.rewritten).stale == []
    assert make(made.rewritten).rewritten == made.rewritten


def test_several_numbers_in_a_text_are_selected_from_as_rows_are(root: Path) -> None:
    (root / "results" / "log.txt").write_text("error 12.85 (12.4 to −3.3)")
    found = {
        how: Sources(root).numbers(Reference.parse(f"{how} results/log.txt"))
        for how in ("first", "last", "min", "median", "max", "range", "list")
    }
    assert found == {
        "first": [12.85],
        "last": [-3.3],
        "min": [-3.3],
        "median": [12.4],
        "max": [12.85],
        "range": [-3.3, 12.85],
        "list": [12.85, 12.4, -3.3],
    }
    assert Reference.parse("first results/log.txt").written([12.85], "9.9") == "12.9"
    assert Reference.parse("last results/log.txt").written([-0.04], "9.9") == "0.0"


def test_an_ambiguous_reference_names_what_fits(root: Path) -> None:
    with pytest.raises(BadReference, match="95 % from.*95 % to"):
        Sources(root).numbers(Reference.parse(f'{STEP} memnet "95 %"'))


def test_a_changed_record_makes_the_page_stale(root: Path, make: Make) -> None:
    text = "1<!-- count results/lab runs memnet -->\n"
    assert make(text).stale == []
    Store(root / "results" / "lab").add(record_of("memnet", step_s=[0.0042] * 10))
    assert [problem.text for problem in make(text).stale] == [
        "'1' stands here, '2' is what count results/lab runs memnet says"
    ]


def test_an_unreadable_record_is_a_problem_each_time(root: Path) -> None:
    (root / "results" / "lab" / "broken.json").write_text("{")
    found = Sources(root)
    for _ in range(2):
        with pytest.raises(BadReference, match=r"broken\.json"):
            found.numbers(Reference.parse("count results/lab runs"))


TABLE = f"""<!-- table
rows: {STEP} ~laptop : workload
ours: {STEP} ~laptop {{workload}} "step, median (ms)"
published: published/table {{workload}} RUN or –
-->
| workload | ours | published | why |
|---|---:|---|---|
| vgg | 7 ms | 0.93 | convolution |
| ghost | 3 | – | gone |
| memnet | 4.1 ms | – | waiting |
"""


def test_a_table_loses_rows_gains_rows_and_keeps_what_a_hand_wrote(make: Make) -> None:
    made = make(TABLE)
    assert [problem.text.partition(" is what")[0] for problem in made.stale] == [
        "the records have no row ghost any more",
        "the records have a row deepq, the table not",
        "'7' stands here, '2000'",
    ]
    assert [problem.line for problem in made.stale] == [9, 6, 8]
    assert made.rewritten.splitlines()[7:] == [
        "| vgg | 2000 ms | 0.93 | convolution |",
        "| memnet | 4.1 ms | – | waiting |",
        "| deepq | 1,234,568 | – | ? |",
    ]
    assert [problem.text for problem in make(made.rewritten).stale] == ["'why' is still to be written by hand"]
    assert make(made.rewritten.replace("?", "games")).stale == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("ours: ", "hours: ", "the table has no column 'hours'"),
        ("ours: ", "ours ", "the table has no column 'ours results/lab"),
        ("| ghost | 3 | – | gone |", "| ghost | 3 | gone |", "3 cells under 4 columns"),
        (" : workload", " : worklord", "0 names fit 'worklord' as a column"),
        ("| 7 ms |", "| fast |", "no number stands in 'fast'"),
        ("| workload | ours", "Prose.\n\n| workload | ours", "no table follows"),
    ],
)
def test_a_table_whose_comment_does_not_fit_it_is_a_problem(make: Make, before: str, after: str, problem: str) -> None:
    assert any(problem in each.text for each in make(TABLE.replace(before, after)).stale)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("It takes 5.3 ms.", ["5.3"]),
        ("It takes 2<!-- count results/lab runs vgg --> ms, or 3.", ["3"]),
        ("From 5 to 7 % (n = 12), ±4, 1,234.5 and -8.", ["5", "7", "12", "4", "1,234.5", "-8"]),
        ("In 2016 an H200, VGG-19, top-1, the 75th, i7-6700K, Figure 3 and Table 12 under torch 2.11.", []),
        ("Run `fathom scale --cores 16`, see [page 3](results/4.md).", ["3"]),
        ("```\nfathom repeat 200\n```", []),
        ("Of 95 % <!-- not from records: 95 (level) --> and 96 %.", ["96"]),
        ("<!-- not from records: 95 -->\n\nAnother paragraph: 95.", ["95"]),
        ("<!-- not from records, on this page: 95 -->\n\nAnother paragraph: 95.", []),
        ("| a | b |\n|---|---|\n| 1 | 2 |", ["1", "2"]),
    ],
)
def test_numbers_without_a_source_are_listed(make: Make, text: str, missing: list[str]) -> None:
    assert [problem.text for problem in make(text + "\n").without_source()] == [
        f"{number} names no source" for number in missing
    ]


def test_on_other_pages_only_paragraphs_that_name_a_record_are_looked_at(make: Make) -> None:
    text = (
        "It takes 5 s.\n\nAs `fathom analyse phases results/lab` says,\nit takes 6 s.\n\nOf yours, results/x has 7.\n"
    )
    (problem,) = make(text, every_number=False).without_source()
    assert (problem.line, problem.text) == (4, "6 names no source")


def test_the_command_lists_problems_writes_when_asked_and_exits_by_what_is_left(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = "It takes 5<!-- results/bench.json held --> of 48<!-- results/bench.json of -->.\n"
    (root / "README.md").write_text(stale)
    assert main(["README.md"], root) == 1
    assert capsys.readouterr().out == "README.md:1: '5' stands here, '45' is what results/bench.json held says\n"
    assert (root / "README.md").read_text() == stale
    assert main(["README.md", "--write"], root) == 0
    assert capsys.readouterr().out == "README.md: written anew, 1 change\n"
    assert (root / "README.md").read_text() == stale.replace("takes 5", "takes 45")
    assert main(["README.md"], root) == 0
    assert capsys.readouterr().out == ""
