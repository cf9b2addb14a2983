"""Ctrl-C and SIGTERM: one line and exit code 130 or 143, from the first instant of a command to its last.

An exception that a signal handler raises can be lost: extension modules that are being imported, destructors and
callbacks swallow it, turn it into another error, or crash. So the handler ends the process by itself. Only while there
is something to release (a worker, a half-written file, a progress bar) does it raise `Stopped` instead.

This is the first module that a command loads, so it imports next to nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import NoReturn

WORDS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended by SIGTERM"}
AGAIN_S = 1.0  # a signal this long after the first one is another one: `timeout` sends two at once
IMPORT = "<frozen importlib._bootstrap>"  # the file of every frame that imports a module


class Stopped(BaseException):
    """A signal that asks the program to end, as an exception: everything is released on the way out."""


class _State:
    """Of this process: which signal came, when, and what is to be released."""

    number: int | None = None
    at_s = 0.0
    releasing: list[bytes]


_state = _State()
_state.releasing = []


def install() -> None:
    """From here on a signal ends the process with one line; one that is ignored, as after nohup or &, stays ignored."""
    _state.number = None
    for descriptor in range(3):  # one that is closed would become that of the next file, and get what is printed
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for number in WORDS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _handle)


def hold(last_words: bytes = b"") -> None:
    """From here to release() a signal raises `Stopped`, so that what is held is released.

    While a module is imported a signal ends the process at once even so, after `last_words` on stderr.
    """
    _state.releasing.append(last_words)


def release() -> None:
    _state.releasing.pop()


class unwinding:
    """hold() and release() around a block. A signal whose exception was lost in it is heeded when it is left.

    with unwinding():
        ...
    """

    def __init__(self, last_words: bytes = b"") -> None:
        self._last_words = last_words

    def __enter__(self) -> None:
        hold(self._last_words)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        release()
        if kind is None:
            check()


def check() -> None:
    """Ends, or raises `Stopped`, where a signal has come and its exception was lost."""
    if _state.number is not None:
        _stop(_state.number)


def requested(error: BaseException) -> int | None:
    """The signal that asked this process to end, if one did: `Stopped` may have become another error on its way."""
    if _state.number is None and isinstance(error, Stopped):
        return int(error.args[0])
    return _state.number


def _handle(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    first = _state.number is None
    if not first and now - _state.at_s < AGAIN_S:
        return
    if first:
        _state.number, _state.at_s = number, now
    if first and not importing(frame):
        _stop(number)
    _end(number)


def importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == IMPORT:
            return True
        frame = frame.f_back
    return False


def _stop(number: int) -> NoReturn:
    if _state.releasing:
        raise Stopped(number)
    _end(number)


def _end(number: int) -> NoReturn:
    """By system calls alone: whatever was interrupted may hold the locks of stdout and stderr."""
    with contextlib.suppress(OSError):  # nobody may read it
        os.write(2, b"".join(_state.releasing) + f"fathom: {WORDS[number]}\n".encode())
    os._exit(128 + number)
