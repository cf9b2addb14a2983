"""The arrows of docs/architecture.md, read off the imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fathom"


def imports(path: Path) -> set[str]:
    """Every module that a file imports when it is loaded; imports inside functions happen later, on purpose."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def reaches_torch(path: Path, seen: set[Path]) -> bool:
    if path in seen:
        return False
    seen.add(path)
    for name in imports(path):
        if name.split(".")[0] == "torch":
            return True
        if name.split(".")[0] == "fathom":
            inner = PACKAGE.joinpath(*name.split(".")[1:])
            for candidate in (inner.with_suffix(".py"), inner / "__init__.py"):
                if candidate.is_file() and reaches_torch(candidate, seen):
                    return True
    return False


TORCHLESS = ["cli.py", "analysis.py", "record.py", "store.py", "spec.py", "errors.py", "machine.py", "study.py"]
TORCHLESS += ["repeat.py", "setting.py"]


@pytest.mark.parametrize("name", TORCHLESS)
def test_these_load_without_torch(name: str) -> None:
    assert not reaches_torch(PACKAGE / name, set())


@pytest.mark.parametrize("folder", ["analyses", "report", "commands"])
def test_nothing_in_these_folders_loads_torch(folder: str) -> None:
    assert [p.name for p in sorted((PACKAGE / folder).glob("*.py")) if reaches_torch(p, set())] == []


def test_workloads_and_datasets_know_nothing_of_measuring() -> None:
    forbidden = {"session", "measure", "isolate", "record", "store", "timing", "ops", "trace", "cli", "study", "spec"}
    for path in [*(PACKAGE / "workloads").glob("*.py"), *(PACKAGE / "datasets").glob("*.py"), PACKAGE / "workload.py"]:
        known = {name.split(".")[1] for name in imports(path) if name.startswith("fathom.")}
        assert not known & forbidden, (path.name, known & forbidden)


def test_every_file_says_in_one_sentence_what_it_is() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text, path
        assert text.splitlines()[0].endswith((".", ":")), path
