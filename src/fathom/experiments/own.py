"""A user's own model profiled in a process of its own: whatever its code does, the caller has a record or one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from fathom.core.errors import Refused
from fathom.core.record import Record
from fathom.experiments.checks import check_directory
from fathom.experiments.isolate import NoRecord, in_worker

TIMEOUT_S = 600.0
OURS = str(Path(__file__).parents[1])
FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in ', re.MULTILINE)  # of the fault handler
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|<frozen ")


def profile_target(target: str, timeout_s: float = TIMEOUT_S, **settings: Any) -> Record:
    """The profile of what package.module:function makes; settings are those of fathom.profile()."""
    check_directory()
    given = {name: value for name, value in settings.items() if value is not None}
    found = in_worker({"target": target, **given}, heartbeat_timeout_s=timeout_s)
    if isinstance(found, Record) and found.profile is not None:
        return found
    if isinstance(found, Record):
        raise Refused(f"{target} was not profiled: {found.reason or 'its record has no profile'}")
    if "Traceback (most recent call last)" in found.printed and "code 1" in found.reason:
        raise RuntimeError(f"the worker failed:\n{found.printed}")  # a fault of our own: the user's are one line
    raise Refused(f"{target} {_ended(found, timeout_s)}")


def _ended(found: NoRecord, timeout_s: float) -> str:
    if found.timed_out:
        return f"was not profiled within {timeout_s:g} s and was ended; --timeout gives it longer"
    frames = [match.groupdict() for match in FRAME.finditer(found.printed)]
    if not frames:
        return f"ended its process: {found.reason}"
    how = found.reason.partition(": ")[0]  # what was printed last is the fault handler's
    theirs = [each for each in frames if not (LIBRARY.search(each["file"]) or each["file"].startswith(OURS))]
    return f"ended its process: {how}" + (f" ({theirs[0]['file']}, line {theirs[0]['line']})" if theirs else "")
