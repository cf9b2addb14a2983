"""Reads a Chrome trace file as written by torch.profiler of any version, whole and without torch.

Events are decoded one by one from the file's bytes, their arguments only where they are used: a trace of 400 MB takes
little more memory than its bytes. What cannot be read is counted and told, not guessed.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from fathom.core.errors import DataError
from fathom.trace.event import CATEGORY, Event

LATEST_US = 1e18  # beyond any clock
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# what a trace holds beside ops, calls and kernels, which are all that is needed: not worth a note
PASSED_OVER = {"Trace", "gpu_user_annotation", "overhead", "cuda_sync", "cuda_event", "external_correlation"}
LEGACY = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}  # pids of torch.autograd.profiler, without categories
MEMORY = "[memory]"


T = TypeVar("T")


class _Device(msgspec.Struct):
    name: str = ""


class _Distributed(msgspec.Struct):
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None


class _Document(msgspec.Struct):
    traceEvents: list[msgspec.Raw]
    deviceProperties: msgspec.Raw = msgspec.Raw(b"[]")
    distributedInfo: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass
class Trace:
    """The contents of a trace file."""

    events: list[Event]
    memory: list[Event] = field(default_factory=list)  # allocations, where the trace has them
    gpus: list[str] = field(default_factory=list)  # their names, where the trace has them
    rank: int | None = None
    world_size: int | None = None
    left_out: dict[str, int] = field(default_factory=dict)  # category -> number of events that were not read
    malformed: int = 0  # events without a time, or that are no events
    digest: str = ""  # of the file's bytes

    @property
    def notes(self) -> list[str]:
        """What was not read, for people."""
        found = [f"{count:,} events of category {name or 'none'} not read" for name, count in self.left_out.items()]
        if self.malformed:
            found.append(f"{self.malformed:,} malformed events (no time, no duration, no event) not read")
        return found


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
def read(path: Path) -> Trace:
    """The timed events of a Chrome trace file, plain or gzipped."""
    raw = _bytes(path)
    try:
        document = _document(raw)
    except msgspec.ValidationError as error:
        raise DataError.at(path, f"not a torch.profiler trace: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError.at(path, f"not JSON: {error}") from None
    trace = _decoded(document.traceEvents)
    if not any(event.cat in {"cpu_op", "kernel", "gpu_memcpy", "gpu_memset"} for event in trace.events):
        raise DataError.at(path, "; ".join(["not a torch.profiler trace: no ops and no kernels", *trace.notes]))
    trace.gpus = [device.name for device in _part(document.deviceProperties, list[_Device], []) if device.name]
    distributed = _part(document.distributedInfo, _Distributed, _Distributed())
    trace.rank, trace.world_size = distributed.rank, distributed.world_size
    trace.digest = hashlib.sha256(raw).hexdigest()[:12]
    return trace


def _bytes(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except OSError as error:
        raise DataError.at(path, f"cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise DataError.at(path, f"corrupt gzip: {error}") from None
    return raw.removeprefix(BYTE_ORDER_MARK)


def _document(raw: bytes) -> _Document:
    """The file's outermost object; a bare list of events is one, too."""
    if raw[:64].lstrip()[:1] == b"[":
        return _Document(msgspec.json.decode(raw, type=list[msgspec.Raw]))
    return msgspec.json.decode(raw, type=_Document)


def _part(raw: msgspec.Raw, kind: type[T], otherwise: T) -> T:
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except msgspec.MsgspecError:
        return otherwise


def _category(event: Event) -> str | None:
    """The category of an event that has none, or one that says too little."""
    return LEGACY.get(str(event.pid)) if not event.cat else CATEGORY.get(f"{event.cat}/{event.name}")


def _decoded(raws: list[msgspec.Raw]) -> Trace:
    decode = msgspec.json.Decoder(Event, strict=False).decode
    names: dict[str, str] = {}  # each name once: those of kernels are long
    trace = Trace(events=[])
    left_out: Counter[str] = Counter()
    keep = trace.events.append
    for raw in raws:
        try:
            event = decode(raw)
        except msgspec.MsgspecError:
            trace.malformed += 1
            continue
        if event.ph == "X":
            category = CATEGORY.get(event.cat or "") or _category(event)
            if category is None:
                left_out[event.cat or ""] += 1
            elif not (-LATEST_US < event.ts < LATEST_US and 0 <= event.dur < LATEST_US):
                trace.malformed += 1
            else:
                event.cat = category
                event.name = names.setdefault(event.name, event.name)
                keep(event)
        elif event.ph == "i" and event.name == MEMORY:
            trace.memory.append(event)
    trace.left_out = {name: count for name, count in left_out.items() if name not in PASSED_OVER}
    return trace
