"""Reads and validates the events of a Chrome trace file as written by torch.profiler."""

from __future__ import annotations

import gc
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec

from fathom.core.errors import DataError

MAX_US = 1e18  # beyond any clock


class Event(msgspec.Struct, gc=False):
    """The fields of a trace event that are used."""

    ph: str = ""  # "X" for an event with a duration
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: Annotated[float, msgspec.Meta(gt=-MAX_US, lt=MAX_US)] = 0.0
    dur: Annotated[float, msgspec.Meta(ge=0, lt=MAX_US)] = -1.0  # negative: missing in the file
    args: dict[str, Any] = {}


class _Document(msgspec.Struct):
    traceEvents: list[Event]


_DECODER = msgspec.json.Decoder(_Document | list[Event])


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disables Python's garbage collector, which would repeatedly scan all events; they form no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@gc_disabled()
def read(path: Path) -> list[Event]:
    """The timed events of a Chrome trace file, plain or gzipped."""
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        document = _DECODER.decode(raw)
    except OSError as error:
        raise DataError.at(path, f"cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise DataError.at(path, f"corrupt gzip: {error}") from None
    except msgspec.ValidationError as error:
        raise DataError.at(path, f"not a torch.profiler trace: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError.at(path, f"not JSON: {error}") from None
    events = document if isinstance(document, list) else document.traceEvents
    kept = [event for event in events if event.ph == "X"]
    if problem := _problem(kept):
        raise DataError.at(path, f"not a torch.profiler trace: {problem}")
    return kept


def _problem(events: list[Event]) -> str | None:
    """What violates the format, or None; a single pass, as there may be millions of events."""
    ops = False
    for event in events:
        get = event.args.get
        if type(get("correlation", 0)) is not int:
            return "a correlation that is not an integer"
        if type(get("Sequence number", 0)) is not int:
            return "a Sequence number that is not an integer"
        if event.dur < 0:
            return "a timed event without duration"
        ops = ops or event.cat == "cpu_op"
    return None if ops else "no cpu_op event"
