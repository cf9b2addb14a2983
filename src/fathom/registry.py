"""Name -> plug-in: every public file of a plural folder is one plug-in, imported only when it is asked for."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from fathom.errors import UnknownName

if TYPE_CHECKING:
    from fathom.learner import Learner
    from fathom.workload import Workload

_SINGULAR = {"workloads": "workload", "learners": "learner", "analyses": "question", "commands": "command"}
Plugin = TypeVar("Plugin")


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

    return _only(module("workloads", name), Workload)  # type: ignore[type-abstract]


def learner(name: str) -> type[Learner]:
    """The learner class that the workload of this name asks for, or the one for all."""
    from fathom.learner import Learner

    wanted = workload(name).learner
    return Learner if wanted is None else _only(module("learners", wanted), Learner)


def _only(plugin: ModuleType, kind: type[Plugin]) -> type[Plugin]:
    """The one class of a kind that a plug-in defines."""
    classes = [
        value for value in vars(plugin).values() if inspect.isclass(value) and value.__module__ == plugin.__name__
    ]
    found = [value for value in classes if issubclass(value, kind)]
    if len(found) != 1:
        raise TypeError(f"{plugin.__name__} must define exactly one {kind.__name__}, it defines {len(found)}")
    return found[0]
