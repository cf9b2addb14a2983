"""Marks in a profiler's trace: which part of a step is data, forward, backward or optimizer work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch.profiler import record_function


class _NoMark(AbstractContextManager[Any]):
    """Does nothing, and in C: formatting nothing takes any arguments and gives what is false, without a Python frame.

    Steps enter four of these, and some steps take two milliseconds.
    """

    __enter__ = __exit__ = staticmethod("".format)  # type: ignore[assignment]


_NO_MARK = _NoMark()
_marking = False


def mark(phase: str) -> AbstractContextManager[Any]:
    """Marks data, forward, backward or optimizer work for a profiler; next to nothing while none is running."""
    return record_function(f"fathom.{phase}") if _marking else _NO_MARK


@contextmanager
def marks_on() -> Iterator[None]:
    """While open, marks are written; whoever starts a profiler opens this."""
    global _marking  # noqa: PLW0603  one switch for the process, as the profiler is one
    before, _marking = _marking, True
    try:
        yield
    finally:
        _marking = before
