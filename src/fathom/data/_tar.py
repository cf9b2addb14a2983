"""Walks a tar archive header by header, so that its members can be read without unpacking.

The standard library silently treats a damaged header as the end of the archive; here it is an error.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from fathom.core.errors import DataError

_BLOCK = tarfile.BLOCKSIZE
_MAX_PADDING = 1 << 20  # bytes; no tar program writes more after the end
_WITHOUT_DATA = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file inside an archive, and where its bytes are."""

    name: str
    offset: int
    size: int


def members(path: Path, file: FileIO, start: int, end: int) -> Iterator[Member]:
    """The regular files of the archive that fills the bytes from start to end of an unbuffered file."""
    while (header := _header(path, file, start, end)) is not None:
        data = start + _BLOCK
        size = 0 if header.type in _WITHOUT_DATA else header.size
        if not 0 <= size <= end - data:
            problem = f"member {header.name!r} declares {size} bytes, the archive has {end - data} left"
            raise DataError.at(path, problem, offset=start)
        if header.type in tarfile.REGULAR_TYPES:
            yield Member(header.name, data, size)
        start = data + -(-size // _BLOCK) * _BLOCK
    _check_end(path, file, start, end)


def _header(path: Path, file: FileIO, start: int, end: int) -> tarfile.TarInfo | None:
    """The header at this offset, or None for the block of zeros that ends an archive."""
    file.seek(start)
    block = file.read(_BLOCK) if start + _BLOCK <= end else b""
    if len(block) < _BLOCK:
        problem = "truncated: a member was expected, or the block of zeros that ends a tar archive"
        raise DataError.at(path, problem, offset=min(start, end))
    if block.count(0) == _BLOCK:
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "replace")
    except (tarfile.HeaderError, ValueError) as error:
        raise DataError.at(path, f"a tar header was expected: {error}", offset=start) from None


def _check_end(path: Path, file: FileIO, start: int, end: int) -> None:
    """Only padding may follow the end: a header overwritten with zeros looks like the end of the archive."""
    if end - start > _MAX_PADDING:
        raise DataError.at(path, f"the archive ends here, but {end - start} bytes follow", offset=start)
    file.seek(start)
    rest = file.read(end - start)
    for offset in range(0, len(rest) - _BLOCK + 1, _BLOCK):
        with suppress(tarfile.HeaderError, ValueError):
            member = tarfile.TarInfo.frombuf(rest[offset : offset + _BLOCK], "utf-8", "replace")
            raise DataError.at(path, f"the archive ends here, but a member {member.name!r} follows", offset=start)
