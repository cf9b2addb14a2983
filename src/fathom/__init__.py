"""Fathom: where the time and the energy of deep learning go on your machine, why, and how that is on another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fathom.own import profile
    from fathom.record import Record
    from fathom.session import Session, Step, load
    from fathom.spec import RunSpec
    from fathom.workload import Workload

__version__ = "0.1.0"
__all__ = ["Record", "RunSpec", "Session", "Step", "Workload", "load", "profile"]

_HOME = {
    "Record": "record",
    "RunSpec": "spec",
    "Session": "session",
    "Step": "session",
    "Workload": "workload",
    "load": "session",
    "profile": "own",
}


def __getattr__(name: str) -> Any:
    """Public names arrive when first used, so that importing fathom does not import torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'fathom' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"fathom.{_HOME[name]}"), name)
