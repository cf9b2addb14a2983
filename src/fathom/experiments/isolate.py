"""One run = one fresh worker process, watched by its parent: a crash, a hang or a kill becomes a recorded outcome.

The worker (worker.py) reports on a pipe in JSON lines: progress, then a record or the one line of an error. Of what it
prints elsewhere, the end is kept to explain a failure.
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
from dataclasses import replace
from typing import Any

import psutil

from fathom.core.errors import DataError, FathomError
from fathom.core.events import Hear, Progress
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.machine.host import fingerprint

HEARTBEAT_TIMEOUT_S = 1800.0  # without a step: a run may take for ever, a step may not
EXIT_S = 30.0  # from a worker's record to its end
GRACE_PERIOD_S = 10.0  # for the keeper to end what the worker started
LONGEST = 1 << 28  # bytes in a line; a record has a few million at most
TAIL = 4000  # bytes kept of what a worker prints
HELD = (signal.SIGINT, signal.SIGTERM)  # back while a worker is started; the worker lets them through again
MARK = "FATHOM_RUN"  # in the environment of a worker and of all it starts


class Refused(FathomError):
    """The worker met an error that the user can put right; the text is the worker's."""


def isolated(
    spec: RunSpec,
    progress: Progress = lambda done, total: None,
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    *,
    hear: Hear = lambda told: None,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> Record:
    """measure(spec) in a process of its own, with the wall time seen from here: from its start to its end.

    Another interpreter, or variables of its environment, may bring another Fathom or another torch.
    """
    begun = time.perf_counter()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)  # a signal now would leave a worker that nobody knows
    try:
        worker = _Worker(spec, python, environment or {})
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return failed(spec, f"no worker could be started: {error.strerror or error}")
    record: Record | None = None
    unread = ""
    deadline = begun + heartbeat_timeout_s
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        while not worker.ended and (left := deadline - time.perf_counter()) > 0:
            for message in worker.messages(left):
                match message:
                    case {"progress": [int(done), int(total)]}:
                        deadline = time.perf_counter() + heartbeat_timeout_s
                        progress(done, total)
                    case {"learning": dict(told)}:
                        deadline = time.perf_counter() + heartbeat_timeout_s
                        hear(told)
                    case {"refused": str(line)}:
                        raise Refused(line)
                    case {"record": document} if record is None:
                        try:
                            record = Record.from_json(document, "the worker's")
                            deadline = time.perf_counter() + EXIT_S
                        except DataError as error:  # of another version of Fathom, say
                            unread = f"; {error}"
        wall_s = time.perf_counter() - begun
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)  # nor would one now leave time to end it
        worker.end()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if record is None:
        return failed(spec, (worker.death() if worker.ended else f"no step in {heartbeat_timeout_s:g} s") + unread)
    if not worker.ended:
        note = f"the process did not end within {EXIT_S:g} s of its record and was killed: its wall time is not known"
        return replace(record, notes=[*record.notes, note])
    return replace(record, sections=replace(record.sections, wall_s=wall_s))


def failed(spec: RunSpec, why: str) -> Record:
    """The record of a run that left none itself."""
    return Record(spec=spec, machine=fingerprint(), device=spec.device, outcome="failed", reason=why)


class _Worker:
    """A worker below its keeper, in a session of their own, and the two pipes it is heard on."""

    def __init__(self, spec: RunSpec, python: str, environment: Mapping[str, str]) -> None:
        self.ended = False
        self._waiting = bytearray()  # of a line that has not ended yet
        self._printed = b""
        self._mark = uuid.uuid4().hex
        self._pipe, writer = os.pipe()
        arguments = [str(writer), str(os.getpid()), json.dumps(spec.non_defaults())]
        try:
            self._process = subprocess.Popen(
                [python, "-m", "fathom.worker", *arguments],
                env=os.environ | environment | {MARK: self._mark},
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
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        for source in (self._pipe, self._output):
            self._selector.register(source, selectors.EVENT_READ)

    def messages(self, seconds: float) -> Iterator[Any]:
        """What the worker tells within this time, or a fifth of a second; what is no message is passed over."""
        ready = self._selector.select(min(seconds, 0.2))
        for key, _ in ready:
            chunk = os.read(key.fd, 1 << 16)
            if not chunk:
                self._selector.unregister(key.fd)
            elif key.fd == self._output:
                self._printed = (self._printed + chunk)[-TAIL:]
            else:
                yield from self._lines(chunk)
        # the keeper has its end of the output open until it ends; killed itself, it may leave someone who has it too
        self.ended = not self._selector.get_map() or (not ready and self._process.poll() is not None)

    def _lines(self, chunk: bytes) -> Iterator[Any]:
        first, *others = chunk.split(b"\n")
        self._waiting += first
        for other in others:
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(self._waiting)
            self._waiting = bytearray(other)
        if len(self._waiting) > LONGEST:
            self._waiting.clear()

    def end(self) -> None:
        """After this nothing of the run is left, but for a process that the system itself cannot end."""
        self._process.terminate()
        try:
            self._process.wait(GRACE_PERIOD_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0:
            self._sweep()
        self._selector.close()
        os.close(self._pipe)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _sweep(self) -> None:
        """The keeper was killed, and nobody else knows who was below it: whoever carries the mark was."""
        deadline = time.perf_counter() + GRACE_PERIOD_S
        while (found := _marked(self._mark)) and time.perf_counter() < deadline:
            for process in found:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(found, timeout=0.1)

    def death(self) -> str:
        """How the worker ended, and its last words."""
        code = self._process.returncode
        number = -code if code < 0 else code - 128
        if number == signal.SIGKILL:
            return "the worker was ended by SIGKILL, most likely for want of memory"
        if number in set(signal.Signals):
            how = f"the worker was ended by {signal.Signals(number).name}"
        else:
            how = f"the worker ended with code {code} and left no record"
        lines = [line for line in self._printed.decode(errors="replace").splitlines() if line.strip()]
        readable = "".join(letter if letter.isprintable() else " " for letter in lines[-1]) if lines else ""
        return f"{how}: {readable.strip()[:300]}" if readable.strip() else how


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found
