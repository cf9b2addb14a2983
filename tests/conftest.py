"""What tests share: the folder of real data, where there is one, and the command line as a user types it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fathom.cli import main


def real_data(name: str) -> Path:
    """A real data set below FATHOM_DATA, or a visible skip."""
    parent = os.environ.get("FATHOM_DATA")
    if not parent:
        pytest.skip(f"FATHOM_DATA is not set: no real {name} to read")
    folder = Path(parent) / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder


def fathom(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of the command line; what it printed is pytest's to capture."""
    monkeypatch.setattr(sys, "argv", ["fathom", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code
