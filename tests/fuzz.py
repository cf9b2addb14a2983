"""Seeded corruption of files, which a reader must answer with one clear error or a valid result."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

from fathom.core.errors import DataError


def mutations(original: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Flipped bits, cut and doubled stretches, inserted noise, truncations, extreme bytes."""
    rng = random.Random(seed)
    for _ in range(count):
        content = bytearray(original)
        for _ in range(rng.randint(1, 4)):
            _mutate(content, rng)
        yield bytes(content)


def _mutate(content: bytearray, rng: random.Random) -> None:
    # half of the changes hit the first 64 bytes, where headers live
    end = min(64, len(content)) if rng.random() < 0.5 else len(content)
    at = rng.randrange(end) if end else 0
    kind = rng.randrange(6)
    if kind == 0 and content:
        content[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del content[at:]
    elif kind == 2:
        del content[at : at + rng.randint(1, 32)]
    elif kind == 3:
        content[at:at] = rng.randbytes(rng.randint(1, 32))
    elif kind == 4:
        content[at:at] = content[at : at + rng.randint(1, 256)]
    elif content:
        content[at : at + 4] = rng.choice([b"\x00" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff"])


def survive(path: Path, read: Callable[[], None], count: int, seed: int = 0) -> tuple[int, int]:
    """Writes each mutation to the path and reads it; read() must raise DataError or check what it got itself.

    Gives how many were refused and how many read; the message must be one line that names a file.
    """
    original = path.read_bytes()
    refused = accepted = 0
    try:
        for content in mutations(original, count, seed):
            path.write_bytes(content)
            try:
                read()
                accepted += 1
            except DataError as error:
                text = str(error)
                assert "\n" not in text, text
                assert path.name in text or path.parent.name in text, text
                refused += 1
    finally:
        path.write_bytes(original)
    return refused, accepted
