"""Heartbeat: a small shared file in which a rank says where it is, for whoever watches it from outside.

Writing it costs a microsecond and no system call, so that it can be done at every collective operation. The watcher
reads it also when the rank is stopped, hung in native code or dead.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from fathom.core.ranks import OPERATIONS

_LAYOUT = struct.Struct("<qqqqqqdd")
_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"  # which attempt of the job this process is, as torchrun tells it
WORDS = (*OPERATIONS, "set-up", "step", "rendezvous", "end", "barrier", "evaluation")  # kept by number
SET_UP, STEP, RENDEZVOUS, END, BARRIER, EVALUATION = WORDS[-6:]  # what a rank may be doing
_NUMBERS = {word: number for number, word in enumerate(WORDS)}


@dataclass(frozen=True)
class Beat:
    """Where a rank was when it last said so."""

    pid: int
    attempt: int  # how often the job had been restarted when the rank began
    doing: str  # of WORDS
    step: int
    begun: int  # collective operations so far
    done: int
    since_s: float  # on the system's monotonic clock: the last change of any of these
    oldest_s: float  # when the oldest operation that is not done began; 0: none is under way

    @property
    def waiting(self) -> bool:
        """Whether it is inside a collective operation, which other ranks may keep it in."""
        return self.begun > self.done


class Heartbeat:
    """The writer's side. Each operation is begun and done; those of one rank may overlap, and end as they began."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(_LAYOUT.size)
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._word, self._step, self._done = SET_UP, 0, 0
        self._process = os.getpid(), int(os.environ.get(_ATTEMPT, "0"))
        self._under_way: deque[tuple[str, float]] = deque()  # operations and when they began, the oldest first
        self._write()

    def doing(self, word: str, step: int = 0) -> None:
        """Outside every collective operation."""
        self._word, self._step = word, step
        self._write()

    def begin(self, operation: str) -> int:
        """Says that a collective operation begins; gives its number in this rank, from 1."""
        self._under_way.append((operation, time.monotonic()))
        self._write()
        return self._done + len(self._under_way)

    def done(self) -> None:
        """The oldest operation has ended."""
        self._done += 1
        self._under_way.popleft()
        self._write()

    def _write(self) -> None:
        word, oldest_s = self._under_way[0] if self._under_way else (self._word, 0.0)
        numbers = (*self._process, _NUMBERS[word], self._step, self._done + len(self._under_way), self._done)
        self._memory[:] = _LAYOUT.pack(*numbers, time.monotonic(), oldest_s)


def read(path: Path) -> Beat | None:
    """None before the rank has begun."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if len(content) != _LAYOUT.size:
        return None
    pid, attempt, doing, step, begun, done, since_s, oldest_s = _LAYOUT.unpack(content)
    if pid <= 0 or not 0 <= doing < len(WORDS):
        return None
    return Beat(pid, attempt, WORDS[doing], step, begun, done, since_s, oldest_s)
