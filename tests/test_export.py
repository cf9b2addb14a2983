"""Records as one table in a file: whole or not at all, and never in the place of an older one that was better."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
from conftest import fathom
from sample_records import op_row, record_of

from fathom.cli.commands import export
from fathom.core.store import Store


@pytest.fixture(autouse=True)
def _frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a column or two in the place of the real ones."""
    frames = ModuleType("fathom.analysis.frame")
    frames.frame = lambda records: pd.DataFrame({"workload": [each.spec.workload for each in records]})  # type: ignore[attr-defined]
    frames.op_frame = lambda records: pd.DataFrame(  # type: ignore[attr-defined]
        [{"workload": each.spec.workload, "op": row.op} for each in records for row in each.profile.rows]
    )
    monkeypatch.setitem(sys.modules, "fathom.analysis.frame", frames)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for workload in ("autoenc", "vgg"):
        Store(tmp_path / "records").add(record_of(workload, [op_row("MatMul", 0.5), op_row("Add", 0.1)]))
    return tmp_path / "records"


def test_csv_has_a_row_per_run_or_per_op(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fathom(monkeypatch, "export", folder, "--out", tmp_path / "runs.csv") == 0
    assert sorted(pd.read_csv(tmp_path / "runs.csv").workload) == ["autoenc", "vgg"]
    assert fathom(monkeypatch, "export", folder, "--out", tmp_path / "ops.csv", "--ops") == 0
    assert len(pd.read_csv(tmp_path / "ops.csv")) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"records", "runs.csv", "ops.csv"}


def test_parquet_comes_back_as_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    assert fathom(monkeypatch, "export", folder, "--out", tmp_path / "ops.parquet", "--ops") == 0
    assert list(pd.read_parquet(tmp_path / "ops.parquet").columns) == ["workload", "op"]
    assert capsys.readouterr().err == f"4 rows: {tmp_path}/ops.parquet\n"


def test_a_full_disk_leaves_the_old_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: pd.DataFrame, path: Path, index: bool) -> None:
        path.write_text("half a ta")
        raise OSError(28, "No space left on device")

    (tmp_path / "runs.csv").write_text("of yesterday")
    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    assert fathom(monkeypatch, "export", folder, "--out", tmp_path / "runs.csv") == 2
    assert capsys.readouterr().err == f"fathom: cannot write {tmp_path}/runs.csv: No space left on device\n"
    assert (tmp_path / "runs.csv").read_text() == "of yesterday"
    assert {path.name for path in tmp_path.iterdir()} == {"records", "runs.csv"}


@pytest.mark.parametrize(
    ("out", "expected"),
    [
        ("runs.xlsx", "no table format '.xlsx'; there are: .csv, .parquet"),
        ("runs", "no table format 'runs'; there are: .csv, .parquet"),
        ("/proc/runs.csv", "cannot write /proc/runs.csv: "),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    out: str,
    expected: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fathom(monkeypatch, "export", folder, "--out", tmp_path / out) == 2
    printed = capsys.readouterr().err
    assert expected in printed
    assert printed.count("\n") == 1


def test_parquet_without_pyarrow_says_how_to_get_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None)
    assert fathom(monkeypatch, "export", folder, "--out", tmp_path / "runs.parquet") == 2
    assert "pip install 'fathom[parquet]'" in capsys.readouterr().err


def test_a_folder_without_records_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fathom(monkeypatch, "export", tmp_path, "--out", tmp_path / "runs.csv") == 2
    assert "no records in" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
