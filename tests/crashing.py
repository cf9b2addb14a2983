"""Ending a sweep at its n-th line, whichever that is: killed, or by a signal.

python -m crashing JOURNAL LINE      a sweep on the card of simulated_nvml.environment() that kills itself there
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from simulated_nvml import UUID

from fathom.experiments.capping import sweep
from fathom.experiments.journal import Journal
from fathom.machine.governor import Governor, find_governors
from fathom.machine.meter import Target

SOURCE = str(Path(sys.modules[Journal.__module__].__file__ or "").parents[1])
OTHERS = {contextlib.__file__}  # what our own lines run through
VALUES = [300.0, 450.0]


@contextlib.contextmanager
def at_lines(actions: Mapping[int, Callable[[], None]]) -> Iterator[list[int]]:
    """Calls these at the n-th line of Fathom's that runs within; gives how many there were, as a list of one."""
    count, before = [0], sys.gettrace()

    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            count[0] += 1
            actions.get(count[0], lambda: None)()
        return on_line

    def on_call(frame: FrameType, *_: Any) -> Any:
        name = frame.f_code.co_filename
        return on_line if name.startswith(SOURCE) or name in OTHERS else None

    sys.settrace(on_call)
    try:
        yield count
    finally:
        sys.settrace(before)


def governors() -> list[Governor]:
    return find_governors("nvml_power_limit", Target(gpu_uuids=(UUID,)))


def main(path: str, line: str) -> None:
    found, journal = governors(), Journal(Path(path))
    with at_lines({int(line): lambda: os.kill(os.getpid(), signal.SIGKILL)}) as count:
        sweep(found, VALUES, lambda value: None, journal)
    print(count[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
