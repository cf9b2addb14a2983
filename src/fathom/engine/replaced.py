"""Functions of torch's that others stand in for, for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, functions: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Those of a class or module, by name; the usual ones are put back."""
    usual = {name: getattr(owner, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(owner, name, function)
        yield
    finally:
        for name, function in usual.items():
            setattr(owner, name, function)
