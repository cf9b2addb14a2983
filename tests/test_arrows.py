"""The packages of docs/architecture.md, read off the imports: who may import whom, and who loads torch."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fathom"
ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"
MAY_IMPORT = {  # package -> the packages below it that it may import, as the table of docs/architecture.md says
    name: {other for other in imports.split(", ") if other}
    for name, imports in re.findall(r"^\| (\w+) \| ?([\w, ]*?) ?\| ", ARCHITECTURE.read_text(), flags=re.MULTILINE)
    if name != "package"
}
WITHOUT_TORCH = {"core", "published", "trace", "analysis", "predict", "report", "cli"}
"""Packages that a laptop without torch can load; imports inside a function happen later, on purpose."""


@cache
def parsed(path: Path) -> ast.Module:
    """Each file once: all tests here read the same ones."""
    return ast.parse(path.read_text())


@cache
def imported(path: Path, *, later: bool) -> set[str]:
    """Every module that a file imports when it is loaded, and with `later` also those inside functions."""
    tree = parsed(path)
    found: set[str] = set()
    for node in ast.walk(tree) if later else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def packages() -> list[str]:
    return sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


@cache
def arrows() -> dict[str, set[str]]:
    """Package -> the other packages that any of its files imports, sooner or later."""
    found: dict[str, set[str]] = {name: set() for name in packages()}
    for name in found:
        for path in (PACKAGE / name).rglob("*.py"):
            targets = {module.split(".")[1] for module in imported(path, later=True) if module.startswith("fathom.")}
            found[name] |= (targets & found.keys()) - {name}
    return found


def test_the_list_names_every_package() -> None:
    assert packages() == sorted(MAY_IMPORT)


def test_every_package_imports_what_the_table_says_and_nothing_else() -> None:
    assert arrows() == MAY_IMPORT


def test_there_is_no_circle_between_packages() -> None:
    left = arrows()
    while left:
        free = {name for name, targets in left.items() if not targets & left.keys()}
        assert free, f"a circle among {sorted(left)}"
        left = {name: targets for name, targets in left.items() if name not in free}


def reaches_torch(path: Path, seen: set[Path]) -> bool:
    if path in seen:
        return False
    seen.add(path)
    for name in imported(path, later=False):
        if name.split(".")[0] == "torch":
            return True
        if name.split(".")[0] == "fathom":
            inner = PACKAGE.joinpath(*name.split(".")[1:])
            for candidate in (inner.with_suffix(".py"), inner / "__init__.py"):
                if candidate.is_file() and reaches_torch(candidate, seen):
                    return True
    return False


@pytest.mark.parametrize("name", sorted(WITHOUT_TORCH))
def test_these_packages_load_without_torch(name: str) -> None:
    files = sorted((PACKAGE / name).rglob("*.py"))
    assert [str(path.relative_to(PACKAGE)) for path in files if reaches_torch(path, set())] == []


@pytest.mark.parametrize("name", ["experiments/study.py", "experiments/repeat.py", "machine/host.py"])
def test_these_files_load_without_torch(name: str) -> None:
    assert not reaches_torch(PACKAGE / name, set())


def test_every_file_says_in_one_sentence_what_it_is() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = ast.get_docstring(parsed(path))
        assert text, path
        assert text.splitlines()[0].endswith((".", ":")), path
