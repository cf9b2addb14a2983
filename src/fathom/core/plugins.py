"""Name -> plug-in: a file in the folder of its kind, an entry point of an installed package, or `package.module:Name`.

Nothing is imported before it is asked for, so that listing names costs no import of torch. A file is called as its
plug-in; one that defines several classes with names of their own (variants of a network) registers each by its name.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from fathom.core.errors import BadOption, UnknownName

Plugin = TypeVar("Plugin")


@dataclass(frozen=True)
class Kind:
    """One kind of plug-in: what messages call it, and the package whose public files are the built-in ones."""

    word: str
    package: str
    group: str  # of entry points


KINDS = {
    "workloads": Kind("workload", "fathom.workloads", "fathom.workloads"),
    "readers": Kind("data reader", "fathom.data", "fathom.readers"),
    "engines": Kind("engine", "fathom.engine.engines", "fathom.engines"),
    "strategies": Kind("strategy", "fathom.engine.ranks.strategies", "fathom.strategies"),
    "trainers": Kind("trainer", "fathom.training.trainers", "fathom.trainers"),
    "questions": Kind("question", "fathom.analysis.questions", "fathom.questions"),
    "meters": Kind("meter", "fathom.machine.meters", "fathom.meters"),
    "governors": Kind("governor", "fathom.machine.governors", "fathom.governors"),
    "commands": Kind("command", "fathom.cli.commands", "fathom.commands"),
    "networks": Kind("network", "fathom.frameworks.networks", "fathom.networks"),
    "frameworks": Kind("framework", "fathom.frameworks.runners", "fathom.frameworks"),
}


INTERFACES = {"base", "recipe", "catalogue"}  # files of such a package that define what its plug-ins fill in
CLASS_NAME = re.compile(r"""^    name: ClassVar(?:\[str\])? = ["']([^"'\n]+)["']$""", re.MULTILINE)


def names(kind: str) -> list[str]:
    """The plug-ins of a kind such as "workloads", by name, without importing any of them."""
    return sorted({*_built_in(kind), *_installed(kind)})


def installed(kind: str) -> list[str]:
    """Those of them that other packages bring, by entry point."""
    return sorted(_installed(kind))


def check(kind: str, name: str) -> None:
    """Raises, with the nearest name there is, where there is no such plug-in."""
    if ":" not in name and name not in (known := names(kind)):
        raise UnknownName.among(KINDS[kind].word, name, known)


def load(kind: str, name: str) -> Any:
    """What the name stands for: a built-in plug-in's module, or whatever an entry point or `package.module:Name` is."""
    check(kind, name)
    if ":" in name:
        return named_object(name)
    if path := file_of(kind, name):
        return importlib.import_module(f"{KINDS[kind].package}.{path.stem}")
    entry = _installed(kind)[name]
    try:
        return entry.load()
    except Exception as error:
        raise BadOption(f"{KINDS[kind].word} {name} ({entry.value}) cannot be loaded: {_one_line(error)}") from None


def load_class(kind: str, name: str, base: type[Plugin]) -> type[Plugin]:
    """The plug-in as a class: the one that its module defines, or the class that was named."""
    found = load(kind, name)
    if isinstance(found, ModuleType):
        return class_called(name, found, base)
    if inspect.isclass(found) and issubclass(found, base):
        return found
    raise BadOption(f"{name} is no {KINDS[kind].word}: expected a subclass of {base.__module__}.{base.__name__}")


def class_called(name: str, module: ModuleType, base: type[Plugin]) -> type[Plugin]:
    """The class of a kind that a module defines itself: the only one, or of several the one with this name."""
    classes = [value for value in vars(module).values() if inspect.isclass(value)]
    found = [value for value in classes if value.__module__ == module.__name__ and issubclass(value, base)]
    if len(found) > 1:
        found = [value for value in found if vars(value).get("name") == name]
    if len(found) != 1:
        count = f"it defines {len(found)}"
        raise BadOption(f"{module.__name__} must define exactly one {base.__name__} {name}: {count}")
    return found[0]


def file_of(kind: str, name: str) -> Path | None:
    """The file that defines a built-in plug-in; None for one that is defined elsewhere."""
    return _built_in(kind).get(name)


def named_object(target: str) -> Any:
    """What `package.module:Name` stands for; modules of the working directory are found, as by `python -m`."""
    where, _, name = target.partition(":")
    if not (where and name):
        raise BadOption(f"expected package.module:Name, not {target!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(where)
    except ImportError as error:
        raise BadOption(f"cannot import {where}: {_one_line(error)}") from None
    if not hasattr(module, name):
        raise BadOption(f"{where} has no {name}")
    return getattr(module, name)


def _built_in(kind: str) -> dict[str, Path]:
    """Name -> file, of the public files of the kind's package; a folder added to its __path__ adds to them."""
    package = importlib.import_module(KINDS[kind].package)
    return _listed(tuple((folder, _files(folder)) for folder in package.__path__))


def _files(folder: str) -> tuple[tuple[str, int], ...]:
    """Public files with the time of their last change: what a list of plug-ins depends on."""
    if not Path(folder).is_dir():
        return ()
    with os.scandir(folder) as entries:
        return tuple(sorted((each.name, each.stat().st_mtime_ns) for each in entries if not each.name.startswith("_")))


@cache
def _listed(folders: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]) -> dict[str, Path]:
    """Of the files as they were at those times: a report asks for the names of every kind a thousand times."""
    paths = [folder for folder, _ in folders]
    found = [module.name for module in pkgutil.iter_modules(paths) if not module.name.startswith("_")]
    files = [_file(paths, stem) for stem in found if stem not in INTERFACES]
    return {name: path for path in files for name in _names_in(path)}


def _file(folders: Iterable[str], stem: str) -> Path:
    """The first file of that name, as the import system would find it; a package is its folder."""
    candidates = [Path(folder) / f"{stem}.py" for folder in folders]
    return next((path for path in candidates if path.is_file()), candidates[0].with_suffix(""))


def _names_in(path: Path) -> list[str]:
    """The names of the classes of a file that has several; else the file's own."""
    several = CLASS_NAME.findall(path.read_text(encoding="utf-8")) if path.is_file() else []
    return several if len(several) > 1 else [path.stem]


@cache
def _installed(kind: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=KINDS[kind].group)}


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
