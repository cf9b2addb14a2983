"""What tests share: the folder of real data, where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def real_data(name: str) -> Path:
    """A real data set below FATHOM_DATA, or a visible skip."""
    parent = os.environ.get("FATHOM_DATA")
    if not parent:
        pytest.skip(f"FATHOM_DATA is not set: no real {name} to read")
    folder = Path(parent) / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    return folder
