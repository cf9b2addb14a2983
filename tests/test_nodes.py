"""Several nodes: two torchrun agents on loopback, each started by the same command, come to one job and one record."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fathom.core.errors import BadOption
from fathom.core.spec import RunSpec
from fathom.core.store import Store
from fathom.experiments.ranks import PORTS, Launch


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


@pytest.mark.slow
def test_two_agents_on_loopback_run_one_job_and_both_keep_its_record(tmp_path: Path) -> None:
    meeting = f"localhost:{free_port()}"
    options = ["--ranks", "2", "--nodes", "2", "--rendezvous", meeting, "--preset", "tiny", "--runs", "1"]
    options += ["--steps", "4", "--timeout", "120"]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "fathom", "scale", "memnet", *options, "--out", str(tmp_path / name)],
            env=os.environ | {"COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name in ("one", "two")
    ]
    printed = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], printed
    (one,), (two,) = (list(Store(tmp_path / name).records()) for name in ("one", "two"))
    assert one.id == two.id
    assert one.ranks is not None
    assert (one.ranks.nodes, one.ranks.ranks, one.spec.nodes) == (2, 2, 2)
    assert [each.rank for each in one.ranks.series] == [0, 1]
    assert one.losses == two.losses
