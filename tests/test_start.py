"""A series whose runs cannot start ends after three of them; failures of single runs do not end it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom as run_fathom
from sample_records import record_of

from fathom.core.errors import BadOption
from fathom.core.events import OnProgress
from fathom.core.record import Record, Sections
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments.isolate import failed
from fathom.experiments.launch import job
from fathom.experiments.ranks import Launch
from fathom.experiments.study import run_all

REASON = "TypeError: LaunchConfig.__init__() got an unexpected keyword argument"


def specs(count: int, **changes: Any) -> list[RunSpec]:
    fields: dict[str, Any] = {"device": "cpu", "ranks": 2, "strategy": "ddp", **changes}
    return [RunSpec(workload="autoenc", steps=1 + number, **fields) for number in range(count)]


def ended(spec: RunSpec, reason: str = REASON, wall_s: float | None = 9.0, **changes: Any) -> Record:
    """A failed run that its worker has reported, as isolated() gives it."""
    return replace(failed(spec, reason), sections=Sections(wall_s=wall_s), **changes)


def made(
    planned: list[RunSpec], run: Callable[[RunSpec, OnProgress], Record], folder: Path
) -> tuple[list[Record], list[str]]:
    stopped: list[str] = []
    runs = run_all(planned, Store(folder), lambda index, spec: lambda done, total: None, run, on_stop=stopped.append)
    return [record for record, _ in runs], stopped


def test_a_series_that_cannot_start_ends_after_three_jobs(tmp_path: Path) -> None:
    found, stopped = made(specs(60), lambda spec, _: ended(spec), tmp_path)
    assert len(found) == 3
    assert len(list(Store(tmp_path).records())) == 3
    assert stopped == [f"the first 3 runs could not start: {REASON}; 57 more runs not made"]


@pytest.mark.parametrize(("different", "launches"), [(1, 3), (2, 3), (3, 3)])
def test_of_few_specs_repeated_three_launches_suffice(different: int, launches: int, tmp_path: Path) -> None:
    found, stopped = made(specs(different) * 20, lambda spec, _: ended(spec), tmp_path)
    assert (len(found), len(stopped)) == (launches, 1)


def test_three_launches_of_one_spec_say_nothing_of_others(tmp_path: Path) -> None:
    one, *others = specs(4)
    found, stopped = made([one, one, one, *others], lambda spec, _: ended(spec), tmp_path)
    assert (len(found), len(stopped)) == (5, 1)  # the third different one


def begins(spec: RunSpec, on_progress: OnProgress) -> Record:
    on_progress(0, 10)  # a rank has begun
    return ended(spec)


def refused(spec: RunSpec, _: OnProgress) -> Record:
    raise BadOption("it does not fit")


@pytest.mark.parametrize(
    "run",
    [
        begins,
        refused,
        lambda spec, _: ended(spec, f"{REASON} {spec.steps}"),  # another reason each time
        lambda spec, _: ended(spec, "the worker was killed by SIGKILL, most likely out of memory", wall_s=None),
        lambda spec, _: ended(spec, "the loss is nan at step 0", losses=[float("nan")]),
    ],
)
def test_failures_of_runs_that_began_or_were_killed_do_not_end_a_series(
    run: Callable[[RunSpec, OnProgress], Record], tmp_path: Path
) -> None:
    found, stopped = made(specs(8), run, tmp_path)
    assert (len(found), stopped) == (8, [])


def test_nothing_ends_a_series_once_a_run_has_succeeded(tmp_path: Path) -> None:
    first, *others = specs(8)

    def run(spec: RunSpec, _: OnProgress) -> Record:
        return replace(record_of("autoenc"), spec=spec) if spec == first else ended(spec)

    found, stopped = made([first, *others], run, tmp_path)
    assert (len(found), stopped) == (8, [])


def test_runs_on_another_device_or_by_another_engine_are_made(tmp_path: Path) -> None:
    alone: dict[str, Any] = {"ranks": None, "strategy": None}
    broken, sound = specs(6, device="cuda", **alone), specs(4, **alone)
    compiled = specs(4, engine="compile", **alone)

    def run(spec: RunSpec, _: OnProgress) -> Record:
        return ended(spec) if spec.device != "cpu" else replace(record_of("autoenc"), spec=spec)

    found, stopped = made([*broken, *sound, *compiled], run, tmp_path)
    assert [record.outcome for record in found] == ["failed"] * 3 + ["ok"] * 8
    assert stopped == [f"the first 3 runs could not start: {REASON}; 3 more runs not made"]


def test_the_command_says_so_in_one_line_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fathom.experiments.ranks.isolated", lambda spec, *_, **__: ended(spec))
    arguments = ("scale", "memnet", "--preset", "tiny", "--ranks", "1,2,4,8", "--runs", "5", "--out", str(tmp_path))
    assert run_fathom(monkeypatch, *arguments) == 1
    shown = capsys.readouterr().err
    assert f"stopped: the first 3 runs could not start: {REASON}; 17 more runs not made; records are kept" in shown
    assert len(list(Store(tmp_path).records())) == 3


BEGINS = "import sys; from fathom.core.heartbeat import *; Heartbeat(Path(sys.argv[1]) / 'rank-0.beat'); sys.exit(1)"


@pytest.mark.parametrize(("program", "reported"), [(BEGINS, [0]), ("raise SystemExit(1)", [])])
def test_a_job_reports_progress_when_a_rank_begins(program: str, reported: list[int]) -> None:
    """Also where the rank ends before the launcher has looked at it."""
    seen: list[int] = []
    (spec,) = specs(1, ranks=1)
    record = job(spec, Launch(timeout_s=60), lambda done, total: seen.append(done), ("-c", program))
    assert record.outcome == "failed"
    assert set(seen) == set(reported)  # once, and again if the launcher has looked meanwhile


def test_a_process_of_a_job_leaves_without_taking_its_modules_apart() -> None:
    code = "import atexit; atexit.register(print, 2); from fathom.experiments.worker import leave; print(1); leave(3)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "1\n")


OBSERVED = """
import json, sys
from fathom.experiments import rank
leave = rank.leave
def observed(code):
    json.dump(sorted(sys.modules), open({path!r}, "w"))
    leave(code)
rank.leave = observed
rank.main()
"""


def test_a_rank_loads_what_its_job_needs_and_counts_that_as_imports(tmp_path: Path) -> None:
    spec = RunSpec(workload="memnet", preset="tiny", device="cpu", ranks=1, strategy="ddp", scaling="weak", steps=2)
    path = tmp_path / "modules.json"
    record = job(spec, Launch(timeout_s=60), lambda done, total: None, ("-c", OBSERVED.format(path=str(path))))
    assert record.outcome == "ok"
    loaded = set(json.loads(path.read_text()))
    assert "fathom.measure.ranks" in loaded
    unneeded = {"fathom.training.ranks", "fathom.measure.collectives", "fathom.engine.ranks.strategies.fsdp"}
    assert not loaded & {*unneeded, "fathom.engine.ranks.strategies.pipeline", "typer", "pandas", "sklearn", "rich"}
    assert record.sections.import_s is not None
    assert record.sections.import_s > 0  # of torch, and of its compiler, which any optimizer loads
