"""fathom study --hosts and --slurm, with hosts that are processes of this machine behind a fake ssh and srun."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom as run_fathom
from killing import FAULTS, alive, environment, outlived
from sample_records import LAPTOP, MACHINES, record_of

from fathom.core.fingerprint import Machine
from fathom.core.store import Store
from fathom.experiments.slurm import study_batch_file

FATHOM = f"{sys.executable} -m fathom"
STUDY = ["study", "autoenc", "--preset", "tiny", "--device", "cpu"]
RUNS = 2  # of it: training and inference


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `ssh` and `srun`, and what all that is started needs to reach hosts by them."""
    for name in ("ssh", "srun"):
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -S {FAULTS / "fake_ssh.py"} "$@"\n')
        script.chmod(0o755)
    (tmp_path / "home").mkdir()
    variables = environment(FATHOM_QUICK="0", HOME=str(tmp_path / "home"), FAKE_LOG=str(tmp_path / "log"))
    variables["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def study(folder: Path, hosts: str, *more: object) -> list[object]:
    where = ["--out", folder / "records", "--report", folder / "report.html"]
    return [*STUDY, "--hosts", hosts, "--remote-command", FATHOM, *where, *more]


def going_on(folder: Path, hosts: str) -> subprocess.Popen[str]:
    """In a process of its own, with steps that take a while."""
    line = [sys.executable, "-m", "fathom", *map(str, study(folder, hosts))]
    return subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=os.environ | {"FATHOM_QUICK": "0.02"})


def told(monkeypatch: pytest.MonkeyPatch, **faults: str) -> None:
    monkeypatch.setenv("FAKE_HOSTS", json.dumps(faults))


def machines(folder: Path) -> dict[Any, int]:
    """How many runs there are of each machine; one that other programs disturbed is made twice, and is one."""
    runs = {(record.machine.host_id, record.spec.id) for record in Store(folder / "records").records()}
    return dict(Counter(host for host, _ in runs))


@pytest.mark.slow
def test_hosts_with_every_fault_do_not_keep_the_others_from_one_report(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told(monkeypatch, b="refuses", c="greets", d="is:a", e="dies:1", f="halves:1", g="has no fathom")
    assert run_fathom(monkeypatch, *study(hosts, "a,b,c,d,e,f,g", "--json")) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["left out"] == {
        "b": "ssh: connect to host b port 22: Connection refused",
        "d": "skipped: the same machine as a",
        "e": "ssh was killed by SIGKILL; 1 of 2 runs kept",
        "f": "ssh was killed by SIGKILL; 1 of 2 runs kept",
        "g": "no fathom there (sh: 1: fathom: not found): --remote-command says how it is started",
    }
    assert [(row["host"], row["phase"], row["outcome"]) for row in answer["runs"]] == [
        (host, phase, "ok") for host in "ac" for phase in ("train", "infer")
    ]
    assert sorted(machines(hosts).values()) == [1, 1, RUNS, RUNS]
    assert not Store(hosts / "records").unreadable()
    page = (hosts / "report.html").read_text()
    assert all(f"({name})" in page for name in "acef")  # the report labels machines by their hosts
    assert not outlived(alive(os.environ["FATHOM_MARK"]))

    told(monkeypatch)
    before = {path.name: path.read_bytes() for path in (hosts / "records").glob("*.json")}
    assert run_fathom(monkeypatch, *study(hosts, "a,c,e,f", "--via", "srun", "--json")) == 0
    resumed = capsys.readouterr()
    assert "a: 2 of 2 runs are in" in resumed.err
    assert "e: 1 of 2 runs are in" in resumed.err
    assert sorted(machines(hosts).values()) == [RUNS] * 4  # what is complete was not measured again
    after = {path.name: path.read_bytes() for path in (hosts / "records").glob("*.json")}
    assert before.items() <= after.items()


@pytest.mark.slow
def test_an_interrupt_ends_the_runs_on_the_hosts_and_keeps_what_came(hosts: Path) -> None:
    line = [sys.executable, "-m", "fathom", *map(str, study(hosts, "a,b"))]
    with subprocess.Popen(
        line, stderr=subprocess.PIPE, text=True, env=os.environ | {"FATHOM_QUICK": "0.02"}
    ) as command:
        assert command.stderr is not None
        assert "1 of 2  autoenc train" in command.stderr.readline()  # another is under way
        command.send_signal(signal.SIGINT)
        printed = command.stderr.read()
    assert command.returncode == 130
    assert printed.endswith("fathom: interrupted\n")
    assert " ended with code " not in printed  # a host that was told to end has not failed
    assert not outlived(alive(os.environ["FATHOM_MARK"]))
    kept = list(Store(hosts / "records").records())
    assert 1 <= len(kept) < 2 * RUNS
    assert {record.outcome for record in kept} == {"ok"}
    assert not (hosts / "report.html").exists()


@pytest.mark.slow
def test_the_agent_ends_with_whoever_asked_it(hosts: Path) -> None:
    """Also where that one was killed: the end of its stdin is all that an agent sees."""
    line = [sys.executable, "-m", "fathom", *map(str, study(hosts, "a"))]
    with subprocess.Popen(
        line, stderr=subprocess.PIPE, text=True, env=os.environ | {"FATHOM_QUICK": "0.02"}
    ) as command:
        assert command.stderr is not None
        assert "1 of 2" in command.stderr.readline()
        command.kill()
    assert not outlived(alive(os.environ["FATHOM_MARK"]))


@pytest.mark.slow
def test_what_a_host_refuses_is_said_by_its_name(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [word if word != "cpu" else "cuda:7" for word in study(hosts, "a")]
    assert run_fathom(monkeypatch, *arguments) == 1
    err = capsys.readouterr().err
    assert "not complete: a: " in err
    assert "cuda" in err
    assert "no records: no report" in err


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--hosts=-oProxyCommand=touch x"], "--hosts takes host names such as"),
        (["--hosts", ""], "--hosts takes host names such as"),  # of an unset variable: not this machine
        (["--hosts", "", "--slurm", "job.sh"], "--hosts takes host names such as"),
        (["--hosts", "a", "--via", "telnet"], "no way to reach a host 'telnet'"),
        (["--hosts", "a", "--engine", "eagr"], "did you mean eager?"),
        (["--via", "srun"], "--via needs --hosts"),
        (["--nodes", "2"], "--nodes needs --slurm"),
        (["--slurm", "job.sh"], "--slurm needs --nodes or --hosts"),
        (["--slurm", "job.sh", "--nodes", "2", "--hosts", "a"], "--slurm needs --nodes or --hosts"),
    ],
)
def test_wrong_options_are_one_line_and_start_nothing(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str], why: str
) -> None:
    monkeypatch.chdir(hosts)
    assert run_fathom(monkeypatch, *STUDY, *more) == 2
    assert why in capsys.readouterr().err
    assert not (hosts / "log").exists()
    assert not (hosts / "job.sh").exists()


