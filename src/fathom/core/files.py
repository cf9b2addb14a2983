"""Reads files within limits and replaces files whole: a hostile file costs bounded memory, a full disk no old file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

from fathom.core.errors import BadOption, DataError
from fathom.core.stopping import unwinding

ENVIRONMENT = "FATHOM_MAX_FILE_MB"  # replaces the limit of every reader
MB = 1_000_000
MOST_UNPACKED = 250  # times the packed bytes: text packs a few times, one byte over and over 1,030 times
FIRST_LOOK = 64 * MB  # unpacked bytes before the ratio is looked at
BUFFER = 1 << 16
PACKED_PIECE = 1 << 16  # packed bytes that are unpacked at once: a thousand times as much at most
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def limit_of(default: int) -> int:
    """The bytes that a file may hold: the reader's own limit, or what the environment sets in its place."""
    text = os.environ.get(ENVIRONMENT)
    if text is None:
        return default
    try:
        megabytes = float(text)
    except ValueError:
        megabytes = 0.0
    if not 0 < megabytes < 1e12:
        raise BadOption(f"{ENVIRONMENT} must be a number of megabytes, not {text[:40]!r}")
    return round(megabytes * MB)


def too_large(path: Path | str, what: str, limit: int) -> DataError:
    """The refusal, with the limit and the way to raise it."""
    return DataError.at(path, f"{what} than {limit / MB:,.6g} MB; if that is right, set {ENVIRONMENT} to more")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[io.FileIO]:
    """A regular file, open for reading, unbuffered. A pipe, which blocks, or a device, which may never end, is not."""
    try:
        _check_regular(path, path.stat().st_mode)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", 0) as file:
            _check_regular(path, os.fstat(file.fileno()).st_mode)
            yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError.at(path, f"corrupt gzip: {error}") from None
    except OSError as error:
        raise DataError.at(path, f"cannot be read: {error.strerror or error}") from None


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise DataError.at(path, f"{_KINDS.get(stat.S_IFMT(mode), 'not a file')}, a regular file was expected")


def read_bytes(path: Path, limit: int) -> bytes:
    """All of a file; one that is larger than the limit is refused before it is read."""
    most = limit_of(limit)
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise too_large(path, f"{size / MB:,.6g} MB, larger", most)
        with io.BufferedReader(file) as buffered:
            content = buffered.read(size + 1)
    if len(content) > size:  # a file of the kernel's, which has no size, or one that is being written
        raise DataError.at(path, f"longer than the {size} bytes that the system reports")
    return content


def gunzipped(path: Path, packed: bytes, limit: int) -> bytes:
    """What the bytes of a file unpack to; more than the limit is refused. Several members follow one another."""
    allowance, content, at = _Allowance(path, limit), list[bytes](), 0
    try:
        while at < len(packed):
            member = zlib.decompressobj(zlib.MAX_WBITS | 16)
            while not member.eof:
                if at == len(packed):
                    raise EOFError("it ends before its end marker")
                content.append(member.decompress(packed[at : at + PACKED_PIECE]))
                at = min(at + PACKED_PIECE, len(packed))
                allowance.take(len(content[-1]), at)
            at -= len(member.unused_data)
            if packed[at : at + 1] == b"\0":  # padding
                at = len(packed) - len(packed[at:].lstrip(b"\0"))
    except (EOFError, zlib.error) as error:
        raise DataError.at(path, f"corrupt gzip: {error}") from None
    return b"".join(content)


@contextlib.contextmanager
def unpacked(path: Path, limit: int) -> Iterator[BinaryIO]:
    """The content of a file, unpacked where its name ends in .gz; reading beyond the limit is an error."""
    with opened(path) as packed:
        if path.suffix == ".gz":
            limited = _Limited(path, gzip.GzipFile(fileobj=packed), limit, packed)
        else:
            limited = _Limited(path, packed, limit)
        with io.BufferedReader(limited, BUFFER) as buffered:
            yield buffered


Content = io.FileIO | gzip.GzipFile


class _Allowance:
    """Counts what is read, and refuses more than the limit, or more than the packed bytes can honestly hold."""

    def __init__(self, path: Path, limit: int):
        self._path, self._most, self._read = path, limit_of(limit), 0
        self._trusted = ENVIRONMENT in os.environ  # somebody has said how large files may be

    def take(self, count: int, packed: int | None) -> None:
        """So many more bytes were read; packed is how many packed ones they are from, None for a plain file."""
        self._read += count
        if self._read > self._most:
            raise too_large(self._path, "more" if packed is None else "unpacks to more", self._most)
        if packed and self._read > FIRST_LOOK and not self._trusted and self._read > MOST_UNPACKED * packed:
            what = f"{packed} packed bytes unpack to {self._read / MB:,.0f} MB, over {MOST_UNPACKED} times as much:"
            raise DataError.at(self._path, f"{what} not data; if it is, set {ENVIRONMENT} to its size")


class _Limited(io.RawIOBase):
    """A file's content, within what may be read of it."""

    def __init__(self, path: Path, content: Content, limit: int, packed: Content | None = None):
        self._allowance, self._content, self._packed = _Allowance(path, limit), content, packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        chunk = self._content.read(len(buffer))
        buffer[: len(chunk)] = chunk
        self._allowance.take(len(chunk), self._packed.tell() if self._packed else None)
        return len(chunk)


def lock_file(path: Path) -> TextIO:
    """Opens the file that a lock is held on, and makes it and its folder where they do not exist."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")
    except OSError as error:
        raise BadOption(f"cannot write {path}: {error.strerror or error}") from None


@contextlib.contextmanager
def held(path: Path) -> Iterator[bool]:
    """Locks a file without waiting for it; gives whether this process has it. Without locks, everybody has it."""
    with lock_file(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            own = True
        except BlockingIOError:
            own = False
        except OSError:
            own = True
        yield own


def cache_path(name: str) -> Path | None:
    """Of a file that may be lost, in the user's cache; None without a home folder, as in some containers."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fathom" / name
    except RuntimeError:
        return None


def replace_whole(path: Path, content: str | bytes) -> None:
    """Writes a file beside the path and renames it: where the disk is full, the old file stays as it was."""
    if path.exists() and not path.is_file():  # /dev/stdout, a pipe: nothing to keep
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return
    with written_beside(path) as hidden:
        hidden.write_bytes(content if isinstance(content, bytes) else content.encode())


@contextlib.contextmanager
def written_beside(path: Path) -> Iterator[Path]:
    """A hidden path in the same folder, which takes the path's place when the block ends without an error."""
    path = path.resolve()  # a link stays a link
    hidden = path.with_name(f".{path.name[:100]}.{os.getpid()}.part")
    hidden.unlink(missing_ok=True)  # of a process that was killed
    with unwinding():  # a signal leaves no part of a file behind
        try:
            yield hidden
            with hidden.open("rb") as file:
                os.fsync(file.fileno())  # a disk may only now say that it is full
            if path.exists():
                with contextlib.suppress(OSError):
                    hidden.chmod(stat.S_IMODE(path.stat().st_mode))
            hidden.replace(path)
        finally:
            hidden.unlink(missing_ok=True)
