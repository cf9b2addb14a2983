"""One run = one fresh worker process, supervised by its parent: a crash, a hang or a kill becomes a failed record.

The worker (worker.py) reports JSON lines on a pipe: progress, then a record or a one-line error. The last lines that
it prints elsewhere are kept to explain a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import psutil

from fathom.core import stopping
from fathom.core.errors import DataError, Refused
from fathom.core.events import OnEvent, OnProgress, no_progress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.machine.host import fingerprint

HEARTBEAT_TIMEOUT_S = 1800.0  # without a step: a run has no time limit, a step has
EXIT_TIMEOUT_S = 30.0  # from a worker's record to its exit
GRACE_PERIOD_S = 10.0  # for the supervisor to end what the worker started; then it is killed
LONGEST_LINE = 1 << 28  # bytes; a record has a few million at most
OUTPUT_TAIL = 4000  # bytes kept of what a worker prints
BLOCKED = (signal.SIGINT, signal.SIGTERM)  # while a worker is being started; the worker unblocks them
RUN_TAG = "FATHOM_RUN"  # the environment variable that names the run, in a worker and in all that it starts
POLL_S = 0.2


def isolated(
    spec: RunSpec,
    on_progress: OnProgress = no_progress,
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    *,
    on_event: OnEvent = lambda event: None,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> Record:
    """measure(spec) in its own process; wall time is measured here, from the start of the process to its end.

    Another interpreter, or environment variables, may select another Fathom or another torch.
    """
    found = in_worker(
        spec.non_defaults(),
        on_progress,
        heartbeat_timeout_s,
        on_event=on_event,
        python=python,
        environment=environment or {},
    )
    return found if isinstance(found, Record) else failed(spec, found.reason)


@dataclass(frozen=True)
class NoRecord:
    """A worker that left no record: how it ended, and the last that it printed."""

    reason: str
    printed: str = ""
    timed_out: bool = False


def in_worker(
    job: Mapping[str, Any],
    on_progress: OnProgress = no_progress,
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    *,
    on_event: OnEvent = lambda event: None,
    python: str = sys.executable,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Record | NoRecord:
    """The record of a job (worker.py says which there are), done in a process of its own."""
    begun = time.perf_counter()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)  # a signal now would leave a worker without a parent
    try:
        worker = _started(job, python, environment, before)
    except OSError as error:
        return NoRecord(f"cannot start a worker: {error.strerror or error}")
    record: Record | None = None
    unreadable = ""
    deadline = begun + heartbeat_timeout_s
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        while not worker.ended and (left_s := deadline - time.perf_counter()) > 0:
            stopping.check()
            for message in worker.messages(left_s):
                match message:
                    case {"progress": [int(done), int(total)]}:
                        deadline = time.perf_counter() + heartbeat_timeout_s
                        on_progress(done, total)
                    case {"event": dict(event)}:
                        deadline = time.perf_counter() + heartbeat_timeout_s
                        on_event(event)
                    case {"refused": str(line)}:
                        raise Refused(line)
                    case {"record": document} if record is None:
                        try:
                            record = Record.from_json(document, "the worker's record")
                            deadline = time.perf_counter() + EXIT_TIMEOUT_S
                        except DataError as error:  # of another version of Fathom, say
                            unreadable = f"; {error}"
        wall_s = time.perf_counter() - begun
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)  # a second signal must not interrupt the clean-up
        try:
            worker.end()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if record is None:
        timeout = f"no progress for {heartbeat_timeout_s:g} s (heartbeat timeout)"
        reason = (worker.exit_reason() if worker.ended else timeout) + unreadable
        return NoRecord(reason, worker.printed, timed_out=not worker.ended)
    if not worker.ended:
        note = f"the process did not exit within {EXIT_TIMEOUT_S:g} s of its record and was killed: no wall time"
        return replace(record, notes=[*record.notes, note])
    return replace(record, sections=replace(record.sections, wall_s=wall_s))


def _started(job: Mapping[str, Any], python: str, environment: Mapping[str, str], mask: set[int]) -> _Worker:
    """A worker; where there is none, whatever the reason, signals are masked as before."""
    try:
        return _Worker(job, python, environment)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise


def failed(spec: RunSpec, reason: str) -> Record:
    """The record of a run whose worker left none."""
    return Record(spec=spec, machine=fingerprint(), device=spec.device, outcome="failed", reason=reason)


class _Worker:
    """A worker and its supervisor in their own session, and the two pipes that they are read from."""

    def __init__(self, job: Mapping[str, Any], python: str, environment: Mapping[str, str]) -> None:
        self.ended = False
        self._unfinished = bytearray()  # the line whose end has not come yet
        self._printed = b""
        self._tag = uuid.uuid4().hex
        self._pipe, writer = os.pipe()
        arguments = [str(writer), str(os.getpid()), json.dumps(job)]
        try:
            self._process = subprocess.Popen(
                [python, "-m", "fathom.worker", *arguments],
                env=os.environ | environment | {RUN_TAG: self._tag},
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(writer)
        stopping.hold()  # from here on a signal must end the worker, too
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        for source in (self._pipe, self._output):
            self._selector.register(source, selectors.EVENT_READ)

    def messages(self, seconds: float) -> Iterator[Any]:
        """What the worker reports within this time, or a fifth of a second; anything but JSON lines is skipped."""
        ready = self._selector.select(min(seconds, POLL_S))
        for key, _ in ready:
            chunk = os.read(key.fd, 1 << 16)
            if not chunk:
                self._selector.unregister(key.fd)
            elif key.fd == self._output:
                self._printed = (self._printed + chunk)[-OUTPUT_TAIL:]
            else:
                yield from self._lines(chunk)
        # The supervisor holds the output open until it ends. Where it was killed, an orphan may still hold it.
        self.ended = not self._selector.get_map() or (not ready and self._process.poll() is not None)

    def _lines(self, chunk: bytes) -> Iterator[Any]:
        first, *others = chunk.split(b"\n")
        self._unfinished += first
        for other in others:
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(self._unfinished)
            self._unfinished = bytearray(other)
        if len(self._unfinished) > LONGEST_LINE:
            self._unfinished.clear()

    def end(self) -> None:
        """Ends the supervisor and, through it, every process of the run; kills what is left."""
        stopping.release()
        self._process.terminate()
        try:
            self._process.wait(GRACE_PERIOD_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0:
            self._kill_tagged()
        self._selector.close()
        os.close(self._pipe)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _kill_tagged(self) -> None:
        """The supervisor was killed, and only the run tag tells which processes were below it."""
        deadline = time.perf_counter() + GRACE_PERIOD_S
        while (found := _tagged(self._tag)) and time.perf_counter() < deadline:
            for process in found:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(found, timeout=0.1)

    @property
    def printed(self) -> str:
        """The last that it printed."""
        return self._printed.decode(errors="replace")

    def exit_reason(self) -> str:
        """How the worker ended, and the last line that it printed."""
        code = self._process.returncode
        number = -code if code < 0 else code - 128
        if number == signal.SIGKILL:
            return "the worker was killed by SIGKILL, most likely out of memory"
        if number in set(signal.Signals):
            how = f"the worker was killed by {signal.Signals(number).name}"
        else:
            how = f"the worker exited with code {code} and left no record"
        lines = [line for line in self.printed.splitlines() if line.strip()]
        readable = "".join(letter if letter.isprintable() else " " for letter in lines[-1]) if lines else ""
        return f"{how}: {readable.strip()[:300]}" if readable.strip() else how


def _tagged(tag: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(RUN_TAG) == tag:
                found.append(process)
    return found