def test_no_host_answers(hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    told(monkeypatch, a="refuses", b="has no fathom", c="hangs")
    assert run_fathom(monkeypatch, *study(hosts, "a,b,c", "--host-timeout", "1")) == 1
    err = capsys.readouterr().err
    assert err.count("not complete: ") == 3
    assert "not complete: c: no answer for 1 s" in err
    assert not outlived(alive(os.environ["FATHOM_MARK"]))
    assert "no records: no report" in err
    assert not (hosts / "report.html").exists()


def test_the_batch_file_names_the_nodes_and_runs_the_study_by_srun(
    hosts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hosts / "job.sh"
    assert run_fathom(monkeypatch, *STUDY, "--out", "my records", "--slurm", path, "--hosts", "n7,n8") == 0
    text = path.read_text()
    assert "#SBATCH --nodes=2\n#SBATCH --nodelist=n7,n8\n#SBATCH --ntasks-per-node=1\n" in text
    assert "--out 'my records' --via srun" in text
    assert not (hosts / "log").exists()
    assert run_fathom(monkeypatch, *STUDY, "--slurm", path, "--nodes", "3") == 2
    assert "exists already" in capsys.readouterr().err
    assert "--nodelist" not in study_batch_file(STUDY, 3)
    script = {"fathom": 'printf "%s\\n" "$@"', "scontrol": 'printf "n7\\nn8\\n"'}
    for name, body in script.items():
        (hosts / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (hosts / "bin" / name).chmod(0o755)
    bash = [shutil.which("bash") or "bash", str(path)]
    variables = os.environ | {"SLURM_JOB_NODELIST": "n[7-8]"}
    done = subprocess.run(bash, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [*STUDY, "--out", "my records", "--via", "srun", "--hosts", "n7,n8"]


def test_machines_lock_a_folder_for_themselves_alone(tmp_path: Path) -> None:
    """Hosts measure at the same time into one folder; two processes on one machine do not."""

    def store(machine: Machine | None) -> Store:
        return Store(tmp_path, machine)

    one, other = MACHINES[LAPTOP], replace(MACHINES[LAPTOP], host_id="another")
    waited: list[str] = []
    with store(one).lock(lambda: waited.append("one")), store(other).lock(lambda: waited.append("other")):
        assert not waited
        assert Store(tmp_path).add(record_of("vgg")).exists()
    assert len(list(tmp_path.glob(".lock-*"))) == 2
