"""fathom engines and study --engine best: what is tried, recorded, shown and chosen, and what a bad engine costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom
from sample_records import LAPTOP, MACHINES, engine_run, trial_of, trial_record

from fathom.cli.commands import _hosts
from fathom.cli.commands import study as study_command
from fathom.cli.terminal import progress_bar
from fathom.core.errors import BadOption
from fathom.core.events import OnProgress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import engines, study
from fathom.experiments.isolate import failed

OWN = """\
import threading

from fathom.core.errors import MissingExtra
from fathom.engine.base import Engine

class Right(Engine):
    name = "right"

class Wrong(Engine):
    name = "wrong"

    def update(self, batch):
        return self.gradients(batch)  # fast, and learns nothing

class Crashing(Engine):
    name = "crashing"

    def update(self, batch):
        raise ArithmeticError("of the engine's own")

class Hanging(Engine):
    name = "hanging"

    def update(self, batch):
        threading.Event().wait()

class Extra(Engine):
    name = "extra"

    def __init__(self, *given):
        raise MissingExtra("engine extra needs the package fast: pip install fathom[fast]")
"""


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Engines of somebody's own, in the working directory."""
    (tmp_path / "tried_engines.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "tried_engines", raising=False)
    return tmp_path


def typed(*more: object) -> list[object]:
    return ["engines", "memnet", "--preset", "tiny", "--device", "cpu", "--phase", "train", "--budget", "0.01", *more]


def named(*names: str) -> str:
    return ",".join(f"tried_engines:{name}" for name in names)


# in real processes


def test_a_bad_engine_costs_its_own_trial(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = named("Crashing", "Extra", "Wrong", "Right")
    assert fathom(monkeypatch, *typed("--engines", asked, "--json", "--out", own / "records")) == 0
    rows = {row["engine"].partition(":")[2]: row for row in json.loads(capsys.readouterr().out)["trials"]}
    assert rows["Crashing"]["agrees"] == "ArithmeticError: of the engine's own"
    assert rows["Extra"]["agrees"] == "engine extra needs the package fast: pip install fathom[fast]"
    assert rows["Wrong"]["agrees"].startswith("no: the loss of step 1 differs by ")
    assert rows["Right"]["agrees"] == "yes"
    assert rows["Right"]["difference"] == 0
    records = list(Store(own / "records").records())
    assert sorted((each.outcome, each.spec.engine.partition(":")[2]) for each in records) == [
        ("failed", "Crashing"),
        ("failed", "Extra"),
        ("ok", "Right"),
        ("ok", "Wrong"),
    ]
    chosen = engines.best(records)
    assert chosen is None or chosen.spec.engine == "tried_engines:Right"


def test_an_engine_that_hangs_is_ended(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = typed("--engines", named("Hanging"), "--timeout", "8", "--out", own / "records")
    assert fathom(monkeypatch, *arguments) == 1
    told = "memnet train, tried_engines:Hanging: no progress for 8 s (heartbeat timeout)"
    assert told in capsys.readouterr().err.splitlines()
    assert [each.outcome for each in Store(own / "records").records()] == ["failed"]


# with made-up trials

Run = Callable[..., Record]


def made_up(spec: RunSpec, on_progress: OnProgress = lambda *_: None, heartbeat_timeout_s: float = 0.0) -> Record:
    """cudagraph is the fastest and wrong, compile the fastest that is right, fused fails."""
    if spec.engine == "fused":
        return failed(spec, "it broke")
    wrong: dict[str, Any] = {}
    if spec.engine == "cudagraph":
        wrong = {"output_difference": 1.0} if spec.phase == "infer" else {"engine": engine_run(0.01, [3.0, 1.0, 0.5])}
    step_s = {"compile": 0.05, "cudagraph": 0.01}.get(spec.engine, 0.1)
    record = trial_record(trial=trial_of(0.2, step_s, phase=spec.phase, **wrong))
    return replace(record, spec=spec, machine=MACHINES[LAPTOP], device=spec.device)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, on_the_laptop: None) -> list[RunSpec]:
    """What was run, of trials that take no time; no engine is refused."""
    specs: list[RunSpec] = []

    def run(spec: RunSpec, on_progress: OnProgress, heartbeat_timeout_s: float) -> Record:
        specs.append(spec)
        return made_up(spec)

    monkeypatch.setattr("fathom.cli.commands.engines.isolated", run)
    monkeypatch.setattr(engines, "refusal", lambda spec: None)
    return specs


def test_it_resumes(
    ran: list[RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What failed is tried again, what succeeded is not; the best is the fastest that agrees."""
    arguments = typed("--engines", "compile,cudagraph,fused", "--out", tmp_path)
    assert fathom(monkeypatch, *arguments) == 0
    assert [spec.engine for spec in ran] == ["compile", "cudagraph", "fused"]
    told = capsys.readouterr().err.splitlines()
    assert "best: compile" in told
    assert "memnet train, fused: it broke" in told
    assert fathom(monkeypatch, *arguments) == 0
    assert [spec.engine for spec in ran] == ["compile", "cudagraph", "fused", "fused"]
    assert f"2 of 3 trials are in {tmp_path} already" in " ".join(capsys.readouterr().err.split())
    assert {spec.kind for spec in ran} == {"trial"}
    assert {spec.budget_s for spec in ran} == {0.01}


def test_json_is_all_of_the_output(
    ran: list[RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fathom(monkeypatch, *typed("--engines", "compile,cudagraph,fused", "--json", "--out", tmp_path)) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(row["engine"], row["agrees"][:4]) for row in document["trials"]] == [
        ("compile", "yes"),
        ("cudagraph", "no: "),
        ("fused", "it b"),
    ]
    assert document["records"] == str(tmp_path)


def test_without_names_every_engine_is_tried_in_both_phases(
    ran: list[RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["engines", "memnet", "autoenc", "--preset", "tiny", "--device", "cpu", "--out", tmp_path]
    assert fathom(monkeypatch, *arguments) == 0
    work = [(spec.workload, spec.phase, spec.engine) for spec in ran]
    assert work == [(name, phase, each) for name in ("memnet", "autoenc") for phase in ("train", "infer")
                    for each in engines.candidates()]  # fmt: skip
    assert "eager" not in engines.candidates()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--engines", "compil"], "no engine 'compil'; did you mean compile?"),
        (["--engines", "compile+cudagraf"], "no engine 'cudagraf'; did you mean cudagraph?"),
        (["--engines", "compile,compile+eager"], "engine eager does not combine with others"),
        (["--engines", "json:loads"], "json:loads is no engine: expected a subclass of fathom.engine.base.Engine"),
        (["--phase", "test"], "--phase takes train or infer, not 'test'"),
        (["--budget", "0"], "a budget must be some seconds, not 0.0"),
    ],
)
def test_a_slip_of_the_keyboard_is_one_line(
    arguments: list[str],
    told: str,
    ran: list[RunSpec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fathom(monkeypatch, *typed(*arguments, "--out", tmp_path / "records")) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"fathom: {told}\n")
    assert ran == []
    assert not (tmp_path / "records").exists()


def test_engines_that_do_not_apply_are_shown_and_leave_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name where all are tried; with the reason where they were asked for."""
    monkeypatch.setattr("fathom.cli.commands.engines.isolated", lambda *given, **more: pytest.fail("nothing applies"))
    new = tmp_path / "new"  # a folder that nothing is ever written to
    assert fathom(monkeypatch, *typed("--engines", "cudagraph,channels-last", "--out", new)) == 1
    told = capsys.readouterr().err
    assert "memnet train, cudagraph: engine cudagraph needs an NVIDIA GPU, not cpu\n" in told
    assert "memnet train, channels_last: engine channels_last changes nothing: memnet has no convolution" in told
    assert "best:" not in told  # nothing was compared
    monkeypatch.setattr(engines, "candidates", lambda: ["cudagraph", "channels_last"])
    assert fathom(monkeypatch, *typed("--out", tmp_path)) == 1
    assert "not applicable: cudagraph, channels_last (--engines NAME says why)\n" in capsys.readouterr().err
    assert list(tmp_path.glob("*.json")) == []


def test_a_workload_that_breaks_is_left_to_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(spec: RunSpec) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("fathom.engine.session.Session", breaks)
    assert engines.refusal(RunSpec(workload="memnet", kind="trial", engine="fused")) is None


# study --engine best


def planned() -> list[RunSpec]:
    return study.plan(["memnet", "deepq"], "paper", ["cuda:0", "cpu"])


def test_profiled_runs_get_the_best_engine_and_comparisons_stay_eager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[RunSpec] = []

    def trials(specs: list[RunSpec], store: Store) -> list[Record]:
        tried.extend(specs)
        if specs[0].phase == "infer":
            return [failed(spec, "it broke") for spec in specs]
        return [made_up(spec) for spec in specs]

    monkeypatch.setattr(study_command, "trials", trials)
    chosen = study_command._with_best_engines(planned(), Store(tmp_path))
    for before, after in zip(planned(), chosen, strict=True):
        best = before.kind == "profiled" and before.threads is None and before.phase == "train"
        assert after == replace(before, engine="compile" if best else "eager")
    assert {spec.kind for spec in chosen if spec.engine == "eager"} >= {"timed", "profiled"}
    assert any(spec.threads for spec in chosen)
    devices = {(spec.device, spec.preset) for spec in tried}
    assert devices == {("cuda:0", "paper"), ("cpu", "small")}
    assert {(spec.kind, spec.steps, spec.budget_s) for spec in tried} == {("trial", 10, engines.TRIAL_S)}
    assert len({spec.id for spec in tried}) == len(tried)


def test_nothing_is_tried_twice(ran: list[RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "candidates", lambda: ["compile", "cudagraph"])
    store = Store(tmp_path, MACHINES[LAPTOP])
    first = study_command._with_best_engines(planned(), store)
    assert len(ran) == len({spec.id for spec in ran}) == 2 * sum(each.engine == "compile" for each in first)
    before = list(ran)
    assert study_command._with_best_engines(planned(), store) == first
    assert ran == before


def test_a_study_with_the_best_engines_records_them(
    ran: list[RunSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured: list[RunSpec] = []

    def run_all(specs: list[RunSpec], store: Store, job: str) -> None:
        measured.extend(specs)
        for spec in specs:
            store.add(replace(trial_record(), spec=spec, machine=MACHINES[LAPTOP], step_s=[0.1] * 9, trial=None))

    monkeypatch.setattr(study_command, "run_all", run_all)
    monkeypatch.setattr(engines, "candidates", lambda: ["cudagraph", "compile"])
    arguments: list[Any] = ["study", "autoenc", "--preset", "tiny", "--device", "cpu", "--engine", "best"]
    arguments += ["--out", tmp_path, "--report", tmp_path / "report.html"]
    assert fathom(monkeypatch, *arguments) == 0
    assert {(spec.kind, spec.engine) for spec in measured} == {("profiled", "compile")}
    assert "autoenc train on cpu: compile\n" in capsys.readouterr().err
    assert len(ran) == 2 * len(measured)


class FarHost:
    """A connection to a host whose fastest engine is another one than this machine's."""

    def __init__(self) -> None:
        self.ran: list[RunSpec] = []

    def trials(self, spec: RunSpec) -> list[RunSpec]:
        return [replace(each, engine=name) for each in engines.trials_for(spec)[:1] for name in ("fused", "compile")]

    def run(self, spec: RunSpec, on_progress: OnProgress) -> Record:
        self.ran.append(spec)
        trial = trial_of(0.2, 0.05 if spec.engine == "fused" else 0.1, phase=spec.phase)
        return replace(trial_record(trial=trial), spec=spec, machine=MACHINES[LAPTOP])


def test_a_host_takes_the_engine_that_is_fastest_there(tmp_path: Path) -> None:
    far, host, store = FarHost(), _hosts.Host("far"), Store(tmp_path, MACHINES[LAPTOP])
    profiled = RunSpec(workload="autoenc", kind="profiled")
    swept = replace(profiled, threads=1)
    with progress_bar() as bar:
        task = bar.add_task("far")
        for _ in range(2):  # the second time from the folder
            found = [_hosts._best(host, far, spec, store, bar, task) for spec in (profiled, swept)]  # type: ignore[arg-type]
            assert found == [replace(profiled, engine="fused"), swept]
    assert [spec.engine for spec in far.ran] == ["fused", "compile"]


def test_a_wrong_value_is_not_an_engine_that_does_not_apply() -> None:
    spec = RunSpec(workload="autoenc", preset="tiny", device="cpu", engine="compile", options={"averaging": 2.0})
    with pytest.raises(BadOption, match="averaging of autoenc"):
        engines.refusal(spec)
    assert "needs an NVIDIA GPU" in (engines.refusal(replace(spec, engine="cudagraph", options={})) or "")
