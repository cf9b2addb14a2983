"""benchmarks/interval_coverage.py: which launches count as repeated, and what it counts of them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from sample_records import failed_record, launch, record_of

from fathom.core.store import Store

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "interval_coverage.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("interval_coverage", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["interval_coverage"] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def test_launches_of_one_spec_and_machine_are_repeated_ones(script: ModuleType) -> None:
    repeated = [launch("vgg", 1.0), launch("vgg", 2.0)]
    once = [launch("vgg", 1.0, gpu=True), launch("alexnet", 1.0), failed_record("vgg"), record_of("vgg")]
    (runs,) = script.repeated([*repeated, *once]).values()
    assert runs == repeated


def test_each_launch_is_predicted_from_the_others(script: ModuleType) -> None:
    alike = script.next_launch([1.0, 1.01, 1.02, 1.03])
    assert (alike.held, alike.of) == (4, 4)
    apart = script.next_launch([1.0, 1.001, 1.002, 1.003, 2.0])
    assert (apart.held, apart.of) == (4, 5), "the slow launch is not predicted by the others"
    assert script.next_launch([1.0]).of == 0


def test_the_interval_of_one_process_is_held_against_every_other(script: ModuleType) -> None:
    steps = [[1.0] * 10, [1.0] * 10, [2.0] * 10]
    found = script.between_launches([script.median_interval([each]) for each in steps])
    assert (found.held, found.of) == (2, 6)


def test_some_launches_are_held_against_all_where_there_are_many(script: ModuleType) -> None:
    assert script.of_some([1.0] * 19, 5).of == 0
    many = script.of_some([1 + 0.01 * number for number in range(40)], 5)
    assert many.of == script.SUBSETS
    assert many.held >= 0.9 * many.of


def test_the_document_has_the_counts_that_are_printed(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for wall_s in (1.0, 1.1, 1.2):
        Store(tmp_path / "records").add(launch("vgg", wall_s))
    out = tmp_path / "coverage.json"
    monkeypatch.setattr(sys, "argv", ["interval_coverage.py", str(tmp_path / "records"), "--out", str(out)])
    script.main()
    document = json.loads(out.read_text())
    wall = document["totals"]["next launch's wall time"]
    assert (wall["held"], wall["of"]) == (3, 3)
    assert "next launch's wall time                       3 of 3 (100%)" in capsys.readouterr().out
