"""Which kinds of deep learning are covered? Table I of the 2016 paper, with the workloads measured here beside it.

The paper marks features of 16 papers on hardware for deep learning. A feature is covered here where a run succeeded: a
learning task by training, inference by inference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fathom import published
from fathom.analysis.finding import Cell, Chart, Finding, Series, Table, not_measured
from fathom.analysis.selection import usable, workload_order
from fathom.core.formatting import count, listed
from fathom.core.record import Record
from fathom.core.spec import PHASES

TITLE = "Which kinds of deep learning are covered?"
ORDER = 140
MARK = "×"  # as in Table I
INFERENCE = "inference"
FEATURES = [feature for own in published.CATEGORIES.values() for feature in own]


def analyse(records: Sequence[Record]) -> Finding:
    phases: dict[str, set[str]] = {}
    sound, notes = usable(records, False, PHASES)
    for record in sound:
        phases.setdefault(record.spec.workload, set()).add(record.spec.phase)
    facts = {each.name: each for each in published.workloads() if each.name in phases}
    if not facts:
        return not_measured("survey", TITLE, "fathom study", notes)
    covered = {name: features_of(facts[name], phases[name]) for name in sorted(facts, key=workload_order)}
    depth = max(each.layers for each in facts.values())
    return Finding(
        question="survey",
        title=TITLE,
        summary=_summary(covered, depth),
        tables=[_coverage_table(covered), _survey_table(covered, depth)],
        charts=[_chart(covered)],
        notes=[*_notes([name for name in phases if name not in facts]), *notes],
    )


def features_of(facts: published.WorkloadFacts, phases: set[str]) -> set[str]:
    """The features of Table I that runs of a workload in these phases have."""
    styles = {published.STYLES[style] for style in facts.style.split(", ") if style in published.STYLES}
    tasks = {facts.task.lower()} if "train" in phases else set()
    return styles | tasks | ({INFERENCE} if "infer" in phases else set()) | set(published.DOMAINS[facts.dataset])


def _papers() -> list[published.SurveyedPaper]:
    return [paper for paper in published.survey() if paper.reference is not None]


def _with(feature: str) -> list[published.SurveyedPaper]:
    return [paper for paper in _papers() if feature in paper.features]


def _summary(covered: Mapping[str, set[str]], depth: int) -> str:
    ours = set.union(*covered.values())
    theirs = [feature for feature in FEATURES if _with(feature)]
    missing = [feature for feature in FEATURES if feature not in theirs]
    absent = [feature for feature in FEATURES if feature not in ours]
    sentences = [
        f"{count(len(covered), 'workload')} measured here: {len(ours)} of the {len(FEATURES)} features of Table I; the "
        f"{len(_papers())} papers that it surveys: {len(theirs)}, none with {' or '.join(missing)} learning.",
        f"The deepest network has {depth} layers here and {max(paper.layers for paper in _papers())} there.",
    ]
    return " ".join([*sentences, f"Not measured here: {listed(absent)}."] if absent else sentences)


def _coverage_table(covered: Mapping[str, set[str]]) -> Table:
    rows: list[list[Cell]] = []
    suite = published.survey()[-1]
    for category, features in published.CATEGORIES.items():
        for feature in features:
            ours = [name for name, own in covered.items() if feature in own]
            published_cells: list[Cell] = [len(_with(feature)), MARK if feature in suite.features else ""]
            rows.append([category, feature, *published_cells, len(ours), listed(ours)])
    columns = ["category", "feature", f"papers of {len(_papers())}", "Fathom, 2016", "workloads here", "which"]
    return Table(title="Features of Table I: published, and measured here", columns=columns, rows=rows, leading=True)


def _survey_table(covered: Mapping[str, set[str]], depth: int) -> Table:
    ours = set.union(*covered.values())
    rows: list[list[Cell]] = []
    for paper in published.survey():
        reference = "" if paper.reference is None else f" [{paper.reference}]"
        marks: list[Cell] = [MARK if feature in paper.features else "" for feature in FEATURES]
        rows.append([f"{paper.name}, {paper.authors}{reference}", paper.year, paper.layers, *marks])
    rows.append(["measured here", None, depth, *(MARK if feature in ours else "" for feature in FEATURES)])
    return Table(title="Table I in full", columns=["paper", "year", "layers", *FEATURES], rows=rows)


def _chart(covered: Mapping[str, set[str]]) -> Chart:
    papers, suite = len(_papers()), len(covered)
    theirs = [100 * len(_with(feature)) / papers for feature in FEATURES]
    ours = [100 * sum(feature in own for own in covered.values()) / suite for feature in FEATURES]
    return Chart(
        kind="bar",
        title="Share of papers and of workloads with each feature",
        x_title="feature of Table I",
        y_title="share (%)",
        unit="%",
        series=[
            Series(name=f"{papers} papers, published in 2016", role="published", x=FEATURES, y=theirs),
            Series(name=f"{suite} workloads measured here", x=FEATURES, y=ours),
        ],
    )


def _notes(others: Sequence[str]) -> list[str]:
    notes = [
        f"Published: {published.SOURCES['fathom_table1_survey']}; layers are those of the deepest network of a paper.",
        "Style, layers, task and data set of a workload are Table II's; the domain follows from the data set, which is "
        "our reading: the paper marks its suite as a whole. A network that is none of the three styles has no mark.",
    ]
    return [*notes, f"Not in Table II, so not marked: {listed(sorted(others))}."] if others else notes
