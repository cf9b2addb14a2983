"""Joules: what the system counts, over a counter that goes round, and nothing where nobody counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fathom import meter
from fathom.meter import Meter

CPU = torch.device("cpu")


def package(folder: Path, number: int, microjoules: int) -> Path:
    place = folder / f"intel-rapl:{number}"
    place.mkdir(exist_ok=True)
    (place / "max_energy_range_uj").write_text("5000000\n")
    (place / "energy_uj").write_text(f"{microjoules}\n")
    return place


def test_packages_are_added_up_and_one_that_went_round_is_not_negative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "RAPL", tmp_path)
    package(tmp_path, 0, 1_000_000)
    package(tmp_path, 1, 4_500_000)
    found = Meter(CPU)
    assert found.joules() == 0
    package(tmp_path, 0, 3_000_000)
    package(tmp_path, 1, 500_000)  # past its end at 5 J
    assert found.joules() == pytest.approx(2 + 1)
    assert found.name == "RAPL of the CPU"


def test_where_nobody_counts_energy_is_not_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "RAPL", tmp_path / "nothing")
    assert Meter(CPU).joules() is None
    assert Meter(CPU).name is None
