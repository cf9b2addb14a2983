"""The report as text: what it says, and that nothing in it can break out of its place."""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from subprocess import run
from typing import Any

import plotly.graph_objects as go
import pytest
from markdown_it import MarkdownIt
from sample_report import AWKWARD, DRAWING, GPU, HOSTILE, any_finding, record, sample_findings, sample_records
from test_ranks_finding import job

from fathom import report
from fathom.analysis import questions as shipped
from fathom.analysis.finding import Chart, Finding, Image, Series, Table, analyse, questions
from fathom.core import formatting, plugins
from fathom.core.errors import BadOption
from fathom.core.record import Sections
from fathom.core.spec import RunSpec
from fathom.report import charts, runs
from fathom.report.machines import machines
from fathom.report.method import method
from fathom.report.page import _facts
from fathom.report.text import chart_table


class Page(HTMLParser):
    """A strict look at a page: what is nested where, every id and link, the scripts, and the text a reader sees."""

    VOID = frozenset({"meta", "link", "br", "polyline"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.titles: list[str] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert not [name for name in given if name.startswith("on")], given
        assert "src" not in given
        self.tags.append(tag)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if "href" in given else []
        self.titles += [given["title"] or ""] if "title" in given else []
        if tag == "script":
            self.scripts.append((given.get("type"), ""))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            kind, before = self.scripts[-1]
            self.scripts[-1] = (kind, before + data)
        elif not self.open or self.open[-1] != "style":
            self.text += data

    @property
    def figures(self) -> list[dict[str, Any]]:
        return [json.loads(text) for kind, text in self.scripts if kind == "application/json"]


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(report.html(sample_records(), sample_findings(), "A study"))


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without Plotly's five megabytes, where many are made."""
    monkeypatch.setattr("fathom.report.page._plotly", lambda: "")


def texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in texts(inner)]
    return [value] if isinstance(value, str) else []


def test_the_page_is_whole_and_reaches_for_nothing_outside_it(page: Page) -> None:
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    inside = [link for link in page.links if link != "data:,"]
    assert inside
    assert all(link[0] == "#" and link[1:] in page.ids for link in inside)


def test_text_from_outside_is_shown_letter_by_letter_and_is_never_markup(page: Page) -> None:
    assert page.text.count(HOSTILE) == 5  # in a table, a finding's note, a chart's, a run's, and a reason
    assert "alert" not in "".join(text for kind, text in page.scripts if kind is None)
    assert page.tags.count("script") == len(page.figures) + 2  # the charts' data, Plotly, our own
    quoted = [text for figure in page.figures for text in texts(figure) if "alert" in text]
    assert quoted
    assert not any("<script" in text or "</script" in text for text in quoted)
    assert any("&lt;/script&gt;" in text for text in quoted)  # Plotly turns it back into letters


def test_every_chart_is_a_figure_that_plotly_accepts(page: Page) -> None:
    assert len(page.figures) == sum(len(finding.charts) for finding in sample_findings())
    assert {kind for finding in sample_findings() for kind in (chart.kind for chart in finding.charts)} == {
        *charts.KINDS
    }
    for figure in page.figures:
        go.Figure(data=figure["data"], layout=figure["layout"])  # raises at a property or value it does not know
        assert figure["height"] > 0
        assert figure["least_width"] > 0


def test_colours_of_charts_are_names_that_the_style_defines(page: Page) -> None:
    used = {text for figure in page.figures for text in texts(figure) if text.startswith("var(")}
    style = (Path(report.__file__).parent / "style.css").read_text()
    defined = {f"var({name})" for name in re.findall(r"(--\w+): light-dark", style)}
    assert len(used) > 15
    assert used <= defined


def test_what_was_not_measured_is_a_dash_that_says_so(page: Page) -> None:
    missing = sum(cell is None for table in all_tables() for row in table.rows for cell in row)
    assert missing > 10
    assert page.text.count(formatting.DASH) >= missing
    assert page.titles.count("not measured") == missing


def all_tables() -> list[Table]:
    records = sample_records()
    own = [runs.headline(records), runs.every_run(records), runs.failed(records)]
    return own + [table for each in sample_findings() for table in each.tables]


def test_each_sentence_of_an_answer_is_a_paragraph() -> None:
    said = "On A, 16 cores: 1.5 times (vgg infer, 2.1 to 3.0). 25 of 30 differ. Intel(R) Xeon(R), 2 cores: 0.5."
    table = Table(title="t", columns=["a"], rows=[[1]])
    page = report.html([], [Finding(question="mine", title="?", summary=said, tables=[table])], "A study")
    three = "<p>On A, 16 cores: 1.5 times (vgg infer, 2.1 to 3.0).</p><p>25 of 30 differ.</p><p>Intel(R) Xeon(R), 2 "
    assert page.count(three) == 2  # in the summary, and above its tables


def test_the_page_weighs_little_beside_plotly() -> None:
    from plotly.offline import get_plotlyjs

    text = report.html(sample_records(), sample_findings(), "A study")
    assert text.count("plotly.js v") == 1
    assert len(text.encode()) - len(get_plotlyjs().encode()) < 250_000


def test_jobs_of_ranks_are_listed_by_their_number_and_not_as_they_ran() -> None:
    jobs = [replace(job(ranks, 0.05), started=f"2026-01-0{day}") for day, ranks in enumerate((8, 1, 16, 2), start=1)]
    table = runs.headline(jobs)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [(row["ranks"], row["scaling"]) for row in rows] == [(1, None), (2, "weak"), (8, "weak"), (16, "weak")]


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [
        ("strategy_options", [{"period": 2}, {"period": 8}], ["period=2", "period=8"]),
        ("slow_rank", [None, (1, 3.0)], [None, "rank 1, 3 times as long"]),
        ("slow_link", [None, (0, 2.0)], [None, "rank 0, 2 times as long"]),
        ("nodes", [1, 2], [None, 2]),
    ],
)
def test_jobs_of_ranks_that_differ_in_anything_are_not_pooled(name: str, values: list[Any], shown: list[Any]) -> None:
    jobs = [job(2, seconds) for seconds in (0.05, 0.5)]
    changed = [
        replace(each, spec=replace(each.spec, **{name: value})) for each, value in zip(jobs, values, strict=True)
    ]
    table = runs.headline(changed)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert sorted((row["step (ms)"], row[name]) for row in rows) == list(zip((50.0, 500.0), shown, strict=True))


