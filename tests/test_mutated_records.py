"""Records from anywhere: every field of a committed record replaced by what it cannot be, and every reader of records.

A mutated record is refused with one line, or it is one that every analysis, report and table can compute with.
"""

from __future__ import annotations

import copy
import json
import math
import os
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom
from sample_records import engine_run, record_of, trial_of, trial_record

from fathom.analysis.compare import compare
from fathom.analysis.finding import analyse, questions
from fathom.analysis.frame import frame, op_frame
from fathom.analysis.labels import labelled
from fathom.core.errors import DataError
from fathom.core.record import Artifact, Learning, Point, Record
from fathom.core.store import Store
from fathom.report.page import html
from fathom.report.text import markdown

RESULTS = Path(__file__).parents[1] / "results"
BASES = {  # one of each kind, the smallest
    "timed": "neoverse-n1/memnet-train-79cbdd3d2ecb-98142e8e07f8.json",
    "profiled": "neoverse-n1/vgg-infer-9a75f98388e1-55fffdb0b827.json",
    "profiled on a GPU": "h200/deepq-infer-1fd3817479d5-9f7b55c2a62f.json",
    "program": "h200/memnet-train-da310c042881-8c84cac93708.json",
    "bound to cores": "h200/speech-train-9f0a4956b6fd-00048436775a.json",
    "training": "h200-learning-2/memnet-train-387d33b36ba8-fcf83b98b308.json",
    "training, older schema": "h200-learning/speech-train-fcc8aa24dcb3-b3d8daa3e3ad.json",
}
MADE = {"trial": "train", "trial of inference": "infer"}  # phase of a trial that is made here
SAMPLED = int(os.environ.get("FATHOM_TEST_MUTATIONS", "10"))  # of each base, that all readers see
HOSTILE = "](x)|<script>alert(1)</script>`$\x1b[31m\0"
Path_ = tuple[str | int, ...]


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels else []


WRONG: dict[str, Any] = {
    "null": None, "true": True, "a word": "x", "no text": "", "hostile text": HOSTILE, "half a letter": "\ud800",
    "zero": 0, "one": 1, "negative": -1, "a negative fraction": -0.5, "NaN": math.nan, "infinite": math.inf,
    "huge": 1e308, "tiny": 5e-324, "a large count": 2**70, "400 digits": 10**400, "a list": [], "an object": {},
    "a list of null": [None], "nested": nested(150),
}  # fmt: skip
WRONG = {kind: json.loads(json.dumps(value)) for kind, value in WRONG.items()}  # as a file would hold it


@cache
def base(name: str) -> dict[str, Any]:
    if name in MADE:
        made: dict[str, Any] = json.loads(json.dumps(trial_record(spec={"phase": MADE[name]}).to_json()))
        return made
    document: dict[str, Any] = json.loads((RESULTS / BASES[name]).read_bytes())
    return document


def places(document: Any, above: Path_ = ()) -> Iterator[Path_]:
    """Every field, and the first item of every list."""
    yield above
    inside = document.items() if isinstance(document, dict) else enumerate(document[:1]) if _is_list(document) else ()
    for key, value in inside:
        yield from places(value, (*above, key))


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def changed(document: Any, place: Path_, value: Any) -> Any:
    if not place:
        return value
    outer = copy.copy(document)
    outer[place[0]] = changed(document[place[0]], place[1:], value)
    return outer


def read(document: Any) -> Record | None:
    """As a store reads it; None where it is refused, which takes one line of some length."""
    try:
        return Record.from_json(document, "one.json")
    except DataError as error:
        line = str(error)
    assert line.startswith("one.json: ")
    assert "\n" not in line
    assert len(line) < 400
    return None


