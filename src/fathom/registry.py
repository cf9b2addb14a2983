"""Name -> plug-in: every public file of a plural folder is one plug-in, imported only when it is asked for."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING

from fathom.errors import UnknownName

if TYPE_CHECKING:
    from fathom.workload import Workload

_SINGULAR = {"workloads": "workload", "analyses": "question", "commands": "command"}


def names(folder: str) -> list[str]:
    """The plug-ins of a folder such as "workloads", without importing any of them.

    The folder is a package: whoever adds a folder of his own to its __path__ adds plug-ins.
    """
    package = importlib.import_module(f"fathom.{folder}")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))


def check(folder: str, name: str) -> None:
    """Raises, with the nearest name there is, where the folder has no such plug-in."""
    known = names(folder)
    if name not in known:
        raise UnknownName.among(_SINGULAR[folder], name, known)


def module(folder: str, name: str) -> ModuleType:
    check(folder, name)
    return importlib.import_module(f"fathom.{folder}.{name}")


def workload(name: str) -> type[Workload]:
    """The one workload class that workloads/NAME.py defines."""
    from fathom.workload import Workload

    plugin = module("workloads", name)
    found = [
        value
        for value in vars(plugin).values()
        if inspect.isclass(value) and issubclass(value, Workload) and value.__module__ == plugin.__name__
    ]
    if len(found) != 1:
        raise TypeError(f"{plugin.__name__} must define exactly one Workload, it defines {len(found)}")
    return found[0]
