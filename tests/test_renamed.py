"""Options under their old names: they still work, with one line that gives the new one."""

from __future__ import annotations

import pytest
from conftest import fathom

from fathom.cli.commands import compare, profile, repeat
from fathom.cli.renamed import with_new_names

RENAMED = {"--rounds": "--evaluations"}


@pytest.mark.parametrize(
    ("typed", "expected", "hinted"),
    [
        (["learn", "--rounds", "3"], ["learn", "--evaluations", "3"], True),
        (["learn", "--rounds=3"], ["learn", "--evaluations=3"], True),
        (["learn", "--evaluations", "3"], ["learn", "--evaluations", "3"], False),
        (["learn", "--set", "a=--rounds"], ["learn", "--set", "a=--rounds"], False),
        (["learn", "--", "--rounds"], ["learn", "--", "--rounds"], False),
        (["learn", "--rounds", "3", "--rounds", "4"], ["learn", "--evaluations", "3", "--evaluations", "4"], True),
    ],
)
def test_an_old_option_is_replaced_with_one_hint(typed: list[str], expected: list[str], hinted: bool) -> None:
    current, hints = with_new_names(typed, RENAMED)
    assert current == expected
    assert hints == ["--rounds is now --evaluations; the old name will be removed in the next release"] * hinted


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "threads=1", "threads=2", "autoen", "--interleave", "--launches", "1"],
        ["repeat", "autoen", "--warmup", "0"],
        ["profile", "--beside", "results/h200"],
    ],
)
def test_the_command_line_takes_old_options_with_a_hint(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fathom(monkeypatch, *arguments) == 2
    hint, error = capsys.readouterr().err.splitlines()
    assert hint.startswith("fathom: --")
    assert " is now --" in hint
    assert "no option" not in error


def test_new_names_are_options_of_their_commands() -> None:
    for module in (compare, profile, repeat):
        parameters = module.command.__annotations__
        for old, new in module.RENAMED.items():
            assert new.removeprefix("--").replace("-", "_") in parameters
            assert old.removeprefix("--").replace("-", "_") not in parameters