def shown_by_all(records: list[Record]) -> None:
    found = [analyse(question, labelled(records)) for question in questions()]
    page, text = html(records, found, "title"), markdown(records, found, "title")
    outside_code = re.sub(r"^(`{3,})text\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert page.encode()
    assert text.encode()
    assert "<script>alert" not in page
    assert "<script>alert" not in outside_code
    assert not re.search(r"(?<!\\)]\(x\)", outside_code)
    assert len(frame(records)) == len(records)
    op_frame(records)
    json.dumps([each.to_json() for each in found])


@pytest.mark.parametrize("name", [*BASES, *MADE])
def test_whatever_a_field_holds_it_is_refused_or_read(name: str) -> None:
    outcomes = {kind: read(changed(base(name), place, WRONG[kind])) for place in places(base(name)) for kind in WRONG}
    assert None in outcomes.values()


@pytest.mark.parametrize("name", [*BASES, *MADE])
def test_what_is_read_every_reader_can_compute_with(name: str) -> None:
    """Beside two sound records of the same run."""
    cases = [(place, kind) for place in places(base(name)) for kind in WRONG]
    random.Random(name).shuffle(cases)
    sound = Record.from_json(base(name))
    others = [replace(sound, id=f"other{number}") for number in range(2)]
    accepted = 0
    for place, kind in cases:
        if (record := read(changed(base(name), place, WRONG[kind]))) is not None:
            accepted += 1
            shown_by_all([record, *others])
        if accepted == SAMPLED:
            break
    assert accepted == SAMPLED


REFUSED: dict[str, tuple[Path_, Any]] = {
    "schema true": (("schema",), True),
    "a step of no time": (("step_s", 0), 0.0),
    "a step before its time": (("step_s", 0), -1e-3),
    "a step of NaN": (("step_s", 0), math.nan),
    "a step without end": (("step_s", 0), math.inf),
    "a step shorter than any clock": (("step_s", 0), 1e-12),
    "a machine that is a word": (("machine",), "laptop"),
    "a machine without a CPU": (("machine", "cpu"), None),
    "a CPU of no name": (("machine", "cpu", "name"), 7),
    "cores by name": (("machine", "cpu", "affinity"), ["zero"]),
    "negative memory": (("machine", "memory_bytes"), -1),
    "libraries in a list": (("machine", "libraries"), []),
    "versions that are numbers": (("machine", "libraries"), {"torch": 2}),
    "an environment of objects": (("machine", "environment"), {"A": {}}),
    "GPUs of null": (("machine", "gpus"), [None]),
    "options without a bottom": (("spec", "options"), {"x": nested(40)}),
    "a device that is a path": (("device",), "../cuda"),
    "no steps at all": (("step_s",), []),
    "a loss of NaN in a run that succeeded": (("losses", 0), math.nan),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused(case: str) -> None:
    assert read(base("timed")) is not None
    assert read(changed(base("timed"), *REFUSED[case])) is None


REFUSED_TRIALS: dict[str, tuple[str, Path_, Any]] = {
    "a turn of no time": ("trial", ("trial", "engine", "turn_step_s", 0), 0.0),
    "a turn too few": ("trial", ("trial", "engine", "turn_step_s"), [0.1]),
    "no turns": ("trial", ("trial", "eager", "turn_step_s"), []),
    "no steps": ("trial", ("trial", "engine", "steps"), 0),
    "a loss too few": ("trial", ("trial", "engine", "losses"), [1.0]),
    "a loss of NaN": ("trial", ("trial", "engine", "losses", 0), math.nan),
    "other losses, too few": ("trial", ("trial", "rounded_losses"), [[1.0]]),
    "no trial": ("trial", ("trial",), None),
    "nothing compared": ("trial of inference", ("trial", "output_difference"), None),
    "an infinite difference": ("trial of inference", ("trial", "output_difference"), math.inf),
    "a precision without a tolerance": ("trial", ("spec",), {"workload": "x", "kind": "trial", "source": "model",
                                                             "precision": "mixed"}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_TRIALS)
def test_a_trial_is_refused(case: str) -> None:
    name, place, value = REFUSED_TRIALS[case]
    assert read(base(name)) is not None
    assert read(changed(base(name), place, value)) is None


def test_losses_of_a_trial_may_be_negative() -> None:
    """As a log-likelihood is: those of other rounding, too."""
    losses = [-2.0, -3.0, -4.0]
    sides = {"eager": engine_run(0.2, losses), "engine": engine_run(0.1, losses)}
    found = read(trial_record(trial=trial_of(**sides, rounded_losses=[losses])).to_json())  # type: ignore[arg-type]
    assert found is not None
    assert found.trial is not None
    assert found.trial.disagreement("fp32") is None


def test_a_failed_run_may_hold_the_loss_that_failed_it() -> None:
    document = {**base("timed"), "outcome": "failed", "reason": "the loss is nan at step 0", "losses": [math.nan]}
    assert read(document) is not None


def learnt(artifact: Artifact) -> dict[str, Any]:
    point = Point(items=1, seconds=1.0, loss=1.0, quality=1.0)
    learning = Learning(
        metric="x", unit="%", target=None, better="higher", protocol="", quality=1.0, reached=None, seconds=1.0,
        items=1, energy_j=None, metered=None, curve=[point], artifacts=[artifact],
    )  # fmt: skip
    record = record_of(learning=learning, step_s=[], spec={"kind": "training", "warmup": 2, "steps": 10})
    return json.loads(json.dumps(record.to_json()))  # type: ignore[no-any-return]


PNG = "iVBORw0KGgo="


@pytest.mark.parametrize(
    "artifact",
    [
        Artifact(title="x", png=f"{PNG})<script>alert(1)</script>"),
        Artifact(title="x", png="AAAA"),
        Artifact(title="x", png=""),
        Artifact(title="x", columns=["a"], rows=[[1, 2]]),
        Artifact(title="x", columns=["a"], rows=[[{"b": 1}]]),
        Artifact(title="x", columns=["a"], rows=[[nested(30)]]),
    ],
)
def test_an_artifact_is_a_table_or_an_image(artifact: Artifact) -> None:
    assert read(learnt(Artifact(title="x", png=PNG))) is not None
    assert read(learnt(artifact)) is None


def test_text_of_a_record_is_only_text_in_a_report() -> None:
    """An image that was not read from a file has not been checked."""
    for artifact in (
        Artifact(title=HOSTILE, png=f"{PNG})]{HOSTILE}"),
        Artifact(title=HOSTILE, columns=[HOSTILE], rows=[[HOSTILE]]),
    ):
        record = Record.from_json(learnt(Artifact(title="x")))
        assert record.learning is not None
        learning = replace(record.learning, artifacts=[artifact], data=HOSTILE, protocol=HOSTILE)
        shown_by_all([replace(record, learning=learning, notes=[HOSTILE], answers=[HOSTILE])])
    timed = Record.from_json(base("timed"))
    machine = replace(timed.machine, cpu=replace(timed.machine.cpu, name=HOSTILE), system=HOSTILE)
    shown_by_all([replace(timed, machine=machine, notes=[HOSTILE], answers=[HOSTILE])])


def test_one_bad_record_ends_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All that is refused is named, and the sound record answers."""
    sound = Store(tmp_path).add(Record.from_json(base("timed")))
    for number, (place, value) in enumerate(REFUSED.values()):
        (tmp_path / f"bad{number}.json").write_text(json.dumps(changed(base("timed"), place, value)))
    commands: list[list[object]] = [
        ["report", tmp_path, "--out", tmp_path / "report.md"],
        ["analyse", "phases", tmp_path],
        ["export", tmp_path, "--out", tmp_path / "runs.csv"],
        ["compare", tmp_path, tmp_path],
        ["list"],
    ]
    for command in commands:
        assert fathom(monkeypatch, *command) in (0, 1), command
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        if command[0] in ("report", "analyse", "export"):
            assert told.err.count("skipped: ") == len(REFUSED), command
    assert sound.exists()


def test_a_study_goes_on_beside_a_bad_record(tmp_path: Path) -> None:
    record = Record.from_json(base("timed"))
    Store(tmp_path).add(record)
    (tmp_path / "bad.json").write_text(json.dumps({**base("timed"), "machine": None}))
    store = Store(tmp_path, record.machine)
    assert [each.id for each in store.records()] == [record.id]
    assert store.remaining([record.spec]) == []
    assert store.elsewhere() == []


def test_a_comparison_of_mutated_records_ends_in_no_traceback() -> None:
    sound = Record.from_json(base("timed"))
    cases = [(place, kind) for place in places(base("timed")) for kind in WRONG]
    random.Random(3).shuffle(cases)
    for place, kind in cases[:300]:
        if (record := read(changed(base("timed"), place, WRONG[kind]))) is not None:
            compare([sound], [record])
