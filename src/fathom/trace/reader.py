"""Reads a Chrome trace file as written by torch.profiler of any version, whole and without torch.

The arguments of events are decoded only where they are used: a trace takes two to three times the memory of its bytes.
What cannot be read is counted and told, not guessed.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Union

import msgspec
import numpy as np

from fathom.core import files
from fathom.core.errors import DataError
from fathom.trace.event import CATEGORY, GPU_KINDS, KINDS, PROGRAM, PROGRAMS, UNNAMED_PROGRAM, Event, Instant
from fathom.trace.event_columns import EventColumns, Kind

LARGEST_FILE = 8_000_000_000  # bytes, unpacked: three times as much in memory
LATEST_US = 1e18  # beyond any clock
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
# what a trace holds beside ops, calls and kernels, which are all that is needed: not worth a note
PASSED_OVER = {"Trace", "gpu_user_annotation", "overhead", "cuda_sync", "cuda_event", "external_correlation", "wait"}
READ = KINDS.keys() - PASSED_OVER
LEGACY = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}  # pids of torch.autograd.profiler, without categories
MEMORY = "[memory]"
# the phases of the Chrome format beside X and i: flows, counters, metadata, asynchronous events
OTHER_PHASES = "BEICbnestfSTpFPONDMVvRc()"
PHASES = {*"Xi", *OTHER_PHASES}
# one empty class for each: nothing of such an event is kept, and in many traces they are half of all
_OTHERS = tuple(
    msgspec.defstruct(f"Other{number}", [], gc=False, tag_field="ph", tag=phase)
    for number, phase in enumerate(OTHER_PHASES)
)
if TYPE_CHECKING:
    AnyEvent = Event | Instant
else:
    AnyEvent = Union[(Event, Instant, *_OTHERS)]  # told apart by "ph"
T = TypeVar("T")
# torch writes names of events as they are, also such as would have to be escaped: `record_function('head "a"')`
NAME = re.compile(rb'("cat":\s*"[^"]*",\s*"name":\s*")((?:(?!"cat":).)*?)(",\s*"pid":)', re.DOTALL)
BARE_QUOTE = re.compile(rb'(?<!\\)((?:\\\\)*)"')
ESCAPE = re.compile(rb'\\(["\\/]|u[0-9a-fA-F]{4})?')  # one without a group is a backslash, as in Windows paths
CONTROL = re.compile(rb"[\x00-\x1f]")
NO_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)-?(?:nan|inf(?:inity)?)(?=\s*[,\]}])", re.IGNORECASE)
MENDED = "no valid JSON: quotes, backslashes or control characters in names, or NaN, were mended to read it"


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
    traceEvents: list[AnyEvent]


class _OddDocument(_Facts):
    """One of which an event is malformed: each is decoded for itself, at twice the cost."""

    traceEvents: list[msgspec.Raw]


class _Phase(msgspec.Struct):
    ph: str = ""


_Contents = tuple[_Facts, list[AnyEvent], int]  # the events, and how many are malformed


@dataclass
class Trace:
    """The contents of a trace file."""

    columns: EventColumns  # the events with a duration
    memory: list[Instant] = field(default_factory=list)  # allocations, where the trace has them
    gpus: list[str] = field(default_factory=list)  # their names, where the trace has them
    rank: int | None = None
    world_size: int | None = None
    left_out: dict[str, int] = field(default_factory=dict)  # category -> number of events that were not read
    malformed: int = 0  # events without a time, or that are no events
    digest: str = ""  # of the file's bytes
    mended: bool = False  # whether the file was no valid JSON as it stood

    @property
    def events(self) -> Sequence[Event]:
        return self.columns.events

    @property
    def notes(self) -> list[str]:
        """What was not read, for people."""
        found = [f"{count:,} events of category {name or 'none'} not read" for name, count in self.left_out.items()]
        if self.mended:
            found.append(MENDED)
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
        (facts, events, malformed), mended = _decoded(raw)
    except msgspec.ValidationError as error:
        raise DataError.at(path, f"not a torch.profiler trace: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError.at(path, f"not JSON: {error}") from None
    trace = _sorted_out(events, malformed)
    trace.mended = mended
    if not trace.columns.of_category("cpu_op", *GPU_KINDS).any():
        raise DataError.at(path, "; ".join(["not a torch.profiler trace: no ops and no kernels", *trace.notes]))
    trace.gpus = [device.name for device in _part(facts.deviceProperties, list[_Device], []) if device.name]
    distributed = _part(facts.distributedInfo, _Distributed, _Distributed())
    trace.rank, trace.world_size = distributed.rank, distributed.world_size
    trace.digest = hashlib.sha256(raw).hexdigest()[:12]
    return trace


def _bytes(path: Path) -> bytes:
    raw = files.read_bytes(path, LARGEST_FILE)
    if raw[:2] == GZIP:
        raw = files.gunzipped(path, raw, LARGEST_FILE)
    return raw.removeprefix(BYTE_ORDER_MARK)


def _decoded(raw: bytes) -> tuple[_Contents, bool]:
    """The contents, and whether the file had to be mended for them; the error is that of the file as it stands."""
    try:
        return _document(raw), False
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            return _document(_mended(raw)), True
        except (msgspec.MsgspecError, RecursionError):
            raise error from None


def _mended(raw: bytes) -> bytes:
    """As JSON what torch writes when names hold quotes, paths of Windows, line breaks or bytes of no text."""
    text = raw.decode(errors="replace").encode()
    text = NAME.sub(lambda name: name[1] + BARE_QUOTE.sub(rb'\1\\"', name[2]) + name[3], text)
    text = ESCAPE.sub(lambda escape: escape[0] if escape[1] else rb"\\", text)
    return NO_NUMBER.sub(rb"\1null", CONTROL.sub(b" ", text))


def mend(path: Path) -> None:
    """Makes a file that had to be mended valid JSON, which other readers of traces ask for."""
    text = _mended(_bytes(path))
    path.write_bytes(gzip.compress(text) if path.read_bytes()[:2] == GZIP else text)


def _document(raw: bytes) -> _Contents:
    """The file's outermost object, its events and how many are malformed; a bare list of events is one, too."""
    if raw[:64].lstrip()[:1] == b"[":
        raw = b'{"traceEvents":' + raw + b"}"
    try:
        document = msgspec.json.decode(raw, type=_Document, strict=False)
        return document, document.traceEvents, 0
    except msgspec.ValidationError:
        odd = msgspec.json.decode(raw, type=_OddDocument)
        return odd, *_one_by_one(odd.traceEvents)


