"""Jobs of several ranks for tests: many specs in one launch, as starting a rank takes seconds.

Started by torchrun as `python tests/ranked_jobs.py FOLDER`; job.json holds the specs, and rank 0 writes their records.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fathom.core.heartbeat import END, Heartbeat
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.experiments.rank import described, error_path, heartbeat_path

JOB, RECORDS = "job.json", "records.json"


def records_of(specs: Sequence[RunSpec], ranks: int, folder: Path, program: str = __file__) -> list[Record]:
    """The record of each spec, all run one after another by the same ranks."""
    from fathom.experiments.launch import run
    from fathom.experiments.ranks import Launch

    (folder / JOB).write_text(json.dumps([spec.to_json() for spec in specs]))
    run(folder, [sys.executable, program, str(folder)], ranks, Launch(timeout_s=120))
    return [Record.from_json(document) for document in json.loads((folder / RECORDS).read_text())]


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    heartbeat = Heartbeat(heartbeat_path(folder, rank))
    os.environ["OMP_NUM_THREADS"] = "1"
    from fathom.engine.ranks.group import Group
    from fathom.measure import collectives, ranks
    from fathom.training.ranks import trained

    try:
        specs = [RunSpec.from_json(each) for each in json.loads((folder / JOB).read_text())]
        with Group("cpu", heartbeat, timeout_s=120) as group:
            measured = {"collectives": collectives.measured, "training": trained}
            found = [measured.get(spec.kind, ranks.measured)(spec, group) for spec in specs]
    except BaseException as error:
        error_path(folder, rank).write_text(json.dumps(described(error)))
        raise
    if rank == 0:
        (folder / RECORDS).write_text(json.dumps([record.to_json() for record in found if record]))
    heartbeat.doing(END)


if __name__ == "__main__":
    main()
