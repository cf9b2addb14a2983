"""The other side of hosts.py: on the machine that is measured, plans and runs what is asked for, by JSON lines.

Requests come on stdin, answers go to stdout. Each answer is a line that begins with MARK, as login scripts print, too.
The end of stdin ends the agent and the run that is under way: it means that whoever asked has gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import msgspec

from fathom import __version__
from fathom.core.errors import FathomError
from fathom.core.record import Record, moment
from fathom.core.spec import RunSpec
from fathom.experiments import engines
from fathom.experiments.isolate import failed, isolated
from fathom.experiments.study import plan_here
from fathom.machine.host import boot_id, fingerprint

MARK = b"fathom-agent "
BEAT_S = 5.0  # between two signs of life


class Agent:
    """One conversation. Two threads beside the main one: a reader of requests, and a sender of signs of life."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self._in, self._out = requests, answers
        self._writing = threading.Lock()
        self._waiting: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        self._busy = self._left = False
        self._done = threading.Event()

    def serve(self) -> None:
        for work in (self._read, self._beat):
            threading.Thread(target=work, daemon=True).start()
        machine = msgspec.to_builtins(fingerprint())
        self._say(hello={"machine": machine, "boot": boot_id(), "now": moment(), "version": __version__})
        while (request := self._waiting.get()) is not None:
            self._busy = True
            if self._left:  # since it was asked
                break
            self._answer(request)
            self._busy = False
        self._done.set()

    def _answer(self, request: Mapping[str, Any]) -> None:
        try:
            match request:
                case {"plan": dict(wanted)}:
                    self._say(planned=[spec.non_defaults() for spec in plan_here(**wanted)])
                case {"trials": dict(spec)}:
                    wanted_trials = engines.trials_for(RunSpec.from_json(spec))
                    self._say(trials=[each.non_defaults() for each in wanted_trials if engines.refusal(each) is None])
                case {"run": dict(spec)}:
                    self._say(record=self._run(RunSpec.from_json(spec)).to_json())
                case _:
                    self._say(refused=f"no such request: {', '.join(request)[:80]}")
        except (FathomError, TypeError) as error:  # of another version, a plan may have arguments unknown here
            self._say(refused=" ".join(str(error).split()))

    def _run(self, spec: RunSpec) -> Record:
        try:
            return isolated(spec, lambda done, total: self._say(progress=[done, total]))
        except FathomError as error:
            return failed(spec, str(error))

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # a stdin that cannot be read has ended
            for line in self._in:
                with contextlib.suppress(ValueError):
                    if isinstance(request := json.loads(line), dict):
                        self._waiting.put(request)
        self._left = True
        self._waiting.put(None)
        if self._busy:
            # as a user would end a study: its worker ends first; to the main thread, which may be waiting
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _beat(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads, or the conversation has just ended
            while not self._done.wait(BEAT_S):
                self._say(alive=True)

    def _say(self, **message: Any) -> None:
        """On a line of its own, whatever else was printed before."""
        line = b"\n" + MARK + json.dumps(message).encode() + b"\n"
        with self._writing:
            self._out.write(line)
            self._out.flush()


def serve() -> None:
    """On this process's stdin and stdout; whatever else prints to stdout prints to stderr."""
    sys.stdout.flush()
    with _private_stdout() as answers:
        Agent(sys.stdin.buffer, answers).serve()


@contextlib.contextmanager
def _private_stdout() -> Iterator[BinaryIO]:
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        try:
            yield answers
        finally:
            os.dup2(answers.fileno(), 1)
