"""The worked example of docs/adding.md: a workload, a question and an engine that another package brings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "karate"
Fathom = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def fathom(tmp_path_factory: pytest.TempPathFactory) -> Fathom:
    """The command line with the example installed beside Fathom, as pip installs it; records go to one folder."""
    site, records = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("records")
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    source = tmp_path_factory.mktemp("source") / "karate"  # building leaves files beside the sources
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("build"))  # what an older build left is stale
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, "--target", str(site), str(source)], check=True)
    paths = [str(Path(__file__).parents[1] / "src"), str(site)]

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fathom", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=records, env=environment)

    return run


def test_an_installed_workload_stands_in_the_list_beside_the_eight(fathom: Fathom) -> None:
    rows = {row["name"]: row for row in json.loads(fathom("list", "--json").stdout)}
    assert rows["karate"]["params"] == 8224
    assert {"alexnet", "vgg", "karate"} <= rows.keys()


def test_it_runs_with_an_installed_engine_and_answers_an_installed_question(fathom: Fathom) -> None:
    run = fathom("run", "karate", "--device", "cpu", "--preset", "tiny", "--engine", "anomaly", "--json")
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    assert record["outcome"] == "ok"
    assert record["losses"][-1] < record["losses"][0]
    answer = json.loads(fathom("analyse", "per_node", "records", "--json").stdout)
    (row,) = answer["tables"][0]["rows"]
    assert row[:2] == ["karate", "train"]
    report = fathom("report", "records", "--out", "report.md")
    assert report.returncode == 0, report.stderr


def test_it_trains_to_the_target_of_its_recipe_on_the_real_graph(fathom: Fathom) -> None:
    done = fathom("learn", "karate", "--data", EXAMPLE / "data", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["metric"], found["reached"]) == ("accuracy", True)


def test_its_facts_are_counted_and_its_graph_is_zacharys(fathom: Fathom) -> None:
    shown = json.loads(fathom("show", "karate", "--json").stdout)
    assert shown["parameters"] == 512 * 16 + 16 * 2
    edges = (EXAMPLE / "data" / "edges.csv").read_text().split()
    labels = (EXAMPLE / "data" / "labels.csv").read_text().split()
    assert (len(edges), len(labels), labels.count("0")) == (78, 34, 17)


def test_a_typo_is_answered_with_the_nearest_name_of_all_packages(fathom: Fathom) -> None:
    done = fathom("run", "karat")
    assert (done.returncode, done.stderr) == (2, "fathom: no workload 'karat'; did you mean karate?\n")
