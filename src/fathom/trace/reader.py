"""A Chrome trace file, as torch.profiler writes it: its events, read fast and checked."""

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

FAR = 1e18  # microseconds: no clock goes so far


class Event(msgspec.Struct, gc=False):
    """One event of a trace, with what is read of it."""

    ph: str = ""  # "X" for a timed one
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: Annotated[float, msgspec.Meta(gt=-FAR, lt=FAR)] = 0.0
    dur: Annotated[float, msgspec.Meta(ge=0, lt=FAR)] = -1.0  # where the file does not tell
    args: dict[str, Any] = {}


class _Document(msgspec.Struct):
    traceEvents: list[Event]


_DECODER = msgspec.json.Decoder(_Document | list[Event])


@contextmanager
def collector_off() -> Iterator[None]:
    """Python's collector would walk all of a trace's small objects again and again, for nothing: it has no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@collector_off()
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
    """What the format promises and the events do not keep; one pass, as there may be millions."""
    ops = False
    for event in events:
        get = event.args.get
        if type(get("correlation", 0)) is not int:
            return "a correlation that is no whole number"
        if type(get("Sequence number", 0)) is not int:
            return "a Sequence number that is no whole number"
        if event.dur < 0:
            return "a timed event without its duration"
        ops = ops or event.cat == "cpu_op"
    return None if ops else "no cpu_op among its events"