def test_the_headline_is_the_median_of_each_workload_machine_and_phase() -> None:
    records = sample_records()
    table = runs.headline(records)
    assert len(table.rows) == 8 * 2 * 2
    rows = {tuple(row[:3]): dict(zip(table.columns, row, strict=True)) for row in table.rows}
    row = rows["vgg", "Example-N1, 2 cores", "infer"]
    steps = next(each.step_s for each in records if (each.spec.workload, each.spec.phase) == ("vgg", "infer"))
    median = 1000 * statistics.median(steps)
    assert row["step (ms)"] == pytest.approx(median)
    assert row["items/s"] == pytest.approx(32 / statistics.mean(steps)), "over wall time"
    interval = str(row["95 % interval (ms)"])
    assert interval.endswith(" within this process")
    low, high = (float(end) for end in interval.removesuffix(" within this process").split(" – "))
    assert low < median < high < 1.1 * low
    assert rows["vgg", "Example H200", "train"]["outcome"] == "1 of 2 failed"


def test_a_failed_run_has_a_row_and_a_reason_but_no_speed() -> None:
    broken = record("vgg", outcome="failed", reason="the loss is nan at step 3")
    (row,) = runs.headline([broken]).rows
    assert row[-4:] == [None, None, None, "failed"]
    assert runs.failed([broken]).rows[0][3] == "the loss is nan at step 3"
    assert runs.losses([broken]) == []


def test_runs_of_another_batch_have_a_row_of_their_own_and_those_without_one_have_none() -> None:
    """A user's model says its batch in no setting; a run that failed early, or a whole-program trace, has no batch."""
    broken = record("vgg", outcome="failed", step_s=[], items_per_step=None)
    program = record("vgg", spec=RunSpec(workload="vgg", kind="program"), step_s=[], items_per_step=None)
    table = runs.headline([record("vgg"), record("vgg", items_per_step=64, step_s=[0.5] * 10), broken, program])
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [(row["items/step"], row["outcome"]) for row in rows] == [(32, "1 of 3 failed"), (64, "ok")]


def test_runs_bound_to_some_cores_are_not_the_headline_unless_there_are_no_others() -> None:
    whole = record("vgg", step_s=[0.5] * 10)
    bound = record("vgg", spec=RunSpec(workload="vgg", cores=(0,)), step_s=[4.0] * 10)
    assert [row[4] for row in runs.headline([whole, bound]).rows] == [500.0]
    assert [row[4] for row in runs.headline([bound]).rows] == [4000.0]


