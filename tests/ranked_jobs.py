"""Jobs of several ranks for tests: many specs in one launch, as starting a rank takes seconds.

Started by torchrun as `python tests/ranked_jobs.py FOLDER`; job.json holds the specs, and rank 0 writes their records
and what became of their gradients.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ranked_gradients import Errors, gradient_errors

from fathom.core.heartbeat import END, Heartbeat
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.experiments.rank import described, error_path, heartbeat_path

if TYPE_CHECKING:  # a rank loads torch after its heartbeat has begun
    from fathom.engine.ranks.group import Group

JOB, RECORDS = "job.json", "records.json"


def records_of(specs: Sequence[RunSpec], ranks: int, folder: Path) -> list[Record]:
    """The record of each spec, all run one after another by the same ranks."""
    return records_and_gradients(specs, (), ranks, folder)[0]


def records_and_gradients(
    specs: Sequence[RunSpec], compared: Sequence[RunSpec], ranks: int, folder: Path
) -> tuple[list[Record], list[Errors]]:
    """As well, of those that are compared, the errors of their gradients."""
    from fathom.experiments.launch import run
    from fathom.experiments.ranks import Launch

    job = [[spec.to_json() for spec in each] for each in (specs, compared)]
    (folder / JOB).write_text(json.dumps(job))
    run(folder, [sys.executable, __file__, str(folder)], ranks, Launch(timeout_s=120))
    records, errors = json.loads((folder / RECORDS).read_text())
    return [Record.from_json(document) for document in records], errors


def in_this_process(spec: RunSpec, folder: Path) -> Record:
    """The record of a job of one rank, which needs no process of its own; errors are raised as they are."""
    import pytest
    import torch.distributed as dist

    from fathom.engine.ranks.group import Group

    who = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**who, "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}.items():
            patch.setenv(name, value)
        try:
            with Group("cpu", Heartbeat(heartbeat_path(folder, 0)), timeout_s=120) as group:
                record = _record(spec, group)
        finally:
            if dist.is_initialized():  # a rank that fails leaves that to the end of its process
                dist.destroy_process_group()
    assert record is not None
    return record


def _record(spec: RunSpec, group: Group) -> Record | None:
    """None but on rank 0."""
    from fathom.measure import collectives, ranks
    from fathom.training.ranks import trained

    measured = {"collectives": collectives.measured, "training": trained}
    return measured.get(spec.kind, ranks.measured)(spec, group)


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    heartbeat = Heartbeat(heartbeat_path(folder, rank))
    os.environ["OMP_NUM_THREADS"] = "1"
    from fathom.engine.ranks.group import Group

    try:
        job = json.loads((folder / JOB).read_text())
        specs, compared = ([RunSpec.from_json(each) for each in part] for part in job)
        with Group("cpu", heartbeat, timeout_s=120) as group:
            found = [_record(spec, group) for spec in specs]
            errors = [gradient_errors(spec, group) for spec in compared]
    except BaseException as error:
        error_path(folder, rank).write_text(json.dumps(described(error)))
        raise
    if rank == 0:
        (folder / RECORDS).write_text(json.dumps([[record.to_json() for record in found if record], errors]))
    heartbeat.doing(END)


if __name__ == "__main__":
    main()
