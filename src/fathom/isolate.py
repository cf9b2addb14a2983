"""One run = one fresh worker process, watched by its parent: a crash, a hang or a kill becomes a recorded outcome.

The worker is started as `python -m fathom.isolate FD SPEC` and reports on the pipe FD in JSON lines: progress, then a
record or the one line of an error. What it prints elsewhere is kept only to explain a failure.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any

from fathom.errors import BadOption, FathomError
from fathom.machine import fingerprint
from fathom.measure import Progress, measure
from fathom.record import Record
from fathom.spec import RunSpec

TIMEOUT_S = 1800.0


class Refused(FathomError):
    """The worker met an error that the user can put right; the text is the worker's."""


def isolated(spec: RunSpec, progress: Progress = lambda done, total: None, timeout_s: float = TIMEOUT_S) -> Record:
    """measure(spec) in a process of its own, with the wall time seen from here."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile("w+", errors="replace") as log, _worker(spec, log) as (process, pipe):
        record = None
        for message in _messages(pipe, begun + timeout_s):
            if "progress" in message:
                progress(*message["progress"])
            elif "refused" in message:
                raise Refused(message["refused"])
            elif "record" in message:
                record = Record.from_json(message["record"], "worker")
        late = time.perf_counter() >= begun + timeout_s
        if record is None and not late:
            process.wait()
        wall_s = time.perf_counter() - begun
        if record is not None:
            return replace(record, sections=replace(record.sections, wall_s=wall_s))
        why = f"no end after {timeout_s:g} s" if late else _death(process.returncode, log)
        return failed(spec, why)


def failed(spec: RunSpec, why: str) -> Record:
    """The record of a run that left none itself."""
    return Record(spec=spec, machine=fingerprint(), device=spec.device, outcome="failed", reason=why)


@contextlib.contextmanager
def _worker(spec: RunSpec, log: IO[str]) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A worker in a process group of its own, which is gone with everything it started when this is left."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "fathom.isolate", str(writer), json.dumps(spec.to_json())]
    process = subprocess.Popen(command, pass_fds=[writer], stdout=log, stderr=log, start_new_session=True)
    os.close(writer)
    try:
        yield process, reader
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(reader)


def _messages(pipe: int, deadline: float) -> Iterator[dict[str, Any]]:
    """JSON lines from the worker until it closes the pipe or the time is up; what is no message is passed over."""
    waiting = b""
    while (left := deadline - time.perf_counter()) > 0:
        ready, _, _ = select.select([pipe], [], [], left)
        chunk = os.read(pipe, 1 << 16) if ready else b""
        if not chunk:
            return
        *lines, waiting = (waiting + chunk).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    yield message


def _death(code: int, log: IO[str]) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        hint = ", most likely for want of memory" if name == "SIGKILL" else ""
        return f"the worker was ended by {name}{hint}"
    log.seek(0)
    last = [line for line in log.read()[-4000:].splitlines() if line.strip()]
    return f"the worker ended with code {code}" + (f": {last[-1].strip()}" if last else "")


def _die_with_parent() -> None:
    """On Linux the kernel ends this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _work(pipe: int, spec: RunSpec) -> None:
    def tell(**message: Any) -> None:
        os.write(pipe, json.dumps(message).encode() + b"\n")

    try:
        if spec.cores:
            _bind(spec.cores)
        record = measure(spec, lambda done, total: tell(progress=[done, total]))
    except FathomError as error:
        tell(refused=str(error))
        return
    line = json.dumps({"record": record.to_json()}).encode() + b"\n"
    with os.fdopen(pipe, "wb") as out:
        out.write(line)


def _bind(cores: tuple[int, ...]) -> None:
    """Before torch is loaded: its thread pools are made for the cores they find."""
    if not hasattr(os, "sched_setaffinity"):
        raise BadOption("this system does not let a program be bound to cores")
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise BadOption(f"cannot run on cores {','.join(map(str, cores))}: {error.strerror}") from None


if __name__ == "__main__":
    _die_with_parent()
    _work(int(sys.argv[1]), RunSpec.from_json(json.loads(sys.argv[2])))
