"""What goes wrong in a user's code, in one line that says what and where in it."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fathom.core.errors import BadOption, FathomError

LONGEST_TEXT = 300  # characters of an error's own text
ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)")  # colours, titles, cursor moves
OURS = str(Path(__file__).parents[2])
LIBRARIES = (str(Path(torch.__file__).parent), "<frozen")  # where a line number is of no use
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
CALLERS = tuple(  # the files of ours that call a user's code, or torch with what the user made
    str(Path(OURS, *each))
    for each in (("engine", "base.py"), ("engine", "session.py"), ("core", "plugins.py"), ("measure", "own"))
)


def users_fault(target: str, error: BaseException) -> BaseException:
    """An error of the user's code in one line; one that comes from Fathom alone, as it is."""
    if isinstance(error, FathomError):
        return error
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = [file for file in files if file.startswith(OURS)]
    called = not files or (not files[-1].startswith(OURS) and (not ours or ours[-1].startswith(CALLERS)))
    return one_line(target, error) if called else error


def one_line(target: str, error: BaseException) -> BadOption:
    """What went wrong in a user's code, and where in it."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith((OURS, *LIBRARIES))]
    written = [frame for frame in theirs if not frame.filename.startswith(INSTALLED)] or theirs
    where = f" ({written[-1].filename}, line {written[-1].lineno})" if written else ""
    if isinstance(error, SystemExit):
        return BadOption(f"{target} called sys.exit({_text_of(error)}){where}")
    text = _text_of(error)
    if "register_meta" in text or "no fake impl" in text:
        return BadOption(f"{target} failed: the size of a result depends on values (nonzero, a boolean index){where}")
    return BadOption(f"{target} failed: {type(error).__name__}{': ' if text else ''}{text}{where}")


def _text_of(error: BaseException) -> str:
    """The first line of an error's text, which is the user's to write and may itself fail."""
    try:
        return readable(str(error).strip().partition("\n")[0])
    except BaseException:
        return "its text cannot be shown"


def readable(text: str) -> str:
    """Without control characters, which a terminal would obey, and of a sensible length."""
    plain = ESCAPE.sub("", text[: 10 * LONGEST_TEXT])
    shown = "".join(letter if letter.isprintable() else " " for letter in plain)
    shown = " ".join(shown.split())
    return shown if len(shown) <= LONGEST_TEXT else f"{shown[: LONGEST_TEXT - 1]}…"


def called(function: Callable[..., Any]) -> str:
    """A function by its name, with its file and line where it is written in Python."""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return readable(f"{name} ({code.co_filename}, line {code.co_firstlineno})" if code else name)
