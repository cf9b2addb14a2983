"""Marks in a profiler's trace: which part of a step is data, forward, backward or optimizer work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch._C._profiler import _RecordFunctionFast

Mark = _RecordFunctionFast
"""A mark as a context manager. record_function would take 25 µs of a profiled step, and this takes 2; torch's own
compiler marks its kernels with it. A trace gives it the category of an op; its name tells it from one."""


class _NoMark(AbstractContextManager[Any]):
    """Does nothing, and in C: formatting nothing takes any arguments and gives what is false, without a Python frame.

    Steps enter four of these, and some steps take two milliseconds.
    """

    __enter__ = __exit__ = staticmethod("".format)  # type: ignore[assignment]


_NO_MARK = _NoMark()
_marking = False


def mark(phase: str) -> AbstractContextManager[Any]:
    """Marks data, forward, backward or optimizer work for a profiler; next to nothing while none is running."""
    return Mark(f"fathom.{phase}") if _marking else _NO_MARK


@contextmanager
def marks_on() -> Iterator[None]:
    """While open, marks are written; whoever starts a profiler opens this."""
    global _marking  # noqa: PLW0603  one switch for the process, as the profiler is one
    before, _marking = _marking, True
    try:
        yield
    finally:
        _marking = before
