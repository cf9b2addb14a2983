"""The errors a user can act on: each is one readable line, and the command line exits with 2.

FathomError
├── UnknownName    a workload, preset or option that does not exist, with the nearest that does
├── BadOption      a value that cannot be
│   └── NotTrainable   a model that has inference alone, and why
├── DataError      a folder or file that is missing, truncated or corrupt: which one, where, what was expected
├── DeviceError    a device or precision that this machine does not have
├── DoesNotFit     a batch that the device's memory cannot hold
├── EngineError    a step that the engine cannot execute, and why
├── MissingExtra   an optional package, and how to install it
├── CappingError   a power or clock setting that could not be changed, and why
│   ├── NotPermitted   this user may not change it
│   ├── NotSupported   the device, its driver or the kernel cannot
│   ├── OutOfRange     a value outside the range that the driver permits, with the range
│   └── NotRestored    a setting that a sweep changed and could not put back, and what to do
└── Refused        any of these, raised in a worker process, with its text
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

LONGEST = 80  # characters of a wrong name or value that a message repeats


def shortened(text: str) -> str:
    """The beginning of what somebody typed, or a file held, where it would make a message unreadable."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def first_line(error: BaseException) -> str:
    """What an error says, without the pages that torch may add; "no message" where it says nothing."""
    return str(error).strip().partition("\n")[0] or "no message"


class FathomError(Exception):
    """Anything the user can put right; its text is one line."""


class UnknownName(FathomError):
    """A name that is not among the known ones."""

    @classmethod
    def among(cls, kind: str, name: str, known: Iterable[str]) -> UnknownName:
        choices = sorted(known)
        near = difflib.get_close_matches(name[:LONGEST].lower(), choices, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(choices)}"
        return cls(f"no {kind} {shortened(name)!r}; {hint}")


class BadOption(FathomError):
    """A value that an option cannot take."""


class NotTrainable(BadOption):
    """A model of which a training step cannot be taken; its inference can."""


class DataError(FathomError):
    """Data that is not there or not what its format says."""

    @classmethod
    def at(cls, path: Path | str, problem: str, *, offset: int | None = None, line: int | None = None) -> DataError:
        where = f"byte {offset}: " if offset is not None else f"line {line}: " if line is not None else ""
        return cls(f"{path}: {where}{problem}")


class DeviceError(FathomError):
    """A device or precision that is not available here."""


class DoesNotFit(FathomError):
    """More memory than the device has."""


class EngineError(FathomError):
    """A step that this engine cannot execute."""


class Refused(FathomError):
    """The worker met an error that the user can put right; the text is the worker's."""


class MissingExtra(FathomError):
    """An optional dependency that is not installed."""


class CappingError(FathomError):
    """A power or clock setting that could not be changed or verified."""


class NotPermitted(CappingError):
    """A setting that this user may not change; nothing was changed."""


class NotSupported(CappingError):
    """A setting that the device does not have; nothing was changed."""


class OutOfRange(CappingError):
    """A value that the driver does not permit; nothing was changed."""


class NotRestored(CappingError):
    """A setting that is still changed."""
