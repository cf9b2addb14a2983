"""The link calculator: the guide's worked example to its printed digits, and what must hold for any link."""

from __future__ import annotations

import doctest
import json
from typing import Any

import pytest
from conftest import fathom

from fathom.analysis import link
from fathom.analysis.link import Link
from fathom.core.errors import BadOption

GUIDE: dict[str, Any] = {"bytes_per_gpu": 8e9, "bytes_per_s": 31.5e9, "compute_s": 0.5}


def test_the_guides_example_comes_out_to_every_printed_digit() -> None:
    three, four = Link(gpus=3, **GUIDE), Link(gpus=4, **GUIDE)
    assert f"{three.transfer_s:.6f}" == "0.253968"
    assert f"{four.all_transfers_s:.6f}" == "1.015873"
    assert f"{three.all_transfers_s:.4f}" == "0.7619"
    assert f"{three.idle_s:.4f}" == "0.2619"
    assert 100 * three.busy == pytest.approx(65.625, abs=1e-9)  # which the guide prints as 65.62


def test_the_docstring_shows_what_the_code_does() -> None:
    assert doctest.testmod(link) == (0, 2)


@pytest.mark.parametrize("gpus", [1, 2, 3, 8])
@pytest.mark.parametrize("compute_s", [0.01, 0.253968, 0.5, 3.0])
@pytest.mark.parametrize("overlapped", [True, False])
def test_busy_and_idle_add_up_and_overlap_never_hurts(gpus: int, compute_s: float, overlapped: bool) -> None:
    found = Link(gpus=gpus, **{**GUIDE, "compute_s": compute_s}, overlapped=overlapped)
    assert found.busy + found.idle_s / found.iteration_s == pytest.approx(1)
    assert 0 < found.busy <= 1
    assert (found.busy == 1) == (found.overlapped and gpus <= found.gpus_kept_busy)
    serial = Link(gpus=gpus, **{**GUIDE, "compute_s": compute_s}, overlapped=False)
    assert serial.busy <= Link(gpus=gpus, **{**GUIDE, "compute_s": compute_s}).busy


def test_a_link_of_the_speed_that_is_needed_keeps_all_busy() -> None:
    slow = Link(gpus=3, **GUIDE)
    assert slow.bytes_per_s_needed is not None
    assert Link(gpus=3, **{**GUIDE, "bytes_per_s": slow.bytes_per_s_needed}).busy == pytest.approx(1)
    assert Link(gpus=2, bytes_per_gpu=1e9, bytes_per_s=1e10, compute_s=0.3).gpus_kept_busy == 3  # an exact multiple


def test_without_overlap_one_gpu_computes_after_its_transfer() -> None:
    alone = Link(gpus=1, **GUIDE, overlapped=False)
    assert alone.iteration_s == pytest.approx(0.5 + 8 / 31.5)
    assert alone.gpus_kept_busy == 0


@pytest.mark.parametrize("name", ["gpus", "bytes_per_gpu", "bytes_per_s", "compute_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_what_cannot_be_is_refused(name: str, value: float) -> None:
    with pytest.raises(BadOption, match=f"{name} must be above 0"):
        Link(**{"gpus": 3, **GUIDE, name: value})


def test_the_command_prints_the_example_and_refuses_nonsense_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fathom(monkeypatch, "link") == 0
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("0.253968 s", "0.761905 s", "0.261905 s", "65.62 %", "48 GB/s"))
    assert fathom(monkeypatch, "link", "--gpus", "4", "--json") == 0
    assert json.loads(capsys.readouterr().out)["all_transfers_s"] == pytest.approx(1.015873, abs=1e-6)
    assert fathom(monkeypatch, "link", "--compute", "0") == 2
    refused = capsys.readouterr().err
    assert refused.count("\n") == 1
    assert "--compute must be above 0 and below 1e+15, not 0" in refused


def test_without_overlap_no_link_keeps_a_gpu_busy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Link(gpus=3, **GUIDE, overlapped=False).bytes_per_s_needed is None
    assert fathom(monkeypatch, "link", "--no-overlap") == 0
    assert "none does" in capsys.readouterr().out
