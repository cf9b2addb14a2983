"""A full disk never destroys what was there: reports, tables and records are written beside and renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sample_records import record_of

from fathom import report
from fathom.cli.commands import export
from fathom.core import files
from fathom.core.errors import BadOption
from fathom.core.store import Store

Write = Callable[[Path], object]
WRITERS: dict[str, Write] = {
    "report.html": lambda path: report.write([record_of()], path),
    "report.md": lambda path: report.write([record_of()], path),
    "runs.csv": lambda path: export._write(pd.DataFrame({"a": [1]}), path),
}


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def fail_to_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise full()

    monkeypatch.setattr(os, "fsync", fail)


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_an_old_report_survives_a_disk_that_fills_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / name
    path.write_text("the old one")
    fail_to_sync(monkeypatch)
    with pytest.raises(BadOption, match=f"cannot write .*{name}: No space left on device"):
        WRITERS[name](path)
    assert path.read_text() == "the old one"
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_an_old_table_survives_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("the old one")

    def fail(_: pd.DataFrame, hidden: Path, **named: Any) -> None:
        hidden.write_text("half a")
        raise full()

    monkeypatch.setattr(pd.DataFrame, "to_csv", fail)
    with pytest.raises(BadOption, match=r"cannot write .*runs.csv: No space left"):
        WRITERS["runs.csv"](path)
    assert path.read_text() == "the old one"
    assert [each.name for each in tmp_path.iterdir()] == ["runs.csv"]


def test_no_half_record_is_left_by_a_disk_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    kept = store.add(record_of())
    fail_to_sync(monkeypatch)
    with pytest.raises(BadOption, match="No space left"):
        store.add(record_of("memnet"))
    assert [each.name for each in tmp_path.iterdir()] == [kept.name]


@pytest.mark.parametrize("name", WRITERS)
def test_a_report_replaces_the_old_one_and_keeps_its_mode_and_links(tmp_path: Path, name: str) -> None:
    path, link = tmp_path / name, tmp_path / f"link-{name}"
    path.write_text("the old one")
    path.chmod(0o640)
    link.symlink_to(path)
    (tmp_path / f".{name}.{os.getpid()}.part").write_text("of a process that was killed and had our number")
    WRITERS[name](link)
    assert link.is_symlink()
    assert path.read_text() != "the old one"
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    files.replace_whole(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()
