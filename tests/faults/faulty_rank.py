"""A real rank that goes wrong at one step, as the environment says: FATHOM_FAULT=misdeed:rank:step.

It goes wrong in its first life only: where torchrun starts it again, it works.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from fathom.engine.ranks.timeline import Timeline
from fathom.experiments import rank as real


def main() -> None:
    misdeed, rank, step = os.environ["FATHOM_FAULT"].split(":")
    if os.environ["RANK"] == rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if misdeed == "disagree":
            _change_job()
        begin_step = Timeline.begin_step

        def faulty(timeline: Timeline) -> None:
            begin_step(timeline)
            if timeline.first + len(timeline.steps) == int(step):
                do(misdeed)

        setattr(Timeline, "begin_step", faulty)  # noqa: B010
    real.main()


def do(misdeed: str) -> None:
    if misdeed == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif misdeed == "stall":
        time.sleep(600)
    elif misdeed == "skip":
        dist.barrier()  # the others are in an all-reduce
    elif misdeed == "memory":
        torch.empty(1 << 58)


def _change_job() -> None:
    """This rank reads another batch from its job file."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / real.JOB).read_text())
    job["spec"]["batch"] = 4
    other = folder / "other"
    other.mkdir()
    (other / real.JOB).write_text(json.dumps(job))
    real.JOB = "other/" + real.JOB


if __name__ == "__main__":
    main()
