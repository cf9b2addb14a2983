"""Batch files for Slurm: one `fathom` command on every node of the allocation, one task each, by srun."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from fathom.core.errors import BadOption

PORT = 29_500
TEMPLATE = """#!/bin/bash
#SBATCH --job-name=fathom
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=fathom-%j.log
# Add the partition, account, time and GPUs that your cluster asks for.

set -euo pipefail
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | awk 'NR == 1')
srun --kill-on-bad-exit=1 --cpu-bind=none --output=fathom-%j-node%n.log {command}
"""

STUDY = """#!/bin/bash
#SBATCH --job-name=fathom-study
#SBATCH --nodes={nodes}
{where}#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=fathom-study-%j.log
# Add the partition, account, time and GPUs that your cluster asks for.
# Submitted again, it resumes: what is in the folder of records is not measured again.

set -euo pipefail
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -s -d , -)
{command} --via srun --hosts "$hosts"
"""


def batch_file(arguments: Sequence[str], nodes: int) -> str:
    """Its text. The arguments are those of `fathom`; a rendezvous at the first node is added for several nodes."""
    command = shlex.join(["fathom", *arguments])
    if nodes > 1:
        command += f' --rendezvous "$first:{PORT}"'
    return TEMPLATE.format(nodes=nodes, command=command)


def without(arguments: Sequence[str], *options: str) -> list[str]:
    """The arguments less these options and their values, written as two words or with an equals sign."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in options:
            skip = True
        elif not argument.startswith(tuple(f"{option}=" for option in options)):
            kept.append(argument)
    return kept


def study_batch_file(arguments: Sequence[str], hosts: Sequence[str] | int) -> str:
    """A study that one node conducts: it starts one task on every node, its own included. `hosts` may be a number."""
    kept = without(arguments, "--slurm", "--nodes", "--hosts", "--via")
    if isinstance(hosts, int):
        nodes, where = hosts, ""
    else:
        nodes, where = len(hosts), f"#SBATCH --nodelist={','.join(hosts)}\n"
    return STUDY.format(nodes=nodes, where=where, command=shlex.join(["fathom", *kept]))


def write(path: Path, arguments: Sequence[str], nodes: int) -> None:
    """A job of ranks."""
    _write_new(path, batch_file(without(arguments, "--slurm", "--rendezvous"), nodes))


def write_study(path: Path, arguments: Sequence[str], hosts: Sequence[str] | int) -> None:
    _write_new(path, study_batch_file(arguments, hosts))


def _write_new(path: Path, text: str) -> None:
    """Refuses to overwrite: somebody may have added what his cluster asks for."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadOption(f"{path} exists already; another name, or remove it") from None
    except OSError as error:
        raise BadOption(f"cannot write {path}: {error.strerror or error}") from None
