"""Files as editors and wrong clocks leave them: byte-order marks, folders that may not be read, future dates."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import fathom
from sample_records import failed_record, record_of

from fathom.cli.commands.study import _chosen
from fathom.core.errors import BadOption, DataError
from fathom.core.record import Record, moment
from fathom.core.store import Store, read
from fathom.data import _audio, babi, corpora
from fathom.experiments.checks import is_external
from fathom.workloads.autoenc import Autoenc

MARK = b"\xef\xbb\xbf"
FUTURE = "2999-01-01T00:00:00.000+00:00"


def test_a_record_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    made = record_of("autoenc")
    (tmp_path / "r.json").write_bytes(MARK + json.dumps(made.to_json()).encode())
    assert read([tmp_path], pytest.fail) == [made]


def test_data_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    story = b"1 Mary went home.\n2 Where is Mary?\thome\t1\n"
    assert babi.parse(MARK + story, tmp_path / "qa1", 5) == babi.parse(story, tmp_path / "qa1", 5)
    text, labels = tmp_path / "corpus.en", tmp_path / "labels.txt"
    text.write_bytes(MARK + b"one\ntwo\n")
    assert list(corpora._lines(text)) == ["one", "two"]
    labels.write_bytes(MARK + b"0 10 sil\n")
    assert _audio.read_lines(labels) == ["0 10 sil"]


@pytest.mark.parametrize("command", [["analyse", "breakdown"], ["report"], ["export", "--out", "t.csv"]], ids=" ".join)
def test_a_folder_that_may_not_be_read_is_named(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """glob() finds nothing in such a folder, which would be told as an empty one."""

    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path) == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    monkeypatch.chdir(tmp_path)
    assert fathom(monkeypatch, *command, str(tmp_path)) == 2
    assert capsys.readouterr().err == f"fathom: {tmp_path}: cannot be read: Permission denied\n"


def test_a_folder_that_is_none_and_one_that_is_missing_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path / ("x" * 300)):
        with pytest.raises(DataError, match="no such folder of records|File name too long"):
            read([path], pytest.fail)


def test_a_name_that_is_too_long_for_a_file_is_looked_for_as_a_module() -> None:
    assert is_external("x" * 300 + ":Class")


def _dated(record: Record, started: str) -> Record:
    return replace(record, started=started, id=started[:10])


def test_a_failed_record_dated_in_the_future_does_not_hide_a_good_one(tmp_path: Path) -> None:
    good = record_of("autoenc")
    store, begun = Store(tmp_path), moment()
    store.add(_dated(good, "2020-01-01T00:00:00.000+00:00"))
    store.add(_dated(replace(failed_record("autoenc"), spec=good.spec), FUTURE))
    assert [record.outcome for record in _chosen([good.spec], store, begun)] == ["ok"]
    store.add(_dated(replace(failed_record("autoenc"), spec=good.spec), moment()))
    assert [record.outcome for record in _chosen([good.spec], store, begun)] == ["failed"], "made now"


def test_a_record_dated_in_the_future_counts_where_there_is_no_other(tmp_path: Path) -> None:
    good = record_of("autoenc")
    store = Store(tmp_path)
    store.add(_dated(replace(failed_record("autoenc"), spec=good.spec), FUTURE))
    store.add(_dated(good, "2998-01-01T00:00:00.000+00:00"))
    assert [record.outcome for record in _chosen([good.spec], store, moment())] == ["ok"]


@pytest.mark.parametrize("option", ["hidden", "latent"])
def test_a_network_without_units_is_refused(option: str) -> None:
    with pytest.raises(BadOption, match=f"^{option} of autoenc must be at least 1, not 0$"):
        Autoenc.configured("tiny", **{option: 0})