def _one_by_one(raws: list[msgspec.Raw]) -> tuple[list[AnyEvent], int]:
    """The events that can be decoded, and the number of malformed ones; one of no known phase is neither."""
    decode = msgspec.json.Decoder(AnyEvent, strict=False).decode
    events: list[AnyEvent] = []
    malformed = 0
    for raw in raws:
        try:
            events.append(decode(raw))
        except msgspec.MsgspecError:
            malformed += _part(raw, _Phase, _Phase("X")).ph in PHASES
    return events, malformed


def _part(raw: msgspec.Raw, kind: type[T], otherwise: T) -> T:
    try:
        return msgspec.json.decode(raw, type=kind, strict=False)
    except msgspec.MsgspecError:
        return otherwise


def _known(kind: Kind) -> Kind:
    """Under the category that we know, or pass over; under its own where it is not read."""
    if not kind.category:
        return kind._replace(category=LEGACY.get(str(kind.process)))
    category = CATEGORY.get(f"{kind.category}/{kind.name}") or CATEGORY.get(kind.category, kind.category)
    if kind.category == PROGRAMS and category == "kernel":
        return kind._replace(category=category, name=PROGRAM + f" {kind.name}" * (kind.name != UNNAMED_PROGRAM))
    return kind._replace(category=category)


def _sorted_out(events: list[AnyEvent], malformed: int) -> Trace:
    """The timed events under the categories that we know, memory events apart, and what is left out."""
    found = EventColumns.of([each for each in events if type(each) is Event])
    kinds = [_known(kind) for kind in found.kinds]
    known = found.each(np.array([kind.category in READ for kind in kinds], dtype=np.bool_))
    timed = (found.duration >= 0) & (found.duration < LATEST_US) & (np.abs(found.begin) < LATEST_US)  # not so for NaN
    left_out: Counter[str] = Counter()
    for kind, count in zip(kinds, np.bincount(found.kind[~known], minlength=len(kinds)), strict=True):
        left_out[kind.category or ""] += int(count)
    return Trace(
        columns=found.only(known & timed).renamed(kinds),
        memory=[each for each in events if type(each) is Instant and each.name == MEMORY],
        left_out={name: count for name, count in left_out.items() if count and name not in PASSED_OVER},
        malformed=malformed + int((known & ~timed).sum()),
    )
