"""A rank without torch that makes progress and then does what job.json asks of it: as torchrun starts it, in tests."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from fathom.core.heartbeat import END, STEP, Heartbeat

STEP_S = 0.005


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    job = json.loads((folder / "job.json").read_text())
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    misdeed = job["misdeeds"].get(str(rank)) if attempt < job.get("faulty_attempts", 1000) else None
    if misdeed == "unborn":
        time.sleep(600)
    heartbeat = Heartbeat(folder / f"rank-{rank}.beat")
    for step in range(1, job["steps"] + 1):
        if misdeed and step == job["at_step"]:
            do(misdeed, folder, rank)
        heartbeat.doing(STEP, step)
        heartbeat.begin("all-reduce")
        if misdeed != "wait" or step < job["at_step"]:
            heartbeat.done()
        time.sleep(STEP_S)
    heartbeat.begin("barrier")
    while job["misdeeds"] and attempt < job.get("faulty_attempts", 1000):
        time.sleep(STEP_S)  # as a rank that waits for one that is gone
    heartbeat.done()
    heartbeat.doing(END)


def do(misdeed: str, folder: Path, rank: int) -> None:
    if misdeed.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[misdeed])
    elif misdeed == "exit":
        print("the last line of rank", rank, file=sys.stderr)
        os._exit(3)
    elif misdeed == "stall":
        time.sleep(600)
    elif misdeed == "memory":
        error = {"kind": "failure", "text": "MemoryError: cannot allocate 3 GB"}
        (folder / f"rank-{rank}.error").write_text(json.dumps(error))
        raise SystemExit(1)
    elif misdeed == "child":
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
