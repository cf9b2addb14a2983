"""Other machines over ssh or srun: each runs an agent (agent.py), which measures there; records come back one by one.

Nothing is written on the other machine. A record is decoded as a whole before it counts: what a broken connection left
of one is no record. Closing the agent's stdin ends it and the run that is under way.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fathom.core.errors import BadOption, DataError, Refused, UnknownName, shortened
from fathom.core.events import OnProgress, no_progress
from fathom.core.fingerprint import Machine
from fathom.core.record import Record
from fathom.core.spec import RunSpec
from fathom.core.typed import typed
from fathom.experiments.agent import MARK

TIMEOUT_S = 60.0  # without a sign of life from a host; an agent gives one every few seconds
CONNECT_S = 15  # for ssh to connect
GRACE_PERIOD_S = 15.0  # from the end of its stdin to the end of an agent: it ends a run first
KILL_S = 2.0  # from SIGTERM to SIGKILL, of the process that holds the connection
LONGEST_LINE = 1 << 28  # bytes; a record has a few million at most
OUTPUT_TAIL = 4000  # bytes kept of what is printed to stderr
MOST_HOSTS = 1024
LONGEST_NAME = 320  # characters of user@host
SSH = "ssh"
SSH_FAILED = 255  # the exit code of ssh where it could not connect, or lost the connection
NOT_FOUND = 127  # the exit code of a shell that has not found a command
HOST = re.compile(r"(?:[A-Za-z0-9_][\w.-]*@)?(?:[A-Za-z0-9_][\w.-]*|[0-9a-fA-F]*:[0-9a-fA-F:.]+(?:%\w+)?)", re.ASCII)


def hosts_of(text: str) -> list[str]:
    """The hosts of a list such as a,user@b,c. None can be taken for an option of ssh."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not HOST.fullmatch(name) or len(name) > LONGEST_NAME:
            raise BadOption(f"--hosts takes host names such as a,user@b, not {shortened(name)!r}")
        if names.count(name) > 1:
            raise BadOption(f"--hosts names {shortened(name)} twice")
    if len(names) > MOST_HOSTS:
        raise BadOption(f"--hosts takes {MOST_HOSTS} hosts at most, not {len(names)}")
    return names


def over_ssh(host: str, command: str) -> list[str]:
    """No question is asked: a host that needs a password, or is not known yet, refuses."""
    options = ["BatchMode=yes", f"ConnectTimeout={CONNECT_S}", "ServerAliveInterval=15", "ServerAliveCountMax=3"]
    return ["ssh", "-T", *(word for option in options for word in ("-o", option)), "--", host, command]