def test_the_headline_of_a_thread_sweep_is_the_run_with_the_most() -> None:
    sweep = [record("deepq", threads=threads, step_s=[1.0 / threads] * 10) for threads in (1, 4, 2)]
    assert [row[4] for row in runs.headline(sweep).rows] == [250.0]
    own_choice = record("deepq", step_s=[0.5] * 10)
    assert [row[4] for row in runs.headline([*sweep, own_choice]).rows] == [500.0]
    assert [row[3] for row in runs.every_run(sweep).rows] == [1, 4, 2]


def test_settings_are_said_once_where_all_share_them_and_in_a_column_where_not() -> None:
    one, other = record("vgg"), record("alexnet")
    assert ("precision", "fp32") in runs.common_settings([one, other])
    half = record("vgg", spec=RunSpec(workload="vgg", precision="bf16"))
    assert "precision" not in dict(runs.common_settings([one, half]))
    table = runs.headline([one, half])
    assert [row[table.columns.index("precision")] for row in table.rows] == ["fp32", "bf16"]


def test_machines_in_words() -> None:
    on_card, beside = (
        record("vgg", machine=GPU),
        record("vgg", machine=GPU | {"gpus": []}, started="2026-11-16T10:00:00Z"),
    )
    (server,) = machines([on_card, beside])  # a CPU run does not list the card, and is of the same machine
    facts = dict(server.facts)
    assert server.name == "Example Xeon with Example H200"
    assert facts["Processor"] == "Example Xeon, 16 logical cores on 2 physical, 2 of them available to the process"
    assert facts["Accelerator memory"] == "141 GiB"
    assert facts["Throttling"] == "software power cap, software thermal slowdown"
    assert facts["Software"] == "Python 3.11.7 · torch 2.13.0 · numpy 2.4.6"
    assert facts["Runs"] == "2, 2026-11-15 01:22 UTC to 2026-11-16 10:00 UTC"
    assert _facts([on_card, replace(beside, device="cpu")])[1:3] == [(1, "machine"), (2, "devices")]
    assert _facts([record("vgg")])[1:3] == [(1, "machine"), (1, "run")], "its processor alone"
    (laptop,) = machines([record("vgg")])
    assert dict(laptop.facts)["Accelerators"] == "none used"
    assert dict(laptop.facts)["Clock governor"] == formatting.DASH


def test_the_method_is_told_from_the_records() -> None:
    told = dict(method(sample_records()))
    assert "events on the device's own clock" in told["Clocks"]
    assert "unprofiled step time: 1.20." in told["Separate passes"]
    assert "1.0 to 7.0 % of a step" in told["What adds up"]
    assert told["Data"].startswith("All data are synthetic")
    real = record("vgg", spec=RunSpec(workload="vgg", data="imagenet"), profile=None)
    told = dict(method([real]))
    assert "events" not in told["Clocks"]
    assert "No run of this report has both" in told["Separate passes"]
    assert told["Data"] == "1 run read real data (imagenet)."


def test_equal_outputs_are_listed_together_and_drawings_stay_drawings(page: Page) -> None:
    outputs = {each.workload: each for each in runs.outputs(sample_records())}
    assert outputs["autoenc"].machine == "Example-N1, 2 cores and Example H200"
    assert DRAWING in page.text


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0035241, "0.00352"), (3.5241, "3.52"), (352.41, "352"), (2014, "2014"), (35241, "35,241"), (0, "0"),
     (3.5e9, "3.50 × 10⁹"), (-2.5e-7, "−2.50 × 10⁻⁷"), (0.99999, "1.00"), (float("nan"), "nan"), (-1.5, "−1.50")],
)  # fmt: skip
def test_numbers(value: float, shown: str) -> None:
    assert formatting.number(value) == shown


def test_a_quality_that_missed_its_target_by_little_does_not_read_as_the_target() -> None:
    assert formatting.column([92.97, 93.0, 90.1], "quality") == ["92.97", "93.00", "90.10"]
    assert formatting.column([92.97, 93.0, 90.1], "step (ms)") == ["93.0", "93.0", "90.1"]
    assert formatting.median_and_range([-97.59, -98.0]) == "−97.8 (−98 to −97.59)"


def test_columns_share_their_decimals() -> None:
    assert formatting.column([12.5, 3.14159, 140.0]) == ["12.5", "3.1", "140.0"]
    assert formatting.column([35.0, 3.0, 0.0, None]) == ["35", "3", "0", "—"]
    assert formatting.column([80.25, 40.25, 0.0801], "share (%)") == ["80.2", "40.2", "0.1"]
    assert formatting.column([80.25, 40.25, 0.0301], "share (%)") == [
        "80.2",
        "40.2",
        "0.0301",
    ]  # no zero that is not one
    assert formatting.column([1521.4, 20.06, 2.034], "95 % from (ms)") == [
        "1521",
        "20.1",
        "2.03",
    ]  # very different sizes
    assert formatting.column([1e-16, 0.0]) == ["1.00 × 10⁻¹⁶", "0"]
    assert formatting.column([20000, 7, None, "x"]) == ["20,000", "7", "—", "x"]
    assert formatting.column([5e9, 1.5]) == ["5.00 × 10⁹", "1.50"]


