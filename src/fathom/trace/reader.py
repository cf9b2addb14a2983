"""Reads a Chrome trace file as written by torch.profiler of any version, whole and without torch.

The arguments of events are decoded only where they are used: a trace takes two to three times the memory of its bytes.
What cannot be read is counted and told, not guessed.
"""

from __future__ import annotations

import gc
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from fathom.core import files
from fathom.core.errors import DataError
from fathom.trace.event import CATEGORY, Event

LARGEST_FILE = 8_000_000_000  # bytes, unpacked: three times as much in memory
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


class _Facts(msgspec.Struct, kw_only=True):
    """What a file says beside its events."""

    deviceProperties: msgspec.Raw = msgspec.Raw(b"[]")
    distributedInfo: msgspec.Raw = msgspec.Raw(b"{}")


class _Document(_Facts):
    traceEvents: list[Event]


class _OddDocument(_Facts):
    """One of which an event is malformed: each is decoded for itself, at twice the cost."""

    traceEvents: list[msgspec.Raw]


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
        facts, events, malformed = _document(raw)
    except msgspec.ValidationError as error:
        raise DataError.at(path, f"not a torch.profiler trace: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError.at(path, f"not JSON: {error}") from None
    trace = _sorted_out(events, malformed)
    if not any(event.cat in {"cpu_op", "kernel", "gpu_memcpy", "gpu_memset"} for event in trace.events):
        raise DataError.at(path, "; ".join(["not a torch.profiler trace: no ops and no kernels", *trace.notes]))
    trace.gpus = [device.name for device in _part(facts.deviceProperties, list[_Device], []) if device.name]
    distributed = _part(facts.distributedInfo, _Distributed, _Distributed())
    trace.rank, trace.world_size = distributed.rank, distributed.world_size
    trace.digest = hashlib.sha256(raw).hexdigest()[:12]
    return trace


def _bytes(path: Path) -> bytes:
    raw = files.read_bytes(path, LARGEST_FILE)
    if raw[:2] == b"\x1f\x8b":
        raw = files.gunzipped(path, raw, LARGEST_FILE)
    return raw.removeprefix(BYTE_ORDER_MARK)


def _document(raw: bytes) -> tuple[_Facts, list[Event], int]:
    """The file's outermost object, its events and how many are malformed; a bare list of events is one, too."""
    if raw[:64].lstrip()[:1] == b"[":
        raw = b'{"traceEvents":' + raw + b"}"
    try:
        document = msgspec.json.decode(raw, type=_Document, strict=False)
        return document, document.traceEvents, 0
    except msgspec.ValidationError:
        odd = msgspec.json.decode(raw, type=_OddDocument)
        return odd, *_one_by_one(odd.traceEvents)


def _one_by_one(raws: list[msgspec.Raw]) -> tuple[list[Event], int]:
    """The events that can be decoded, and the number of the others."""
    decode = msgspec.json.Decoder(Event, strict=False).decode
    events: list[Event] = []
    for raw in raws:
        with suppress(msgspec.MsgspecError):
            events.append(decode(raw))
    return events, len(raws) - len(events)


def _part(raw: msgspec.Raw, kind: type[T], otherwise: T) -> T:
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except msgspec.MsgspecError:
        return otherwise


def _category(event: Event) -> str | None:
    """The category of an event that has none, or one that says too little."""
    return LEGACY.get(str(event.pid)) if not event.cat else CATEGORY.get(f"{event.cat}/{event.name}")


def _sorted_out(events: list[Event], malformed: int) -> Trace:
    """The timed events under the categories that we know, memory events apart, and what is left out."""
    names: dict[str, str] = {}  # each name once: those of kernels are long
    trace = Trace(events=[], malformed=malformed)
    left_out: Counter[str] = Counter()
    keep, known, kept_name = trace.events.append, CATEGORY.get, names.setdefault
    for event in events:
        if event.ph == "X":
            category = known(event.cat) or _category(event)
            if category is None:
                left_out[event.cat or ""] += 1
            elif 0 <= event.dur < LATEST_US and -LATEST_US < event.ts < LATEST_US:  # not so for NaN
                event.cat = category
                event.name = kept_name(event.name, event.name)
                keep(event)
            else:
                trace.malformed += 1
        elif event.ph == "i" and event.name == MEMORY:
            trace.memory.append(event)
    trace.left_out = {name: count for name, count in left_out.items() if name not in PASSED_OVER}
    return trace
