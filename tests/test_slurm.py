"""The batch file for Slurm: its text, and that bash runs it with srun and scontrol as a cluster has them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from conftest import fathom as run_fathom

from fathom.core.errors import BadOption
from fathom.experiments.slurm import batch_file, study_batch_file, without, write

OPTIONS = ["scale", "vgg", "--ranks", "2,4", "--nodes", "2"]


def test_options_are_left_out_with_their_values() -> None:
    found = without(["scale", "--slurm", "a.sh", "vgg", "--slurm=b.sh", "--ranks", "2"], "--slurm")
    assert found == ["scale", "vgg", "--ranks", "2"]


def test_words_with_spaces_stay_one_word() -> None:
    assert "--out 'my records'" in batch_file([*OPTIONS, "--out", "my records"], 2)


def test_the_command_writes_it_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, records = tmp_path / "job.sh", tmp_path / "records"
    assert run_fathom(monkeypatch, *OPTIONS, "--out", records, "--slurm", path) == 0
    assert not records.exists()
    text = path.read_text()
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n" in text
    assert f' fathom {" ".join(OPTIONS)} --out {records} --rendezvous "$first:29500"\n' in text
    capsys.readouterr()
    assert run_fathom(monkeypatch, *OPTIONS, "--slurm", path) == 2
    assert "exists already" in capsys.readouterr().err
    assert run_fathom(monkeypatch, "scale", "vgg", "--slurm", path) == 2
    assert "--slurm needs --ranks" in capsys.readouterr().err


def test_one_node_needs_no_rendezvous() -> None:
    assert "rendezvous" not in batch_file(["scale", "vgg", "--ranks", "2"], 1)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="cannot write"):
        write(tmp_path / "no" / "job.sh", OPTIONS, 2)


def test_bash_runs_it_with_the_first_node_as_rendezvous(tmp_path: Path) -> None:
    """srun and scontrol are scripts here: one prints its arguments, the other the nodes."""
    for name, body in {"srun": 'printf "%s\\n" "$@"', "scontrol": 'printf "node7\\nnode8\\n"'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    write(tmp_path / "job.sh", OPTIONS, 2)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[7-8]"}
    done = subprocess.run(["bash", tmp_path / "job.sh"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-2:] == ["--rendezvous", "node7:29500"]
    before = done.stdout.split()[: done.stdout.split().index("fathom")]
    assert before == ["--kill-on-bad-exit=1", "--cpu-bind=none", "--output=fathom-%j-node%n.log"]


@pytest.mark.parametrize("text", [batch_file(OPTIONS, 2), study_batch_file(["study"], 2)])
def test_a_node_is_used_whole(text: str) -> None:
    """Slurm gives a job a part of the memory, and a task a part of the cores, where nothing else is asked for."""
    assert {"#SBATCH --exclusive", "#SBATCH --mem=0"} <= {*text.splitlines()}