def test_a_chart_as_a_table() -> None:
    series = [Series(name="a", x=[1, 2], y=[0.5, 0.25]), Series(name="b", x=[2, 4], y=[3.0, None])]
    lines = Chart(kind="line", title="Speed", x_title="threads", y_title="s", series=series)
    table = chart_table(lines)
    assert (table.columns, table.rows) == (["threads", "a", "b"], [[1, 0.5, None], [2, 0.25, 3.0], [4, None, None]])
    many = Chart(
        kind="scatter", title="", x_title="", y_title="s", series=[Series(name="a", x=[*range(99)], y=[*range(99)])]
    )
    assert chart_table(many).rows == [["a", 99, 49, 0, 98]]


def test_a_long_line_as_a_table_is_some_points_from_the_first_to_the_last() -> None:
    series = [Series(name="a", x=[*range(99)], y=[2 * x for x in range(99)]), Series(name="b", x=[], y=[])]
    table = chart_table(Chart(kind="line", title="", x_title="time (s)", y_title="quality", series=series))
    assert table.columns == ["", "time (s)", "quality"]
    assert [row[1] for row in table.rows] == [0, 24, 49, 74, 98]
    assert table.rows[-1] == ["a", 98, 196]
    short = [Series(name="seed 0", x=[1, 2], y=[3, 4]), Series(name="target", role="target", x=[0, 2], y=[5, 5])]
    table = chart_table(Chart(kind="line", title="", x_title="s", y_title="quality", series=short))
    assert table.rows == [["seed 0", 1, 3], ["seed 0", 2, 4], ["target", 0, 5], ["target", 2, 5]], "no dashes"


TRAINING = RunSpec(workload="vgg", kind="training")


def test_a_training_run_has_no_step_time() -> None:
    run = record("vgg", spec=TRAINING, step_s=[], losses=[], profile=None)
    timed = record("alexnet")
    assert [row[0] for row in runs.headline([run, timed]).rows] == ["alexnet"]
    assert "options" not in runs.headline([record("vgg", spec=replace(TRAINING, options={"a": 1})), timed]).columns
    assert len(runs.every_run([run, timed]).rows) == 2
    assert [heading for heading, _ in method([run])] == ["Data", "What is missing"]


@pytest.mark.usefixtures("light")
def test_a_report_of_training_runs_alone_does_not_speak_of_steps() -> None:
    run = record("vgg", spec=TRAINING, step_s=[], losses=[], profile=None)
    page = Page(report.html([run], [], "Training"))
    for text in (page.text, report.markdown([run], [], "Training")):
        assert runs.NO_HEADLINE in text
        assert "after warm-up" not in text


@pytest.mark.usefixtures("light")
def test_leading_tables_come_before_the_charts_and_others_after() -> None:
    tables = [Table(title=f"Table {n}", columns=["what"], rows=[["x"]], leading=n == 1) for n in range(3)]
    chart = Chart(kind="line", title="Curve 0", x_title="", y_title="", series=[Series(name="a", x=[1], y=[2])])
    image = Image(title="Sample 0", png="iVBORw0KGgo=")
    answer = Finding(question="mine", title="?", summary="", tables=tables, charts=[chart], images=[image])
    page = re.sub(r"<script.*?</script>", "", report.html([], [answer], "A study"), flags=re.DOTALL)
    order = ["Table 1", "Curve 0", "Sample 0", "Table 0", "Table 2"]
    for text in (page, report.markdown([], [answer], "A study")):
        assert sorted(order, key=text.index) == order


@pytest.mark.usefixtures("light")
def test_the_cells_that_report_a_problem_are_marked() -> None:
    table = Table(title="", columns=["what", "outcome"], rows=[["x", "reached"], ["y", "not reached"]], alarms=[(1, 1)])
    page = report.html([], [Finding(question="mine", title="?", summary="", tables=[table])], "A study")
    assert re.findall(r'class="alarm">([^<]*)</td>', page) == ["not reached"]
    records = [record("vgg"), record("alexnet", outcome="failed", reason="nan")]
    for own in (runs.headline(records), runs.every_run(records)):
        assert [own.rows[row][column] for row, column in own.alarms] == ["failed"]


