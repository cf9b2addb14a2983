"""Plain data read back as a typed value, by one thread at a time.

msgspec looks at a class when it first meets it and keeps what it found; two threads that do so at once end the process.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar

import msgspec

Kind = TypeVar("Kind")
_ONE_AT_A_TIME = Lock()


def typed(data: Any, kind: type[Kind]) -> Kind:
    """Raises what msgspec raises for data that is no `kind`."""
    with _ONE_AT_A_TIME:
        return msgspec.convert(data, kind)
