"""stdout and stderr as they happen to be: in any encoding, closed, or on a full device; none of it is a traceback."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from fathom.core.errors import shortened

PLAIN = {  # how characters of ours are written where the encoding has none; others as Python escapes them
    "·": "*", "—": "-", "–": "-", "−": "-", "…": "...", "→": "->", "×": "x", "≥": ">=", "≤": "<=", "≈": "~", "±": "+-",
    "µ": "u", "°": "deg", "ρ": "rho",
}  # fmt: skip
LONGEST = 600  # characters of a message
EXPONENT, DIGITS = re.compile("[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+"), str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Whatever is printed can be encoded, also the name of a file that is no text; a closed stream takes everything."""
    codecs.register_error("fathom.plain", _plain)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, _Output(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


class _Output:
    """A stream that remembers why it could not be written to: by the error alone nobody could tell whose it is."""

    def __init__(self, stream: TextIO | None) -> None:
        self.problem: str | None = None
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="fathom.plain")
        self._stream = stream or io.StringIO()  # the process was started with it closed

    def write(self, text: str) -> int:
        with self._watched():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._watched():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """What is left of the output is dropped: the interpreter would try again to write it at its end.

        Where nobody reads on, as in `fathom list | head`, the process ends as other programs do. Only here: a pipe to
        a process of ours that has died is an error to be told, so that SIGPIPE stays ignored.
        """
        try:
            yield
        except BrokenPipeError:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.raise_signal(signal.SIGPIPE)
        except OSError as error:
            self.problem = error.strerror or str(error)
            with contextlib.suppress(OSError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._stream.fileno())
                os.close(null)
            raise


def say(line: str) -> None:
    """A message on stderr, if that takes one: one line of a sensible length, without the terminal's control codes."""
    shown = "".join(letter if letter.isprintable() else _escaped(letter) for letter in " ".join(line.splitlines()))
    with contextlib.suppress(OSError):
        print(f"fathom: {shown if len(shown) <= LONGEST else f'{shown[:LONGEST]}...'}", file=sys.stderr, flush=True)


def flushed(code: int) -> int:
    """The exit code, once all that was printed has left: the interpreter itself would tell of a failure in its way."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            say(fault(error) or str(error))
            code = code or 2
    return code


def fault(error: OSError) -> str | None:
    """What of the surroundings a system call failed for, in one line; None where it is a fault of Fathom's."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, _Output) and stream.problem:
            return f"cannot write the output: {stream.problem}"
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the working directory has been deleted; change to one that exists"
    if isinstance(error.filename, str | bytes):  # a file that may not be read, or whose name is too long
        return f"{shortened(os.fsdecode(error.filename))}: {error.strerror}"
    return None


def _plain(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = EXPONENT.sub(_exponent, error.object[error.start : error.end])
    return "".join(PLAIN.get(letter) or _escaped(letter) for letter in text), error.end


def _exponent(found: re.Match[str]) -> str:
    return "^" + found[0].translate(DIGITS)


def _escaped(letter: str) -> str:
    """A byte of a file name that is no text as that byte, any other character as Python writes it."""
    if "\udc80" <= letter <= "\udcff":
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return ascii(letter)[1:-1]
