"""The other side of isolate.py: the worker that measures one spec, and above it a keeper that leaves nobody behind.

Started as `python -m fathom.worker FD PARENT SPEC`, it reports on the pipe FD in JSON lines.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

import psutil

from fathom.core.errors import BadOption, FathomError
from fathom.core.events import Hear, Progress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.measure.loop import measure

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl


def keep(parent: int, pipe: int) -> None:
    """Forks, and returns in the worker alone. The first process stays as its keeper: when the worker ends, when the
    parent asks (SIGTERM) or when the parent is gone, it ends all that the worker started, and then itself."""

    def stop(number: int, _: object) -> None:
        _end_all_below()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))  # held back while it was started
    _ask_linux(PR_SET_CHILD_SUBREAPER, 1)  # what the worker orphans comes to the keeper, whatever its session
    _die_after(parent, signal.SIGTERM)
    keeper, worker = os.getpid(), os.fork()
    if worker == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _die_after(keeper, signal.SIGKILL)
        return
    os.close(pipe)
    while (ended := os.wait())[0] != worker:
        pass  # an orphan
    _end_all_below()
    code = os.waitstatus_to_exitcode(ended[1])
    os._exit(code if code >= 0 else 128 - code)  # as a shell tells a signal


def _die_after(parent: int, number: signal.Signals) -> None:
    """On Linux the kernel sends this signal when the parent ends, however that happens."""
    _ask_linux(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)  # it was gone before the kernel was asked


def _ask_linux(request: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(request, value)


def _end_all_below() -> None:
    """Orphans come to the keeper, so that all is over when it has no child left."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.002)


def work(pipe: int, spec: RunSpec) -> None:
    """Measures and reports. Each line begins on a line of its own, whatever a workload may have written before it."""
    _keep_from_children(pipe)
    out = os.fdopen(pipe, "wb")

    def tell(**message: Any) -> None:
        out.write(b"\n" + json.dumps(message).encode() + b"\n")
        out.flush()

    try:
        if spec.cores:
            _bind(spec.cores)
        record = _done(spec, lambda done, total: tell(progress=[done, total]), lambda told: tell(learning=dict(told)))
    except FathomError as error:
        tell(refused=str(error))
    else:
        tell(record=record.to_json())


def _done(spec: RunSpec, progress: Progress, hear: Hear) -> Record:
    if spec.kind == "training":
        from fathom.training.run import train  # here, as it loads torch

        return train(spec, progress, hear)
    return measure(spec, progress)


def _keep_from_children(pipe: int) -> None:
    """A child that a workload forks may go on as if it were the worker: it must not report too."""
    os.set_inheritable(pipe, False)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.register_at_fork(after_in_child=lambda: os.dup2(nowhere, pipe, inheritable=False))


def _bind(cores: tuple[int, ...]) -> None:
    """Before torch is loaded: its thread pools are made for the cores they find."""
    if not hasattr(os, "sched_setaffinity"):
        raise BadOption("this system does not let a program be bound to cores")
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise BadOption(f"cannot run on cores {','.join(map(str, cores))}: {error.strerror}") from None


def main() -> None:
    pipe, parent = int(sys.argv[1]), int(sys.argv[2])
    keep(parent, pipe)
    work(pipe, RunSpec.from_json(json.loads(sys.argv[3])))
