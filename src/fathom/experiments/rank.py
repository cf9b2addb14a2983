"""The program of one rank, as torchrun starts it: `python -m fathom.experiments.rank FOLDER`.

The folder of the job holds what to do (job.json). The rank writes its heartbeat there, what went wrong, and rank 0 the
record. Cores are chosen before torch is loaded, which sizes its thread pools by them.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fathom.core.errors import BadOption, FathomError
from fathom.core.heartbeat import END, SET_UP, Heartbeat
from fathom.core.spec import RunSpec
from fathom.experiments.worker import leave, signal_at_death_of
from fathom.machine.host import HardwareThread, fingerprint, topology

if TYPE_CHECKING:
    from fathom.core.record import Record
    from fathom.engine.ranks.group import Group

JOB, RECORD = "job.json", "record.json"
PEERS = (  # how backends say that another rank is gone: a consequence, and never the cause
    *("connection closed by peer", "connection reset by peer", "broken pipe", "timed out waiting", "timeout"),
    *("connectfullmesh failed", "remote process exited", "socket error", "connection was likely closed"),
)


def heartbeat_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.beat"


def error_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.error"


def share_of_cores(here: Sequence[HardwareThread], local_rank: int, local_ranks: int, threads: int | None) -> list[int]:
    """The hardware threads of one rank, core by core: so many, or an equal part; shared where there are fewer."""
    order = [each.number for each in sorted(here, key=lambda each: (each.node, each.core, each.number))]
    each = threads or max(1, len(order) // local_ranks)
    begin = local_rank * each
    return sorted({order[(begin + index) % len(order)] for index in range(min(each, len(order)))})


def main() -> None:
    """Exit code 1 where anything went wrong; the error file says what."""
    signal_at_death_of(os.getppid(), signal.SIGKILL)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    heartbeat = Heartbeat(heartbeat_path(folder, rank))
    error_path(folder, rank).unlink(missing_ok=True)  # of a process before a restart
    try:
        job = json.loads((folder / JOB).read_text())
        document = _done(RunSpec.from_json(job["spec"]), folder, job, heartbeat)
    except BaseException as error:
        error_path(folder, rank).write_text(json.dumps(described(error)))
        leave(1)
    if os.environ["LOCAL_RANK"] == "0":  # one of each node: every node keeps the record
        part = folder / f"{RECORD}.part"
        part.write_text(json.dumps(document))
        part.replace(folder / RECORD)
    heartbeat.doing(END)
    leave(0)


def _done(spec: RunSpec, folder: Path, job: dict[str, Any], heartbeat: Heartbeat) -> Any:
    """The job's record as plain data."""
    local_rank, local_ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    threads = _bind(share_of_cores(topology(), local_rank, local_ranks, spec.threads))
    os.environ["OMP_NUM_THREADS"] = str(spec.threads or threads)
    begun = time.perf_counter()
    import torch

    if spec.kind != "collectives":
        import torch._dynamo  # any optimizer loads it, for seconds: an import, and counted as one
    heartbeat.doing(SET_UP)
    from fathom.engine.ranks.group import Group

    import_s = time.perf_counter() - begun
    with Group(spec.device, heartbeat, job["timeout_s"] * GROUP_TIMEOUT) as group:
        if group.ranks != spec.ranks:
            raise BadOption(f"the job has {spec.ranks} ranks, and torchrun started {group.ranks}")
        group.check_agreement({"spec": spec.id, **spec.non_defaults(), "torch": str(torch.__version__)})
        record = _measured(spec, group, folder, job.get("checkpoint_every"))
        if record is not None:
            record = replace(record, sections=replace(record.sections, import_s=import_s))
        document = group.gathered(record and record.to_json())[0]
        if spec.nodes > 1:
            document["machine"] = one_machine(group.gathered(_this_machine()))
        return document


def _this_machine() -> tuple[str, Any]:
    return platform.node(), msgspec.to_builtins(fingerprint())


def one_machine(found: Sequence[tuple[str, Any]]) -> Any:
    """The machine that stands for a job of several nodes: that of the first host name.

    Not that of rank 0: torchrun may put rank 0 elsewhere in the next job of a series, which is compared as one.
    """
    return min(found, key=lambda each: each[0])[1]


def _measured(spec: RunSpec, group: Group, folder: Path, every: int | None) -> Record | None:
    """On rank 0; what a job of this kind does not need is not loaded."""
    if spec.kind == "collectives":
        from fathom.measure import collectives

        return collectives.measured(spec, group)
    if spec.kind == "training":
        from fathom.training.ranks import trained

        return trained(spec, group)
    from fathom.engine.ranks.checkpoints import Checkpoints
    from fathom.measure import ranks

    return ranks.measured(spec, group, Checkpoints(folder / "checkpoints", group, every) if every else None)


GROUP_TIMEOUT = 2.0  # of the job's: the watcher, which knows of all ranks, speaks first


def _bind(cores: list[int]) -> int:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    return len(cores)


def described(error: BaseException) -> dict[str, str]:
    """What went wrong, and its kind: refused (the user can put it right), peer (a consequence), or failure."""
    if isinstance(error, FathomError):
        return {"kind": "refused", "text": str(error)}
    text = " ".join(str(error).split()) or type(error).__name__
    kind = "peer" if any(sign in text.lower() for sign in PEERS) else "failure"
    return {"kind": kind, "text": f"{type(error).__name__}: {text}"[:300]}


if __name__ == "__main__":
    main()
