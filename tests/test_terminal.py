"""Tables in a terminal: nothing is cut, whatever the width."""

from __future__ import annotations

import pytest
from rich.console import Console

from fathom.cli import terminal

COLUMNS = ["workload", *(f"a number called {letter}" for letter in "abcdef")]
ROWS = [["seq2seq", 1, 2, 3, 4, 5, 6], ["memnet", 10, 20, 30, 40, 50, None]]


def test_a_file_has_room_for_every_column(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "screen", Console(width=40))
    terminal.print_table("a title", COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert any(all(column in line for column in COLUMNS) for line in lines)
    assert any(line.split() == ["memnet", "10", "20", "30", "40", "50", "—"] for line in lines)


def test_in_a_terminal_long_names_go_on_in_the_next_line_and_stand_before_every_number(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "screen", Console(width=60, force_terminal=True, no_color=True))
    names = ["a network with a long name on a set", "what it is judged by, in many words"]
    terminal.print_table("a title", ["what", "metric", *COLUMNS[1:]], [[*names, 1, 2, 3, 4, 5, 6]])
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert all(column in shown for column in COLUMNS[1:])
    assert shown.count("a network with a") > 2, "in every strip"


def test_in_a_terminal_a_wide_table_goes_on_below_with_its_first_words_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "screen", Console(width=50, force_terminal=True, no_color=True))
    terminal.print_table("a title", COLUMNS, ROWS)
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert shown.count("a title") == 1
    assert shown.count("memnet") == 3, "two numbers fit beside the name"
    assert all(column in shown for column in COLUMNS)


def test_numbers_that_name_a_row_stand_before_every_strip_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of the study differ in their number of threads alone."""
    monkeypatch.setattr(terminal, "screen", Console(width=50, force_terminal=True, no_color=True))
    columns = ["workload", "threads", *(f"a number called {letter}" for letter in "abcd")]
    terminal.print_table("a title", columns, [["memnet", 71, 2, 3, 4, 5], ["memnet", 72, 2, 3, 4, 5]], keys=2)
    shown = capsys.readouterr().out
    assert shown.count("memnet") > 2, "several strips"
    assert shown.count(" 71 ") == shown.count(" 72 ") == shown.count("memnet") / 2
