"""Fathom: where the time of deep learning goes on your machine, why, and what it takes until a network has learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fathom.analysis.questions.similarity import nearest
    from fathom.core.record import Record
    from fathom.core.spec import RunSpec
    from fathom.core.store import Store
    from fathom.engine.session import Session, Step, load
    from fathom.measure.own import profile
    from fathom.report import write as write_report
    from fathom.workloads.base import Workload

__version__ = "0.1.0"
__all__ = ["Record", "RunSpec", "Session", "Step", "Store", "Workload", "load", "nearest", "profile", "write_report"]

_HOME = {  # the module, and the name there where it is another one
    "Record": "core.record",
    "RunSpec": "core.spec",
    "Session": "engine.session",
    "Step": "engine.session",
    "Store": "core.store",
    "Workload": "workloads.base",
    "load": "engine.session",
    "nearest": "analysis.questions.similarity",
    "profile": "measure.own",
    "write_report": "report:write",
}


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


def __getattr__(name: str) -> Any:
    """Public names arrive when first used, so that importing fathom does not import torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'fathom' has no attribute {name!r}")
    from importlib import import_module

    where, _, there = _HOME[name].partition(":")
    return getattr(import_module(f"fathom.{where}"), there or name)
