"""A test that needs real data or a GPU carries the marker that says so: `-m "not realdata"` must not meet one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from conftest import SLOW_FILES

TESTS = Path(__file__).parent


def functions() -> Iterator[tuple[str, ast.FunctionDef, str]]:
    """Each function of each test file, by name, with its decorators and the file's own marks as text."""
    for path in sorted(TESTS.glob("test_*.py")):
        file = ast.parse(path.read_text())
        own = [
            node for node in file.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        ]
        for node in ast.walk(file):
            if isinstance(node, ast.FunctionDef):
                yield f"{path.name}::{node.name}", node, " ".join(map(ast.unparse, [*own, *node.decorator_list]))


def uses(function: ast.FunctionDef, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(function))


def test_what_reads_real_data_is_marked() -> None:
    found = {name: "realdata" in marks for name, function, marks in functions() if uses(function, "real_data")}
    assert len(found) > 10, "real_data() has another name now?"
    assert [name for name, marked in found.items() if not marked] == []


def test_a_gpu_is_asked_for_by_marker_alone() -> None:
    """conftest.py skips it where there is none; a skipif of its own could not be selected."""
    assert [name for name, _, marks in functions() if "is_available" in marks] == []
    assert any("mark.gpu" in marks for _, _, marks in functions())


def test_files_that_run_first_are_there() -> None:
    assert [name for name in SLOW_FILES if not (TESTS / f"{name}.py").is_file()] == []
    assert len(set(SLOW_FILES)) == len(SLOW_FILES)
