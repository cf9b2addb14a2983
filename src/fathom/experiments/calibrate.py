"""A calibration in a worker process: where a call ends the process, another worker goes on without that call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fathom.core import stopping
from fathom.core.errors import EngineError
from fathom.experiments.isolate import NoRecord, in_worker
from fathom.measure.calibration import TIMING

HEARTBEAT_TIMEOUT_S = 300.0  # without another step of a network: a call hangs
MOST_LOST = 20  # workers; a machine on which more end has another fault
LEAST_S = 5.0  # left of the budget that is worth another worker


def calibrated(
    device: str,
    budget_s: float,
    precisions: Sequence[str],
    threads: int | None,
    workloads: Sequence[tuple[str, str]],
    out: Path,
    on_event: Callable[[Mapping[str, Any]], None],
) -> Path:
    """The file. Events: resumed (op calls that are there), timing (which step's) and lost (why a worker ended)."""
    stop = time.monotonic() + budget_s
    written: list[Path] = []

    def watch(event: Mapping[str, Any]) -> None:
        if "result" in event:
            written.append(Path(event["result"]))
        else:
            on_event(event)

    for _ in range(MOST_LOST):
        job = {
            "calibrate": device,
            "budget_s": stop - time.monotonic(),
            "precisions": list(precisions),
            "threads": threads,
            "workloads": [list(each) for each in workloads],
            "out": str(out),
        }
        try:
            ended = in_worker(job, heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S, on_event=watch)
        except BaseException as error:
            if stopping.requested(error) is not None:  # no fault of the call that was being timed
                for left in out.glob(f"*{TIMING}"):
                    left.unlink()
            raise
        if written:
            return written[-1]
        reason = ended.reason if isinstance(ended, NoRecord) else "it left a record"
        if not any(out.glob(f"*{TIMING}")):
            raise EngineError(f"the worker ended outside of any call, where another one would end too: {reason}")
        on_event({"lost": reason})
        if stop - time.monotonic() < LEAST_S:
            break
    raise EngineError("no worker came to the end of the budget; what was timed is kept, and the same command resumes")