def over_srun(host: str, command: str) -> list[str]:
    """A step of one task on one node of the allocation that this runs in, with all its cores.

    A shell that was itself started by srun holds the cores of its node: without --overlap, the agent would wait for it.
    """
    where = [f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--cpu-bind=none", "--overlap"]
    return ["srun", *where, "sh", "-c", command]


TRANSPORTS: Mapping[str, Callable[[str, str], list[str]]] = {SSH: over_ssh, "srun": over_srun}


def command_line(via: str, host: str, fathom: str) -> list[str]:
    """What starts an agent there. `fathom` is how the command is typed there, as a shell reads it."""
    if via not in TRANSPORTS:
        raise UnknownName.among("way to reach a host", via, TRANSPORTS)
    return TRANSPORTS[via](host, f"{fathom} study --agent")


class Lost(Exception):
    """A host that does not answer, or not any more; the text says how."""


@dataclass(frozen=True)
class Hello:
    """Who answered."""

    machine: Machine
    boot: str | None  # tells two machines of one identity apart
    now: str  # by its own clock
    version: str | None = None  # of its Fathom; None before that was said

    def difference(self, here: str, commit: str | None) -> str | None:
        """How its Fathom differs from this one, which compares its runs with those of other hosts."""
        if self.version != here:
            return f"fathom {self.version or 'of an older version'} there, {here} here"
        there = self.machine.commit
        return f"fathom of commit {there} there, {commit} here" if there and commit and there != commit else None


class Connection:
    """One host and the agent on it. run() is what experiments.study takes to run a spec."""

    def __init__(self, host: str, command: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
        self.host = host
        self.left = False  # by this side, which has no more to ask
        self.host_id: str | None = None  # in place of the machine's own, where that is another host's as well
        self._command, self._timeout_s = list(command), timeout_s
        self._unfinished = bytearray()  # the line whose end has not come yet
        self._printed = b""
        self._ready: list[Any] = []
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us alone: the agent's stdin is closed first
            )
        except OSError as error:
            raise Lost(f"cannot start {self._command[0]}: {error.strerror or error}") from None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out, self._err = self._process.stdout.fileno(), self._process.stderr.fileno()
        self._selector = selectors.DefaultSelector()
        for source in (self._out, self._err):
            self._selector.register(source, selectors.EVENT_READ)

    def hello(self) -> Hello:
        answer = self._answer("hello")
        try:
            machine = typed(answer["machine"], Machine)
            boot = answer["boot"] or machine.boot_time
            return Hello(machine, boot, str(answer["now"]), answer.get("version"))
        except (msgspec.MsgspecError, KeyError, TypeError):
            raise Lost("its Fathom is of a version that this one does not understand") from None

    def plan(self, **wanted: Any) -> list[RunSpec]:
        self._ask(plan=wanted)
        return self._specs("planned")

    def trials(self, spec: RunSpec) -> list[RunSpec]:
        """One of each engine that can run this there."""
        self._ask(trials=spec.non_defaults())
        return self._specs("trials")

    def _specs(self, kind: str) -> list[RunSpec]:
        try:
            return [RunSpec.from_json(spec) for spec in self._answer(kind)]
        except (TypeError, AttributeError, DataError, BadOption, UnknownName) as error:
            raise Lost(f"its plan cannot be read: {error}") from None

    def run(self, spec: RunSpec, on_progress: OnProgress = no_progress) -> Record:
        """Its record, whole; a run that failed there is a record, too."""
        self._ask(run=spec.non_defaults())
        try:
            record = Record.from_json(self._answer("record", on_progress), "its record")
        except (DataError, Refused) as error:
            raise Lost(str(error)) from None
        if record.spec.id != spec.id:
            raise Lost("it sent the record of another run")
        return record if self.host_id is None else replace(record, machine=self.own(record.machine))

    def own(self, machine: Machine) -> Machine:
        """The machine under the host id that tells it from others."""
        return machine if self.host_id is None else replace(machine, host_id=self.host_id)

    def leave(self) -> None:
        """Ends the agent's stdin, and by that the agent; does not wait."""
        assert self._process.stdin is not None
        self.left = True
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()

    def wait(self, seconds: float) -> None:
        """For the end of the connection."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        """Ends the process that holds the connection, and what it started, such as a ProxyCommand."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_S)
                return

    def close(self, grace_period_s: float = GRACE_PERIOD_S) -> None:
        """By the thread that asks: ends the agent, then the connection, and releases both."""
        self.leave()
        self.wait(grace_period_s)
        self.kill()
        self._selector.close()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()

    def _ask(self, **message: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # it has gone, or it has been closed here
            raise Lost(self._end_reason()) from None

    def _answer(self, kind: str, on_progress: OnProgress = no_progress) -> Any:
        """The next answer of this kind."""
        for message in self._messages():
            match message:
                case {"progress": [int(done), int(total)]}:
                    on_progress(done, total)
                case {"refused": str(line)}:
                    raise Refused(line)
                case dict() if kind in message:
                    return message[kind]
        raise Lost(self._end_reason())

    def _messages(self) -> Iterator[Any]:
        """Until the other side ends. Whatever is not marked as an answer is skipped."""
        deadline = time.monotonic() + self._timeout_s
        while self._ready or self._out in self._selector.get_map():
            if self._ready:
                yield self._ready.pop(0)
                continue
            ready = self._selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise Lost(f"no answer for {self._timeout_s:g} s")
            for key, _ in ready:
                if self._take(key.fd):
                    deadline = time.monotonic() + self._timeout_s

    def _take(self, source: int) -> bool:
        """Reads what there is; whether an answer, or a part of one, was in it."""
        chunk = os.read(source, 1 << 16)
        if not chunk:
            self._selector.unregister(source)
        elif source == self._err:
            self._printed = (self._printed + chunk)[-OUTPUT_TAIL:]
        else:
            first, *others = chunk.split(b"\n")
            self._unfinished += first
            for other in others:
                self._line(bytes(self._unfinished))
                self._unfinished = bytearray(other)
            if len(self._unfinished) > LONGEST_LINE:
                self._unfinished.clear()
        return source == self._out and (bool(self._ready) or self._unfinished.startswith(MARK))

    def _line(self, line: bytes) -> None:
        if line.startswith(MARK):
            with contextlib.suppress(ValueError, RecursionError):
                self._ready.append(json.loads(line[len(MARK) :]))

    def _end_reason(self) -> str:
        """How the connection ended, with the last line that was printed there, or by ssh."""
        self.wait(KILL_S)
        while any(key.fd == self._err for key, _ in self._selector.select(0)):
            self._take(self._err)
        code = self._process.returncode
        words = last_words(self._printed.decode(errors="replace"))
        if code == NOT_FOUND or words.endswith("No module named fathom"):
            return f"no fathom there ({words[:200]}): --remote-command says how it is started"
        if code == SSH_FAILED and self._command[0] == SSH and words:
            by_hand = f" (ssh {self.host} by hand says more)" if words.startswith("Host key") else ""
            return words[:300].rstrip(".") + by_hand
        how = "the connection ended" if code is None else f"{self._command[0]} ended with code {code}"
        if code is not None and -code in set(signal.Signals):
            how = f"{self._command[0]} was killed by {signal.Signals(-code).name}"
        return f"{how}: {words[:300]}" if words else how


def last_words(printed: str) -> str:
    """The last line that was printed, in printable letters. What srun says of the end of a task is not its cause."""
    lines = [line for line in printed.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith(("srun: ", "slurmstepd"))]
    last = (own or lines or [""])[-1]
    return "".join(letter if letter.isprintable() else " " for letter in last).strip()


def told_apart(found: Mapping[str, Hello], known: Callable[[Machine], bool]) -> dict[str, str | None]:
    """Host -> the host id to use in place of its machine's, or None: its own will do.

    Machines that were installed from one image have the same id; their kernels' boot ids differ. known() says whether
    there are records of a machine already: one that was told apart before stays so when it answers alone.
    """
    boots: dict[tuple[object, ...], set[str | None]] = {}
    for hello in found.values():
        boots.setdefault(hello.machine.identity, set()).add(hello.boot)
    names = {}
    for host, hello in found.items():
        own = hashlib.sha256(f"fathom {hello.machine.host_id} {host}".encode()).hexdigest()[:12]
        shared = len(boots[hello.machine.identity]) > 1
        names[host] = own if shared or known(replace(hello.machine, host_id=own)) else None
    return names


def named_twice(found: Mapping[str, Hello]) -> dict[str, str]:
    """Host -> the host before it that is the same machine: both at once would disturb each other."""
    first: dict[tuple[object, ...], str] = {}
    twice = {}
    for host, hello in found.items():
        same = first.setdefault((*hello.machine.identity, hello.boot), host)
        if same != host:
            twice[host] = same
    return twice
