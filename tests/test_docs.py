"""What the README shows is what is there: its commands, its counts, its links."""

from __future__ import annotations

import re
from pathlib import Path

from fathom.core import plugins
from fathom.workloads.catalogue import facts, suite

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_every_command_it_shows_exists_and_every_command_is_shown() -> None:
    shown = set(re.findall(r"bin/fathom (\w+)", README))
    assert shown == set(plugins.names("commands"))


def test_the_parameter_counts_are_the_catalogues() -> None:
    rows = dict(re.findall(r"^\| (\w+) \|.*?\| ([\d,]{5,})", README, flags=re.M))
    assert set(rows) == set(suite())
    for name, count in rows.items():
        assert int(count.replace(",", "")) == facts(name)["parameters"], name


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
