"""Several nodes: two torchrun agents on loopback, each started by the same command, come to one job and one record."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import fathom as run_fathom
from sample_records import GPU, MACHINES, record_of

from fathom.core.errors import BadOption
from fathom.core.events import OnProgress, no_progress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments import study
from fathom.experiments.rank import one_machine
from fathom.experiments.ranks import PORTS, SETTINGS, Jobs, Launch


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def test_every_job_of_a_series_has_a_port_of_its_own() -> None:
    launch = Launch(nodes=2, rendezvous="node1:29500")
    assert [launch.nth(number).rendezvous for number in (0, 1, PORTS)] == ["node1:29500", "node1:29501", "node1:29500"]
    assert Launch().nth(7) == Launch()
    assert Launch().local
    assert not launch.local


@pytest.mark.parametrize("endpoint", ["node1", "node1:", ":29500", "node1:x", "a b:1"])
def test_a_wrong_rendezvous_is_one_line(endpoint: str) -> None:
    with pytest.raises(BadOption, match="a rendezvous is HOST:PORT"):
        Launch(nodes=2, rendezvous=endpoint)


def test_ranks_are_divided_among_nodes() -> None:
    with pytest.raises(BadOption, match="3 ranks cannot be divided among 2 nodes"):
        RunSpec(workload="memnet", ranks=3, nodes=2)
    with pytest.raises(BadOption, match="nodes needs a number of ranks"):
        RunSpec(workload="memnet", nodes=2)
    assert RunSpec(workload="memnet", ranks=2).id != RunSpec(workload="memnet", ranks=2, nodes=2).id


SPEC = RunSpec(workload="memnet", ranks=2, nodes=2)
JOB: Record = replace(record_of("memnet"), spec=SPEC)


def test_nodes_that_share_a_folder_keep_one_record(tmp_path: Path) -> None:
    """As on a cluster, whose nodes see the same files."""
    one, two = Store(tmp_path), Store(tmp_path)
    assert one.add(JOB) == two.add(replace(JOB, notes=["the same job, seen from another node"]))
    (kept,) = Store(tmp_path).records()
    assert kept.notes == JOB.notes
    alone = replace(JOB, spec=replace(SPEC, nodes=1))
    one.add(alone)
    with pytest.raises(BadOption, match="File exists"):
        two.add(alone)


def test_nodes_that_share_a_folder_do_not_wait_for_each_other_or_take_a_job_for_made(tmp_path: Path) -> None:
    """A node that waited for another's lock, or left out a job that the other one makes, would end both."""
    store, ran = Store(tmp_path), list[RunSpec]()
    Store(tmp_path).add(JOB)  # by another process, since the store was opened

    def run(spec: RunSpec, on_progress: OnProgress) -> Record:
        ran.append(spec)
        return replace(JOB, id="another")

    def on_wait() -> None:
        raise AssertionError("waits")

    with Store(tmp_path).lock(on_wait):
        made = list(study.run_all([SPEC], store, lambda index, spec: no_progress, run, on_wait))
    assert ran == [SPEC]
    assert [record.id for record, _ in made] == ["another"]


def test_one_machine_stands_for_a_job_whichever_node_has_rank_0() -> None:
    nodes = [("n2", {"cpu": "b"}), ("n1", {"cpu": "a"}), ("n3", {"cpu": "c"})]
    assert one_machine(nodes) == one_machine(nodes[::-1]) == {"cpu": "a"}


def test_a_series_is_resumed_alike_on_every_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record carries the machine of one node; the other nodes must not make the job again without it."""
    ran: list[RunSpec] = []

    def isolated(spec: RunSpec, *_: object, **__: object) -> Record:
        ran.append(spec)
        return replace(JOB, spec=spec, id=f"job{len(ran)}", machine=MACHINES[GPU])

    monkeypatch.setattr("fathom.experiments.ranks.isolated", isolated)
    series = ["scale", "memnet", "--ranks", 2, "--nodes", 2, "--rendezvous", "n1:29500", "--runs", 2, "--out", tmp_path]
    run_fathom(monkeypatch, *series)
    assert len(ran) == 2
    capsys.readouterr()
    run_fathom(monkeypatch, *series)
    assert len(ran) == 2
    assert "2 of 2 runs are in" in capsys.readouterr().err


@pytest.mark.parametrize("end", [None, KeyboardInterrupt])
def test_the_files_of_a_job_are_removed_however_it_ends(
    monkeypatch: pytest.MonkeyPatch, end: type[BaseException] | None
) -> None:
    """Its own process may be killed; checkpoints would stay."""
    seen: list[Path] = []

    def isolated(spec: RunSpec, *_: object, environment: dict[str, str]) -> Record:
        monkeypatch.setenv(SETTINGS, environment[SETTINGS])
        seen.append(Path(Launch.from_environment().folder or ""))
        (seen[0] / "checkpoint").write_text("large")
        if end:
            raise end
        return JOB

    monkeypatch.setattr("fathom.experiments.ranks.isolated", isolated)
    with pytest.raises(end) if end else contextlib.nullcontext():
        Jobs(Launch())(SPEC)
    assert not seen[0].exists()


@pytest.mark.slow
def test_two_agents_on_loopback_run_one_job_and_both_keep_its_record(tmp_path: Path) -> None:
    """In a folder each; of one folder for all, the tests above say what its store does."""
    folders = [tmp_path / "one", tmp_path / "two"]
    meeting = f"localhost:{free_port()}"
    options = ["--ranks", "2", "--nodes", "2", "--rendezvous", meeting, "--preset", "tiny", "--runs", "1"]
    options += ["--steps", "4", "--timeout", "120"]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "fathom", "scale", "memnet", *options, "--out", str(folder)],
            env=os.environ | {"COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for folder in folders
    ]
    printed = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], printed
    (one,), (two,) = (list(Store(folder).records()) for folder in folders)
    assert one.id == two.id
    assert one.ranks is not None
    assert (one.ranks.nodes, one.ranks.ranks, one.spec.nodes) == (2, 2, 2)
    assert [each.rank for each in one.ranks.series] == [0, 1]
    assert one.losses == two.losses
