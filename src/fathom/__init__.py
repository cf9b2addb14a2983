"""Fathom: where the time of deep learning goes on your machine, why, and what it takes to train to a target quality."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own would be an import before the command line handles signals
if TYPE_CHECKING:
    from typing import Any

    from fathom.analysis.finding import Finding
    from fathom.analysis.frame import frame, op_frame
    from fathom.analysis.relatives import nearest
    from fathom.core.errors import (
        BadOption,
        CappingError,
        DataError,
        DeviceError,
        DoesNotFit,
        FathomError,
        MissingExtra,
        NotPermitted,
        NotRestored,
        NotSupported,
        OutOfRange,
        UnknownName,
    )
    from fathom.core.record import Record
    from fathom.core.spec import RunSpec
    from fathom.core.store import Store
    from fathom.data.base import Dataset, Reader
    from fathom.engine.base import Engine
    from fathom.engine.session import Session, Step, load
    from fathom.machine.governor import Governor
    from fathom.machine.meter import Meter
    from fathom.measure.own.profile import profile
    from fathom.report import write as write_report
    from fathom.workloads.base import Facts, State, Workload
    from fathom.workloads.recipe import Recipe

__version__ = "0.2.0"

_HOME = {  # public name -> the module that defines it, and the name there where it is another one
    # what to run, and what it left
    "RunSpec": "core.spec",
    "Record": "core.record",
    "Store": "core.store",
    "Session": "engine.session",
    "Step": "engine.session",
    "load": "engine.session",
    "profile": "measure.own.profile",
    # what records say
    "Finding": "analysis.finding",
    "frame": "analysis.frame",
    "op_frame": "analysis.frame",
    "nearest": "analysis.relatives",
    "write_report": "report:write",
    # what a plug-in fills in
    "Workload": "workloads.base",
    "State": "workloads.base",
    "Facts": "workloads.base",
    "Recipe": "workloads.recipe",
    "Dataset": "data.base",
    "Reader": "data.base",
    "Engine": "engine.base",
    "Meter": "machine.meter",
    "Governor": "machine.governor",
    # what can go wrong: core/errors.py draws the tree
    "FathomError": "core.errors",
    "UnknownName": "core.errors",
    "BadOption": "core.errors",
    "DataError": "core.errors",
    "DeviceError": "core.errors",
    "DoesNotFit": "core.errors",
    "MissingExtra": "core.errors",
    "EngineError": "core.errors",
    "Refused": "core.errors",
    "CappingError": "core.errors",
    "NotPermitted": "core.errors",
    "NotSupported": "core.errors",
    "OutOfRange": "core.errors",
    "NotRestored": "core.errors",
}
__all__ = [
    "BadOption",
    "CappingError",
    "DataError",
    "Dataset",
    "DeviceError",
    "DoesNotFit",
    "Engine",
    "EngineError",
    "Facts",
    "FathomError",
    "Finding",
    "Governor",
    "Meter",
    "MissingExtra",
    "NotPermitted",
    "NotRestored",
    "NotSupported",
    "OutOfRange",
    "Reader",
    "Recipe",
    "Record",
    "Refused",
    "RunSpec",
    "Session",
    "State",
    "Step",
    "Store",
    "UnknownName",
    "Workload",
    "frame",
    "load",
    "nearest",
    "op_frame",
    "profile",
    "write_report",
]


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that importing fathom does not import torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'fathom' has no attribute {name!r}")
    from importlib import import_module

    where, _, there = _HOME[name].partition(":")
    return getattr(import_module(f"fathom.{where}"), there or name)
