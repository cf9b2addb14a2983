"""What the README shows is what is there: its tree, its commands, its counts."""

from __future__ import annotations

import re
from pathlib import Path

from fathom.core import plugins
from fathom.engine.cost import parameters
from fathom.workloads.base import workload_class

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_tree_names_every_file_of_the_package_and_nothing_else() -> None:
    tree = README.split("src/fathom/\n", 1)[1].split("```", 1)[0]
    named = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.startswith("  ")}
    package = ROOT / "src" / "fathom"
    files = {path.name for path in package.glob("*.py") if not path.name.startswith("__")}
    folders = {path.name for path in package.iterdir() if path.is_dir() and not path.name.startswith("__")}
    mentioned = {folder for folder in folders if f"{folder}/" in tree}
    assert named - {"report"} == files
    assert mentioned == folders


def test_every_command_it_shows_exists_and_every_command_is_shown() -> None:
    shown = set(re.findall(r"bin/fathom (\w+)", README))
    assert shown == set(plugins.names("commands"))


def test_the_parameter_counts_are_the_counted_ones() -> None:
    rows = dict(re.findall(r"^\| (\w+) \|.*?\| ([\d,]{5,})", README, flags=re.M))
    assert set(rows) == set(plugins.names("workloads"))
    for name, count in rows.items():
        assert int(count.replace(",", "")) == parameters(workload_class(name).configured("small")), name


def test_links_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), (page.name, link)


def test_the_project_speaks_of_itself_alone() -> None:
    suffixes = {".py", ".md", ".toml", ".j2", ".js", ".css", ""}
    for path in ROOT.rglob("*"):
        hidden = any(part.startswith(".") or part in {"wheels", "records"} for part in path.relative_to(ROOT).parts)
        if path.is_file() and not hidden and path.suffix in suffixes and path.name != Path(__file__).name:
            assert not re.search(r"(?<![\w.])/(work|root|home)/", path.read_text(errors="replace")), path