@pytest.mark.usefixtures("light")
def test_a_question_of_another_package_is_answered_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is the registration: it says its own place, and nothing else is edited."""
    source = """
from fathom.analysis.finding import Finding, Table
TITLE = "How many runs are there?"
ORDER = 15
def analyse(records):
    table = Table(title="Runs", columns=["runs"], rows=[[len(records)]])
    return Finding(question="census", title=TITLE, summary=f"{len(records)} runs.", tables=[table])
"""
    (tmp_path / "census.py").write_text(source)
    monkeypatch.setattr(shipped, "__path__", [*shipped.__path__, str(tmp_path)])
    assert questions()[:3] == ["breakdown", "census", "phases"]
    text = report.write([record("vgg")], tmp_path / "report.md").read_text()
    titles = [plugins.load("questions", name).TITLE for name in ("breakdown", "census", "phases")]
    assert sorted(titles, key=lambda title: text.index(f"## {title}")) == titles
    monkeypatch.delitem(sys.modules, "fathom.analysis.questions.census")


def test_a_report_of_one_answer_has_its_title(tmp_path: Path) -> None:
    run = record("vgg", spec=TRAINING, step_s=[], losses=[], profile=None, sections=Sections())
    title = plugins.load("questions", "learning").TITLE
    assert report.write([run], tmp_path / "report.md").read_text().startswith(f"# {title}\n")


def test_markdown_says_the_same_and_stays_text() -> None:
    text = report.markdown(sample_records(), sample_findings(), "A study")
    parser = MarkdownIt("commonmark").enable("table")
    kinds = {token.type for token in parser.parse(text)}
    inline = {child.type for token in parser.parse(text) for child in token.children or []}
    assert "html_block" not in kinds | inline
    assert "html_inline" not in kinds | inline
    rendered = Page(parser.render(text))
    assert rendered.text.count(HOSTILE) == 7
    assert DRAWING in rendered.text
    machines_and_losses, pictures = 2 + 1, sum(len(each.charts) for each in sample_findings())
    filled = sum(bool(table.rows) for table in all_tables())
    assert rendered.tags.count("table") == filled + pictures + machines_and_losses


def test_commands_are_code_in_markdown_and_other_backticks_are_letters() -> None:
    finding = Finding(
        question="q", title="Q", summary="Run `fathom scale --runs 3`, not `<b>` or `", tables=[], charts=[]
    )
    text = report.markdown([], [finding], "A study")
    assert "Run `fathom scale --runs 3`, not \\`&lt;b&gt;\\` or \\`" in text
    unanswered = report.markdown([], [analyse(name, []) for name in questions()], "Nothing measured")
    assert "Run `fathom scale --ranks 1,2`" in unanswered
    assert "\\`" not in unanswered, "every command that would measure something"


def test_every_row_of_a_markdown_table_has_the_cells_of_its_header() -> None:
    text = report.markdown(sample_records(), sample_findings(), "A study")
    blocks = [block.split("\n") for block in text.strip().split("\n\n") if block.startswith("|")]
    assert len(blocks) > 10
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block}) == 1, block[0]


@pytest.mark.usefixtures("light")
def test_nothing_that_a_finding_may_hold_breaks_the_page_or_the_markdown() -> None:
    parser = MarkdownIt("commonmark").enable("table")
    for seed in range(100):
        findings = [any_finding(random.Random(seed))]
        page = Page(report.html([], findings, AWKWARD[seed % len(AWKWARD)]))
        assert page.open == [], seed
        assert len(page.ids) == len(set(page.ids)), seed
        for figure in page.figures:
            go.Figure(data=figure["data"], layout=figure["layout"])
        tokens = parser.parse(report.markdown([], findings, "title"))
        assert not [token for token in tokens if token.type.startswith("html")], seed


def test_a_report_is_written_whole_in_the_form_that_its_name_asks_for(tmp_path: Path) -> None:
    records = sample_records()
    written = report.write(records, tmp_path / "new" / "report.html").read_text()
    assert written.lstrip().startswith("<!doctype html>")
    assert len(Page(written).figures) > 8
    assert report.write(records, tmp_path / "report.md").read_text().startswith(f"# {report.TITLE}\n")
    (tmp_path / "file").touch()
    with pytest.raises(BadOption, match="cannot write"):
        report.write(records, tmp_path / "file" / "report.html")


def test_a_report_is_made_without_torch() -> None:
    code = "import sys; from fathom import report; report.html([], [], 't'); print('torch' in sys.modules)"
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
